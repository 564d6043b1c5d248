"""Ctrl-C while a command is still being imported."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager

INTERRUPTED = 130


@contextmanager
def importing() -> Iterator[None]:
    """Within an import an exception would show as a traceback, or be lost: Ctrl-C ends the process, which has done
    nothing yet. Main thread only."""
    before = signal.signal(signal.SIGINT, lambda *_: os._exit(INTERRUPTED))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
