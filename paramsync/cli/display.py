"""How `paramsync up` shows a run: a picture that moves on a terminal, a line now and then elsewhere."""

from __future__ import annotations

import time
from collections.abc import Sequence
from types import TracebackType

import numpy as np
from rich.color import Color
from rich.columns import Columns
from rich.console import Console, Group, RenderableType
from rich.constrain import Constrain
from rich.live import Live
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.style import Style
from rich.table import Table
from rich.text import Text

from paramsync.cli.formatting import NOTHING, WIDE, duration, redraws, share
from paramsync.cli.observer import Example, Ledger, ObservedVersion
from paramsync.cli.overview import lag
from paramsync.v1 import sync_pb2 as pb

_LINE_SECONDS = 2.0
_ECHO = len("^C")  # columns left free: a terminal echoes Ctrl-C at the end, and a broken line moves the picture
_PICTURE_COLUMNS = 32  # a digit of 28 and its frame
_CHART_LINES = 3
_ROWS = 8


class UpScreen:
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

    def say(self, text: str) -> None:
        """A line that stays."""
        self._console.print(text, soft_wrap=True, highlight=False)

    def show(self, ledger: Ledger) -> None:
        if self._live is not None:
            width = self._console.width - _ECHO
            self._live.update(Constrain(self._picture(ledger, width), width), refresh=True)
        elif self._elapsed >= self._next_line:
            self._next_line = self._elapsed + _LINE_SECONDS
            self._console.print(line(ledger, elapsed=self._elapsed), soft_wrap=True)

    def _picture(self, ledger: Ledger, width: int) -> RenderableType:
        if width < WIDE:  # the line, broken between its parts only
            return Columns(_brief(ledger, self._elapsed), padding=(0, 2))
        shades = self._console.color_system is not None and not self._console.no_color
        return frame(ledger, elapsed=self._elapsed, store=self._store, width=width, shades=shades)

    def __enter__(self) -> UpScreen:
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


def frame(ledger: Ledger, *, elapsed: float, store: str, width: int, shades: bool) -> RenderableType:
    """22 lines, so that it stays whole in a terminal of 24."""
    left = width - _PICTURE_COLUMNS
    sides = Table.grid(padding=0)
    sides.add_column(width=left)
    sides.add_column(width=_PICTURE_COLUMNS)
    sides.add_row(Group(_versions(ledger), _predictions(ledger, left - 4)), _digit(ledger.example, shades))
    title = Text.assemble(("paramsync up", "bold"), f"  {store}")
    return Group(_apart(title, f"{elapsed:.0f} s  Ctrl-C ends"), _training(ledger.training), sides)


def line(ledger: Ledger, *, elapsed: float) -> str:
    """The same in one line."""
    return "  ".join(_brief(ledger, elapsed))


def _brief(ledger: Ledger, elapsed: float) -> list[str]:
    parts = [f"{elapsed:.0f} s"]
    if ledger.training is not None:
        parts += [f"step {ledger.training.step}", f"loss {_loss(ledger.training)}"]
        parts.append(f"{ledger.training.steps_per_second:.0f} steps/s")
    told = ledger.model or ledger.training  # of one look: between two there may be a version more
    if told is not None:
        parts.append(f"published {_number(told.published)}")
    if ledger.model is not None:
        parts += [f"serving {_number(ledger.model.serving)}", f"lag {lag(ledger.model)}"]
    return [*parts, f"accuracy {share(ledger.accuracy)}", f"failed {ledger.failed}"]


def _training(status: pb.PublisherStatus | None) -> RenderableType:
    if status is None:
        return _panel(Text("\n"), "trainer")
    if status.HasField("total_steps"):
        done, total, of = status.step, status.total_steps, "steps"
    else:
        total = max(1, status.steps_per_epoch)
        done, of = status.step % total, f"of epoch {status.step // total + 1}"
    bar = _apart(ProgressBar(total=total, completed=done), f"  {done}/{total} {of}")
    facts = _facts(
        step=str(status.step),
        loss=_loss(status),
        speed=f"{status.steps_per_second:.0f} steps/s",
        published=str(status.publishes),
        skipped=str(status.skipped),
    )
    title = f"trainer on {status.device}" if status.device else "trainer"
    return _panel(Group(bar, facts), title)


def _versions(ledger: Ledger) -> RenderableType:
    table = Table(box=None, pad_edge=False, expand=True, header_style="dim", padding=(0, 1, 0, 0))
    for column in ("version", "step", "published", "served", "accuracy"):
        table.add_column(column, justify="right", no_wrap=True)
    serving = ledger.model.serving.number if ledger.model is not None and ledger.model.HasField("serving") else None
    rows = ledger.newest(_ROWS)
    for seen in rows:
        table.add_row(*_cells(seen), style="bold green" if seen.number == serving else "")
    for _ in range(_ROWS - len(rows)):
        table.add_row("")
    behind = f"lag {lag(ledger.model)}" if ledger.model is not None else "lag"
    return _panel(table, "versions", behind)


