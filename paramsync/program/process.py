"""A program's process: how it logs, which signals end it, its file descriptors, its release. Quick to import."""

from __future__ import annotations

import os
import resource
import signal
from collections.abc import Callable
from contextlib import suppress
from types import FrameType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import logging

LOG_FORMATS = ("text", "json")

_FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"
_MOST_DESCRIPTORS = 1 << 16  # more would cost every child process time
_FOR_FILES = 256  # descriptors for stores, libraries and everything else but connections


def start_logging(log_format: str = "text", handler: logging.Handler | None = None) -> None:
    """Log our own records from INFO up, all others from WARNING up, as lines of text or "json" to standard error.

    Another handler brings its own format. A program calls this once.
    """
    import logging  # here: a program takes its signals over before it imports anything that takes time

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
    """SIGTERM, SIGINT, and SIGHUP, which the end of a terminal sends, unless `nohup` had it ignored."""
    ignored = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    return signal.SIGTERM, signal.SIGINT, *(() if ignored else (signal.SIGHUP,))


class Stop:
    """What the signals that end a program do, from the first moment on.

    Until there is something to finish, a signal ends the process at once, with exit code 0: TensorFlow may be in the
    middle of its import, where an exception would surface as a traceback. Afterwards each signal sets `requested`.
    """

    def __init__(self) -> None:
        self.requested = False  # a plain value: a handler that took a lock could wait for the code it interrupted
        self._on_request: Callable[[], object] | None = None

    def listen(self) -> None:
        """Take the signals over. To be called first of all, on the main thread."""
        for number in ending_signals():
            signal.signal(number, self._on_signal)

    def arm(self, on_request: Callable[[], object] = lambda: None) -> None:
        """There is something to finish. Each signal calls this, on the main thread between any two instructions."""
        self._on_request = on_request

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        self.requested = True
        if self._on_request is None:
            os._exit(0)
        self._on_request()


def raise_descriptor_limit() -> None:
    """Raise the soft limit as far as is allowed without a privilege; the usual 1,024 is made for `select`."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _MOST_DESCRIPTORS if hard == resource.RLIM_INFINITY else min(hard, _MOST_DESCRIPTORS)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with suppress(ValueError, OSError):  # macOS has a limit beside it
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def connection_limit() -> int:
    """The number of connections that leave this process enough descriptors for files."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return _MOST_DESCRIPTORS if soft == resource.RLIM_INFINITY else max(soft // 2, soft - _FOR_FILES)


def release(distribution: str = "paramsync") -> str:
    """The installed release of a distribution; "unknown" for a program that runs from a folder as it is."""
    from importlib import metadata

    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return "unknown"
