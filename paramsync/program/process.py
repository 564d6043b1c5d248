"""A program's process: how it logs, which signals end it, its file descriptors, its release. Quick to import."""

from __future__ import annotations

import resource
import signal
from contextlib import suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import logging

_FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"
_MOST_DESCRIPTORS = 1 << 16  # more would cost every child process time
_FOR_FILES = 256  # descriptors for stores, libraries and everything else but connections


def start_logging(handler: logging.Handler | None = None) -> None:
    """Log our own records from INFO up, all others from WARNING up, as lines to standard error.

    Another handler brings its own format. A program calls this once.
    """
    import logging  # here: a program takes its signals over before it imports anything that takes time

    if handler is None:
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter(_FORMAT))
    logging.basicConfig(level=logging.WARNING, handlers=[handler])
    logging.getLogger("paramsync").setLevel(logging.INFO)


def ending_signals() -> tuple[signal.Signals, ...]:
    """SIGTERM, SIGINT, and SIGHUP, which the end of a terminal sends, unless `nohup` had it ignored."""
    ignored = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    return signal.SIGTERM, signal.SIGINT, *(() if ignored else (signal.SIGHUP,))


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
