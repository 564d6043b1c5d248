"""The names of the files that this process opens."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

LISTENERS: list[Callable[[str], object]] = []


def _hear(event: str, arguments: tuple[Any, ...]) -> None:
    if event == "open":
        for one in LISTENERS:
            one(Path(str(arguments[0])).name)


sys.addaudithook(_hear)  # audit hooks cannot be removed


@contextmanager
def opening(tell: Callable[[str], object]) -> Iterator[None]:
    """Within this context, call `tell` with the name of each file that this process is about to open."""
    LISTENERS.append(tell)
    try:
        yield
    finally:
        LISTENERS.remove(tell)


@contextmanager
def opened() -> Iterator[list[str]]:
    """A list of the names of files that this process opens within this context."""
    names: list[str] = []
    with opening(names.append):
        yield names
