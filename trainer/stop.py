"""Stop: whether the program was told to end. Knows signals, and nothing that takes time to import."""

from __future__ import annotations

import os
import signal
from types import FrameType

from paramsync.program.process import ending_signals


class Stop:
    """Set by SIGTERM, SIGINT and SIGHUP, any number of times; read by the training loop.

    Until training has begun there is nothing to finish, and TensorFlow may be in the middle of its import, where an
    exception would surface as a traceback: so the process ends at once, with exit code 0.
    """

    def __init__(self) -> None:
        self.requested = False  # a plain value: a handler that took a lock could wait for the code it interrupted
        self._nothing_to_finish = True

    def listen(self) -> None:
        """Take the signals over. To be called first of all, on the main thread."""
        for number in ending_signals():
            signal.signal(number, self._told)

    def training_begins(self) -> None:
        """From here on, a signal only sets `requested`."""
        self._nothing_to_finish = False

    def _told(self, number: int, frame: FrameType | None) -> None:
        self.requested = True
        if self._nothing_to_finish:
            os._exit(0)