def _cells(seen: ObservedVersion) -> tuple[str, ...]:
    version = seen.version
    return (
        str(seen.number),
        NOTHING if version is None else str(version.step),
        NOTHING if version is None else time.strftime("%H:%M:%S", time.localtime(version.committed_at)),
        NOTHING if seen.served_after is None else f"+{duration(seen.served_after)}",
        share(seen.accuracy),
    )


def _predictions(ledger: Ledger, width: int) -> RenderableType:
    failed = Text(f"failed {ledger.failed}", "bold red" if ledger.failed else "")
    accuracy = Text.assemble("accuracy ", (share(ledger.accuracy), "bold green"), "   ", failed)
    freshness = ledger.freshness()
    heading = _apart(accuracy, "" if freshness is None else f"fresh in {duration(freshness)}")
    bars = chart(ledger.accuracies, width=width, height=_CHART_LINES)
    return _panel(Group(heading, bars), "predictions", f"{ledger.rate(time.time()):.0f} requests/s")


def _digit(example: Example | None, shades: bool) -> RenderableType:
    if example is None:
        return _panel(Text("\n" * 14), "a held-out digit")
    right = example.predicted == example.label
    caption = Text(f"{example.predicted}: {'right' if right else f'wrong, it is {example.label}'}", "bold")
    caption.stylize("green" if right else "red")
    body = Group(picture(example.image, shades=shades), caption)
    return _panel(body, "a held-out digit", f"version {example.version}")


def _apart(left: RenderableType, right: str) -> Table:
    """Both on one line, at its ends."""
    line = Table.grid(expand=True)
    line.add_column(ratio=1, no_wrap=True, overflow="ellipsis")
    line.add_column(justify="right", no_wrap=True)
    line.add_row(left, right)
    return line


def _panel(body: RenderableType, title: str, subtitle: str = "") -> Panel:
    return Panel(
        body,
        title=Text(title),
        title_align="left",
        subtitle=Text(subtitle) if subtitle else None,
        subtitle_align="right",
        border_style="blue",
    )


def _facts(**facts: str) -> RenderableType:
    grid = Table.grid(expand=True)
    for _ in facts:
        grid.add_column(no_wrap=True)
    grid.add_row(*(Text.assemble((f"{name} ", "dim"), value) for name, value in facts.items()))
    return grid


def _loss(status: pb.PublisherStatus) -> str:
    return f"{status.loss:.4f}" if status.HasField("loss") else NOTHING


def _number(version: pb.Version) -> str:
    return str(version.number) if version.number or version.committed_at else NOTHING


_LEVELS = " ▁▂▃▄▅▆▇█"
_HALVES = {(False, False): " ", (True, False): "▀", (False, True): "▄", (True, True): "█"}
_GRAYS = 12  # more cannot be told apart, and fewer styles are quicker to draw


def picture(image: np.ndarray, *, shades: bool) -> Text:
    """A square picture of values in 0..1, two pixels above each other to a character; in black and white on demand."""
    side = int(image.size**0.5)
    pixels = image.reshape(side, side)
    lines = [_shaded(*pair) if shades else _outlined(*pair) for pair in zip(pixels[::2], pixels[1::2], strict=True)]
    return Text("\n").join(lines)


def chart(values: Sequence[float], *, width: int, height: int) -> Text:
    """Values in 0..1 as bars, oldest left. More values than columns: evenly picked, the last one always among them."""
    count = len(values)
    picked = values if count <= width else [values[(column + 1) * count // width - 1] for column in range(width)]
    steps = height * (len(_LEVELS) - 1)
    filled = [max(1, round(min(1.0, max(0.0, value)) * steps)) for value in picked]
    return Text("\n").join(Text(_bars(filled, floor=8 * row), "green") for row in reversed(range(height)))


def _bars(filled: Sequence[int], *, floor: int) -> str:
    return "".join(_LEVELS[min(8, max(0, value - floor))] for value in filled)


def _shaded(upper: np.ndarray, lower: np.ndarray) -> Text:
    line = Text()
    for above, below in zip(upper, lower, strict=True):
        line.append("▀", Style(color=_gray(above), bgcolor=_gray(below)))
    return line


def _outlined(upper: np.ndarray, lower: np.ndarray) -> Text:
    return Text(
        "".join(_HALVES[bool(above > 0.5), bool(below > 0.5)] for above, below in zip(upper, lower, strict=True))
    )


def _gray(value: float) -> Color:
    level = round(round(float(np.clip(value, 0, 1)) * _GRAYS) * 255 / _GRAYS)
    return Color.from_rgb(level, level, level)
