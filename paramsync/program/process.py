"""A program's process: its log, the signals that end it, its file descriptors, its release. Fast to import."""

from __future__ import annotations

import _thread
import os
import resource
import signal
from collections.abc import Callable
from contextlib import suppress
from types import FrameType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import logging
    import threading

LOG_FORMATS = ("text", "json")

_FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"
_MOST_DESCRIPTORS = 1 << 16  # a higher limit makes starting child processes slow
_FOR_FILES = 256  # descriptors that are kept for everything except connections


def start_logging(log_format: str = "text", handler: logging.Handler | None = None) -> None:
    """Log our own records from INFO up and others from WARNING up to standard error, as lines of text or "json".

    `handler` replaces standard error and the format. A program calls this once.
    """
    import logging  # imported here, because a program handles signals before slow imports

    if handler is None:
        handler = logging.StreamHandler()
        if log_format == "json":
            from .json_lines import JsonLines, take_over

            take_over()
            handler.setFormatter(JsonLines())
        else:
            handler.setFormatter(logging.Formatter(_FORMAT))
    logging.basicConfig(level=logging.WARNING, handlers=[handler])
    logging.getLogger("paramsync").setLevel(logging.INFO)


def ending_signals() -> tuple[signal.Signals, ...]:
    """Return SIGTERM, SIGINT and SIGHUP. SIGHUP, sent by a closed terminal, is left out if `nohup` ignores it."""
    ignored = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    return signal.SIGTERM, signal.SIGINT, *(() if ignored else (signal.SIGHUP,))


def set_from_handler(event: threading.Event) -> None:
    """Set an event from the handler of a signal, soon after.

    Another thread sets it: the interrupted code may hold the event's lock, and the handler would wait for ever.
    """
    _thread.start_new_thread(event.set, ())


class Stop:
    """Handles the signals that end a program, from its first moment on.

    Before `arm`, a signal ends the process at once with exit code 0. There is nothing to finish yet, and an exception
    in the middle of an import would print a traceback. After `arm`, a signal sets `requested` and calls `on_request`.
    """

    def __init__(self) -> None:
        self.requested = False  # not an Event, because the interrupted code may hold the Event's lock
        self._on_request: Callable[[], object] | None = None

    def listen(self) -> None:
        """Handle the signals from now on. Call this first, on the main thread."""
        for number in ending_signals():
            signal.signal(number, self._on_signal)

    def arm(self, on_request: Callable[[], object] = lambda: None) -> None:
        """Stop ending the process on a signal. Each signal now calls `on_request` on the main thread."""
        self._on_request = on_request

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        self.requested = True
        if self._on_request is None:
            os._exit(0)
        self._on_request()


def raise_descriptor_limit() -> None:
    """Raise the soft limit towards the hard limit. The usual soft limit of 1,024 exists because of `select`."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _MOST_DESCRIPTORS if hard == resource.RLIM_INFINITY else min(hard, _MOST_DESCRIPTORS)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with suppress(ValueError, OSError):  # macOS may have another, lower limit
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def connection_limit() -> int:
    """Return the most connections for which enough descriptors are left for files."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return _MOST_DESCRIPTORS if soft == resource.RLIM_INFINITY else max(soft // 2, soft - _FOR_FILES)


def release(distribution: str = "paramsync") -> str:
    """Return the installed release of a distribution; "unknown" if it is not installed."""
    from importlib import metadata

    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return "unknown"
