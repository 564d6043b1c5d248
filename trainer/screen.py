"""Screen: how training goes, for a person: a progress bar on a terminal, a line now and then elsewhere."""

from __future__ import annotations

import logging

from rich.console import Console
from rich.logging import RichHandler
from rich.progress import BarColumn, Progress, TaskID, TextColumn

from paramsync import logs
from paramsync.version import Version
from trainer.meter import Meter

_log = logging.getLogger("paramsync.trainer")


class Screen:
    """Belongs to the thread that trains. `every` says how many seconds apart it wants to be shown something."""

    def __init__(self) -> None:
        self._console = Console(stderr=True)
        self._bar: Progress | None = None
        self._task = TaskID(0)
        self.every = 0.2 if self._console.is_terminal else 5.0

    def take_logs(self) -> None:
        """Have all log records written here, so that they and the bar leave each other whole."""
        if not self._console.is_terminal:
            logs.start()
            return
        handler = RichHandler(console=self._console, show_path=False)
        handler.setFormatter(logging.Formatter("%(message)s"))
        logs.start(handler)

    def show(self, meter: Meter, published: Version | None, *, out_of: int) -> None:
        """Show the step out of as many, or within an epoch of as many."""
        version = "nothing yet" if published is None else f"version {published.number}"
        loss = "-" if meter.loss is None else f"{meter.loss:.4f}"
        text = f"loss {loss}, {meter.steps_per_second:.0f} steps/s, published {version}"
        if not self._console.is_terminal:
            _log.info("step %d, %s", meter.step, text)
            return
        if self._bar is None:
            columns = (TextColumn("step {task.fields[step]:>8,}"), BarColumn(), TextColumn("{task.fields[text]}"))
            self._bar = Progress(*columns, console=self._console, refresh_per_second=5)
            self._task = self._bar.add_task("training", total=out_of, step=meter.step, text=text)
            self._bar.start()
        done = meter.step if meter.step <= out_of else meter.step % out_of
        self._bar.update(self._task, completed=done, step=meter.step, text=text)

    def close(self) -> None:
        """Leave the bar where it is."""
        if self._bar is not None:
            self._bar.stop()
