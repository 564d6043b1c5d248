"""Shows the progress of a benchmark as a line on a terminal, and removes the line at the end."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Bar


class Progress:
    """The progress of one benchmark, on the standard error. Shows nothing if that is not a terminal."""

    def __init__(self) -> None:
        console = Console(stderr=True)
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        self._bar = Bar(
            *columns, console=console, transient=True, redirect_stdout=False, redirect_stderr=False,
            disable=not console.is_terminal or console.is_dumb_terminal, refresh_per_second=2,
        )  # fmt: skip
        self._task = self._bar.add_task("", total=None)

    def say(self, what: str) -> None:
        """Show what is being done."""
        self._bar.update(self._task, description=what)

    def track(self, rounds: Iterable[int], count: int) -> Iterator[int]:
        """Yield the rounds, and show each as it passes."""
        self._bar.update(self._task, description="rounds", total=count)
        for one in rounds:
            yield one
            self._bar.advance(self._task)
            self._bar.refresh()

    def __enter__(self) -> Progress:
        self._bar.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._bar.stop()
