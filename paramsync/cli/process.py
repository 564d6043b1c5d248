"""The process of a command: handles Ctrl-C during imports, and standard streams that are closed, full or not read."""

from __future__ import annotations

import _thread
import contextlib
import gc
import io
import os
import select
import signal
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import NoReturn, TextIO, TypeVar

T = TypeVar("T")
INTERRUPTED = 130
_OVER = bytes(1)  # no signal has this number


@contextlib.contextmanager
def importing() -> Iterator[None]:
    """End the process at once on Ctrl-C. During an import KeyboardInterrupt would print a traceback or be lost.

    The garbage collector is off, because imports leave little garbage. Main thread only.
    """
    before = signal.signal(signal.SIGINT, lambda *_: os._exit(INTERRUPTED))
    collecting = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collecting:
            gc.enable()
        signal.signal(signal.SIGINT, before)


def interruptible(call: Callable[[], T]) -> T:
    """Make a call on another thread, so that Ctrl-C ends the wait. obstore itself notices signals only after an answer.

    After Ctrl-C the call goes on until the process ends. Main thread only.

    The main thread reads a pipe. Python writes into the pipe when a signal arrives, `run` when the call is over. A lock
    does not work, because a signal that arrives just before the wait for a lock does not end that wait. `Thread.start`
    does not work either, because it raises RuntimeError for some of the signals that arrive in it.
    """
    future: Future[T] = Future()
    reading, writing = os.pipe()
    os.set_blocking(writing, False)  # `set_wakeup_fd` asks for this

    def run() -> None:
        try:
            future.set_result(call())
        except BaseException as error:  # noqa: BLE001, raised in the caller
            future.set_exception(error)
        os.write(writing, _OVER)

    before = signal.set_wakeup_fd(writing)
    try:
        _thread.start_new_thread(run, ())
        while os.read(reading, 1) != _OVER:
            pass  # the handler of the signal runs here: Ctrl-C raises KeyboardInterrupt
    finally:
        signal.set_wakeup_fd(before)
    os.close(reading)  # after Ctrl-C the pipe stays open, because `run` will write
    os.close(writing)
    return future.result()


def leave(code: int) -> NoReturn:
    """Flush the output and end the process without Python's cleanup, which is slow."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError):  # `main` has reported the error
            stream.flush()
    os._exit(code)


def open_closed_streams() -> None:
    """Open closed standard streams on /dev/null, so that no other file gets their numbers.

    Also have output replace letters that the locale lacks by question marks.
    """
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # gets the lowest free number
    sys.stdout = sys.stdout or _nowhere()
    sys.stderr = sys.stderr or _nowhere()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")


def _nowhere() -> TextIO:
    return Path(os.devnull).open("w")


def check_reader() -> None:
    """Raise BrokenPipeError if the reader of our output has left. Without this, only the next write would raise it."""
    with contextlib.suppress(io.UnsupportedOperation):  # raised if the output is not a file
        output = select.poll()
        output.register(sys.stdout.fileno(), 0)
        if any(event & select.POLLERR for _, event in output.poll(0)):
            raise BrokenPipeError


def give_up_output() -> None:
    """Send the rest of the output to /dev/null, so that Python does not complain at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def complain(text: str) -> None:
    """Write one line to the standard error, if possible."""
    from paramsync.host.files import line

    with contextlib.suppress(OSError):
        sys.stderr.write(f"{line(text)}\n")
