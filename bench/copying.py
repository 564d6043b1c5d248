"""A process that only copies bytes, at a steady pace: `python -m bench.copying BYTES SECONDS`."""

from __future__ import annotations

import contextlib
import sys
import threading
import time

import numpy as np

from bench.served import say_ready


def copy(size: int, *, pause: float) -> None:
    """Copy `size` bytes every `pause` seconds, or as often as possible, until the process is ended."""
    source, target = np.ones(size, np.uint8), np.zeros(size, np.uint8)
    say_ready("bench.copying", "none:0")
    bell, due = threading.Event(), time.monotonic()
    while True:
        np.copyto(target, source)
        due = max(due + pause, time.monotonic())
        bell.wait(due - time.monotonic())


def main() -> None:
    with contextlib.suppress(KeyboardInterrupt):
        copy(int(sys.argv[1]), pause=float(sys.argv[2]))


if __name__ == "__main__":
    main()
