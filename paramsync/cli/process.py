"""A command as a process: Ctrl-C while it is imported, and standard streams that are closed, full or not read."""

from __future__ import annotations

import contextlib
import gc
import io
import os
import select
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn, TextIO

INTERRUPTED = 130


@contextlib.contextmanager
def importing() -> Iterator[None]:
    """Within an import an exception would show as a traceback, or be lost: Ctrl-C ends the process, which has done
    nothing yet. Imports leave no garbage, so none is looked for. Main thread only."""
    before = signal.signal(signal.SIGINT, lambda *_: os._exit(INTERRUPTED))
    collecting = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collecting:
            gc.enable()
        signal.signal(signal.SIGINT, before)


def leave(code: int) -> NoReturn:
    """End the process, once all is written: taking apart what it imported takes longer than a small restore."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError):  # `main` said so, if anybody can be told
            stream.flush()
    os._exit(code)


def open_closed_streams() -> None:
    """Streams that are closed lead nowhere from here on, so that nothing else that is opened takes their numbers; all
    take whatever letters there are."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest number that is free
    sys.stdout = sys.stdout or _nowhere()
    sys.stderr = sys.stderr or _nowhere()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # what the locale has no letters for is no reason to fail


def _nowhere() -> TextIO:
    return Path(os.devnull).open("w")


def check_reader() -> None:
    """Raises BrokenPipeError where whoever read our output has left, which else shows at the next line only."""
    with contextlib.suppress(io.UnsupportedOperation):  # it is no file
        output = select.poll()
        output.register(sys.stdout.fileno(), 0)
        if any(event & select.POLLERR for _, event in output.poll(0)):
            raise BrokenPipeError


def give_up_output() -> None:
    """It cannot be written: what is left of it leads nowhere, so that Python does not complain at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def complain(text: str) -> None:
    """One line to the person; where that cannot be written there is nobody to tell."""
    from paramsync.host.files import line

    with contextlib.suppress(OSError):
        sys.stderr.write(f"{line(text)}\n")
