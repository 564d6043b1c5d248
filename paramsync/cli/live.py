"""The live view of `status --watch`, `top` and `up`: programs are polled, and the view is drawn in place or printed.

Each program has a thread that asks it now and then. The caller's thread shows the last answers of all programs.
"""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

from paramsync.cli.formatting import console, redraws, to_json
from paramsync.cli.process import check_reader
from paramsync.errors import ParamsyncError, RequestError
from paramsync.host.files import line

if TYPE_CHECKING:
    from rich.console import Console

_STARTING_SECONDS = 0.05  # between two looks whether all programs have answered
_Answer = TypeVar("_Answer")


@dataclass(frozen=True, slots=True)
class Last(Generic[_Answer]):
    """The last answer of a program, None before the first, and the error if it does not answer now.

    Times are on the monotonic clock, which nobody sets.
    """

    answer: _Answer | None = None
    at: float = 0.0
    error: ParamsyncError | None = None
    lost_at: float | None = None

    @property
    def age(self) -> float:
        """Seconds since the answer."""
        return time.monotonic() - self.at


class Polled(Generic[_Answer]):
    """One program, asked on a thread of its own. `last` is replaced as a whole: any thread may read it."""

    def __init__(self, ask: Callable[[], _Answer], seconds: float) -> None:
        """`ask` is called again `seconds` after it returned."""
        self.last: Last[_Answer] = Last()
        self._ask = ask
        self._seconds = seconds
        self._closing = threading.Event()

    def start(self) -> None:
        threading.Thread(target=self._run, daemon=True).start()

    def close(self) -> None:
        """Stop asking. The thread ends after its current call, which the caller can end by closing the client."""
        self._closing.set()

    def run_once(self) -> None:
        try:
            last = Last(self._ask(), time.monotonic())
        except ParamsyncError as error:
            last = replace(self.last, error=error, lost_at=self.last.lost_at or time.monotonic())
        if not self._closing.is_set():
            self.last = last

    def _run(self) -> None:
        while not self._closing.is_set():
            try:
                self.run_once()
            except ValueError:  # gRPC's error for a call on a client that was closed meanwhile
                if not self._closing.is_set():
                    raise
            self._closing.wait(self._seconds)


class View(Protocol):
    """What is shown of programs. Each method reads their last answers."""

    def drawn(self) -> Any:
        """What rich draws on a terminal."""

    def lines(self) -> Iterable[str]:
        """New lines, for output that is no terminal."""

    def objects(self) -> Iterable[object]:
        """New objects, for --json."""


def show(
    view: View,
    programs: Sequence[Polled[Any]],
    *,
    seconds: float,
    json: bool = False,
    screen: Console | None = None,
    goes_on: Callable[[], bool] = lambda: True,
) -> None:
    """Show the view every `seconds` while `goes_on()`, beginning once all programs have answered or failed.

    Raises the RequestError of a program that does not know the model.
    """
    screen = screen or console()
    pause = threading.Event()
    with contextlib.ExitStack() as stack:
        for program in programs:
            stack.callback(program.close)
            program.start()
        live = None
        if redraws(screen) and not json:
            from rich.live import Live  # here: other output does without

            live = stack.enter_context(Live(console=screen, auto_refresh=False, vertical_overflow="crop"))
        while goes_on():
            check_reader()
            lasts = [program.last for program in programs]
            for last in lasts:
                if isinstance(last.error, RequestError):
                    raise last.error
            if not all(last.at or last.error for last in lasts):
                pause.wait(_STARTING_SECONDS)
                continue
            if json:
                sys.stdout.write("".join(map(to_json, view.objects())))
                sys.stdout.flush()
            elif live is not None:
                live.update(view.drawn(), refresh=True)
            else:
                for text in view.lines():
                    screen.print(line(text), soft_wrap=True)
                screen.file.flush()
            pause.wait(seconds)
