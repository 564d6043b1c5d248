"""Shows the progress of training: as a bar on a terminal, elsewhere as a log line every few seconds."""

from __future__ import annotations

import logging

from rich.console import Console
from rich.logging import RichHandler
from rich.progress import BarColumn, Progress, TaskID, TextColumn

from paramsync.program.process import start_logging
from paramsync.publishing.metrics import Meter
from paramsync.version import Version

_log = logging.getLogger("paramsync.trainer")


class TrainingScreen:
    """Only the thread that trains may use it. The thread calls `show` every `every` seconds."""

    def __init__(self, log_format: str = "text") -> None:
        self._log_format = log_format
        self._console = Console(stderr=True)
        self._bar: Progress | None = None
        self._task = TaskID(0)
        redraws = self._console.is_terminal and not self._console.is_dumb_terminal
        self._redraws = redraws and log_format == "text"
        self.every = 0.2 if self._redraws else 5.0

    def take_logs(self) -> None:
        """Start logging. On a terminal, log records are written above the bar."""
        if not self._redraws:
            start_logging(self._log_format)
            return
        handler = RichHandler(console=self._console, show_path=False)
        handler.setFormatter(logging.Formatter("%(message)s"))
        start_logging(handler=handler)

    def show(self, meter: Meter, published: Version | None, *, out_of: int | None) -> None:
        """Show the step. `out_of` is the number of all steps, or of the steps of an epoch; None if neither is known."""
        if not self._redraws:
            version = None if published is None else published.number
            _log.info("%s", _line(meter, published), extra={"step": meter.step, "version": version})
            return
        if self._bar is None:
            columns = (TextColumn("step {task.fields[step]:,}"), BarColumn(30), TextColumn("{task.fields[text]}"))
            self._bar = Progress(*columns, console=self._console, refresh_per_second=5)
            self._task = self._bar.add_task("training", total=out_of, step=meter.step, text="")
            self._bar.start()
        done = meter.step if out_of is None or meter.step <= out_of else meter.step % out_of
        self._bar.update(self._task, completed=done, step=meter.step, text=_words(meter, published))

    def close(self) -> None:
        """Stop drawing. The bar stays on the screen."""
        if self._bar is not None:
            self._bar.stop()


def _line(meter: Meter, published: Version | None) -> str:
    """Write every known value as `name=value`, so that programs can read the line."""
    parts = [f"step={meter.step}"]
    if meter.loss is not None:
        parts.append(f"loss={meter.loss:.6g}")
    parts.append(f"steps_per_second={meter.steps_per_second:.1f}")
    if published is not None:
        parts.append(f"version={published.number}")
    if meter.stall is not None:
        parts.append(f"stall_ms={meter.stall * 1000:.3f}")
    return " ".join(parts)


def _words(meter: Meter, published: Version | None) -> str:
    loss = "-" if meter.loss is None else f"{meter.loss:.4f}"
    version = "-" if published is None else str(published.number)
    stall = "-" if meter.stall is None else f"{meter.stall * 1000:.1f} ms"
    return f"loss {loss}  {meter.steps_per_second:.0f} steps/s  version {version}  stall {stall}"
