"""A program's process: how it logs, which signals end it, and which release it runs. Quick to import."""

from __future__ import annotations

import logging
import signal

_FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"


def start_logging(handler: logging.Handler | None = None) -> None:
    """Log our own records from INFO up, all others from WARNING up, as lines to standard error.

    Another handler brings its own format. A program calls this once.
    """
    if handler is None:
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter(_FORMAT))
    logging.basicConfig(level=logging.WARNING, handlers=[handler])
    logging.getLogger("paramsync").setLevel(logging.INFO)


def ending_signals() -> tuple[signal.Signals, ...]:
    """SIGTERM, SIGINT, and SIGHUP, which the end of a terminal sends, unless `nohup` had it ignored."""
    ignored = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    return signal.SIGTERM, signal.SIGINT, *(() if ignored else (signal.SIGHUP,))


def release(distribution: str = "paramsync") -> str:
    """The installed release of a distribution; "unknown" for a program that runs from a folder as it is."""
    from importlib import metadata

    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return "unknown"
