"""The signals that ask a program to finish what it does and end. Knows nothing that takes time to import."""

from __future__ import annotations

import signal


def ending() -> tuple[signal.Signals, ...]:
    """SIGTERM, SIGINT, and SIGHUP, which the end of a terminal is, unless `nohup` had that ignored."""
    ignored = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    return signal.SIGTERM, signal.SIGINT, *(() if ignored else (signal.SIGHUP,))
