"""Where `paramsync up` shows what it sees: a picture that moves on a terminal, a line now and then elsewhere."""

from __future__ import annotations

import time
from types import TracebackType

from rich.console import Console, RenderableType
from rich.constrain import Constrain
from rich.live import Live
from rich.text import Text

from paramsync.cli.display import few, frame, line
from paramsync.cli.ledger import View
from paramsync.cli.wording import WIDE, redraws

_LINE_SECONDS = 2.0
_ECHO = len(
    "^C"
)  # columns that are left free: a terminal echoes Ctrl-C at the end, and a broken line moves the picture


class Screen:
    """Used by one thread, as a context manager."""

    def __init__(self, console: Console, *, store: str) -> None:
        self._console = console
        self._store = store
        self._started = time.monotonic()
        self._said = ""
        self._next_line = 0.0
        self._live = Live(console=console, auto_refresh=False, vertical_overflow="crop") if redraws(console) else None

    def wait(self, what: str) -> None:
        """Say what is waited for."""
        if self._live is not None:
            self._live.update(Text(f"{what}  {self._elapsed:.0f} s"), refresh=True)
        elif what != self._said:
            self._said = what
            self._console.print(what, soft_wrap=True)

    def show(self, view: View) -> None:
        if self._live is not None:
            width = self._console.width - _ECHO
            self._live.update(Constrain(self._picture(view, width), width), refresh=True)
        elif self._elapsed >= self._next_line:
            self._next_line = self._elapsed + _LINE_SECONDS
            self._console.print(line(view, elapsed=self._elapsed), soft_wrap=True)

    def _picture(self, view: View, width: int) -> RenderableType:
        if width < WIDE:
            return few(view, elapsed=self._elapsed)
        shades = self._console.color_system is not None and not self._console.no_color
        return frame(view, elapsed=self._elapsed, store=self._store, width=width, shades=shades)

    def __enter__(self) -> Screen:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live is not None:
            self._live.stop()

    @property
    def _elapsed(self) -> float:
        return time.monotonic() - self._started
