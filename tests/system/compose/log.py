"""What a run did and when: lines with the seconds since its start, to the screen and to a file."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path


class Log:
    """One thread writes it. Lines say what happened, never where on this machine."""

    def __init__(self, path: Path, *, show: Callable[[str], object]) -> None:
        self._path = path
        self._show = show
        self._start = time.monotonic()
        path.write_text("")

    def line(self, text: str) -> None:
        stamped = f"{time.monotonic() - self._start:7.1f}s  {text}"
        with self._path.open("a") as file:
            file.write(stamped + "\n")
        self._show(stamped)

    @contextmanager
    def timed(self, text: str) -> Iterator[None]:
        """One line when the block is done, with the time it took."""
        start = time.monotonic()
        try:
            yield
        except BaseException:
            self.line(f"{text}: failed after {time.monotonic() - start:.1f} s")
            raise
        self.line(f"{text}: {time.monotonic() - start:.1f} s")
