"""The live view of `status --watch`, `top` and `up`: polls programs, and draws the view in place or prints lines.

Each program is polled on its own thread. The caller's thread shows the last answers of all programs.
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

_STARTING_SECONDS = 0.05  # the time between two checks whether all programs have answered
_Answer = TypeVar("_Answer")


@dataclass(frozen=True, slots=True)
class Last(Generic[_Answer]):
    """The last answer of a program, and the error if the last call failed. `answer` is None before the first answer.

    Times are from the monotonic clock.
    """

    answer: _Answer | None = None
    at: float = 0.0
    error: ParamsyncError | None = None
    lost_at: float | None = None

    @property
    def age(self) -> float:
        """Seconds since the last answer."""
        return time.monotonic() - self.at


class Polled(Generic[_Answer]):
    """One program, polled on its own thread. Any thread may read `last`, because it is replaced as a whole."""

    def __init__(self, ask: Callable[[], _Answer], seconds: float) -> None:
        """`ask` is called again `seconds` after it returned."""
        self.last: Last[_Answer] = Last()
        self._ask = ask
        self._seconds = seconds
        self._closing = threading.Event()

    def start(self) -> None:
        threading.Thread(target=self._run, daemon=True).start()

    def close(self) -> None:
        """Stop polling. The thread ends after its current call. Closing the client ends that call."""
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
    """What is shown about programs. Each method reads their last answers."""

    def drawn(self) -> Any:
        """Return a renderable of rich, for a terminal."""

    def lines(self) -> Iterable[str]:
        """Return the lines that are new since the last call, for output that is not a terminal."""

    def objects(self) -> Iterable[object]:
        """Return the objects that are new since the last call, for --json."""


def show(
    view: View,
    programs: Sequence[Polled[Any]],
    *,
    seconds: float,
    json: bool = False,
    screen: Console | None = None,
    goes_on: Callable[[], bool] = lambda: True,
) -> None:
    """Show the view every `seconds` while `goes_on()` is true, beginning once all programs have answered or failed.

    Raises RequestError if a program answers with it, for example because it does not know the model.
    """
    screen = screen or console()
    pause = threading.Event()
    with contextlib.ExitStack() as stack:
        for program in programs:
            stack.callback(program.close)
            program.start()
        live = None
        if redraws(screen) and not json:
            from rich.live import Live  # here, because other output does not need it

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
