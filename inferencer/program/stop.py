"""Stop: what SIGTERM, SIGINT and SIGHUP do, from the first moment on. Knows nothing that takes time to import."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from types import FrameType

from paramsync.program.process import ending_signals


class Stop:
    """Before there is anything to drain a signal ends the process at once, with exit code 0; then it calls `tell`."""

    def __init__(self) -> None:
        self._tell: Callable[[], object] | None = None

    def listen(self) -> None:
        """Take the signals over. To be called first of all, on the main thread."""
        for number in ending_signals():
            signal.signal(number, self._on_signal)

    def arm(self, tell: Callable[[], object]) -> None:
        """From now on each signal calls this, on the main thread between any two instructions."""
        self._tell = tell

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if self._tell is None:
            os._exit(0)
        self._tell()
