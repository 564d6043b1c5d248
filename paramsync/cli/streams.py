"""The standard streams of a command: closed before it began, full, or left by their reader."""

from __future__ import annotations

import contextlib
import os
import sys
from pathlib import Path
from typing import TextIO

from paramsync.host.files import line


def open_closed() -> None:
    """What is closed leads nowhere from here on, so that nothing else that is opened takes its number."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest number that is free
    sys.stdout = sys.stdout or _nowhere()
    sys.stderr = sys.stderr or _nowhere()


def _nowhere() -> TextIO:
    return Path(os.devnull).open("w")


def give_up_output() -> None:
    """It cannot be written: what is left of it leads nowhere, so that Python does not complain at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def complain(text: str) -> None:
    """One line to the person; where that cannot be written there is nobody to tell."""
    with contextlib.suppress(OSError):
        sys.stderr.write(f"{line(text)}\n")
