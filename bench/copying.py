"""A process that only copies bytes, at a pace: `python -m bench.copying --bytes N --pause S`."""

from __future__ import annotations

import argparse
import contextlib
import threading
import time

import numpy as np

from bench.served import say_ready


def copy(size: int, *, pause: float) -> None:
    """One copy each `pause` seconds, or as soon as possible, until the process is ended."""
    source, target = np.ones(size, np.uint8), np.zeros(size, np.uint8)
    say_ready("bench.copying", "none:0")
    bell, due = threading.Event(), time.monotonic()
    while True:
        np.copyto(target, source)
        due = max(due + pause, time.monotonic())
        bell.wait(due - time.monotonic())


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.copying")
    parser.add_argument("--bytes", type=int, required=True)
    parser.add_argument("--pause", type=float, required=True)
    arguments = parser.parse_args()
    with contextlib.suppress(KeyboardInterrupt):
        copy(arguments.bytes, pause=arguments.pause)


if __name__ == "__main__":
    main()
