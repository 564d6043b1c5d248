"""How a run of `paramsync up` looks: a frame for a terminal, a line for everything else."""

from __future__ import annotations

import time
from collections.abc import Sequence

import numpy as np
from rich.color import Color
from rich.columns import Columns
from rich.console import Group, RenderableType
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.style import Style
from rich.table import Table
from rich.text import Text

from paramsync.cli.ledger import Example, Row, View
from paramsync.cli.status import lag
from paramsync.cli.wording import NOTHING, duration, share
from paramsync.v1 import sync_pb2 as pb

_PICTURE_COLUMNS = 32  # a digit of 28 and its frame
_CHART_LINES = 3


def frame(view: View, *, elapsed: float, store: str, width: int, shades: bool) -> RenderableType:
    """22 lines, so that it stays whole in a terminal of 24."""
    left = width - _PICTURE_COLUMNS
    sides = Table.grid(padding=0)
    sides.add_column(width=left)
    sides.add_column(width=_PICTURE_COLUMNS)
    sides.add_row(Group(_versions(view), _predictions(view, left - 4)), _digit(view.example, shades))
    return Group(_heading(elapsed, store), _training(view.training), sides)


def line(view: View, *, elapsed: float) -> str:
    """The same in one line."""
    return "  ".join(_brief(view, elapsed))


def few(view: View, *, elapsed: float) -> RenderableType:
    """That line for a terminal too narrow for the frame: broken between its parts only."""
    return Columns(_brief(view, elapsed), padding=(0, 2))


def _brief(view: View, elapsed: float) -> list[str]:
    parts = [f"{elapsed:.0f} s"]
    if view.training is not None:
        parts += [f"step {view.training.step}", f"loss {_loss(view.training)}"]
        parts += [f"{view.training.steps_per_second:.0f} steps/s", f"published {_number(view.training.published)}"]
    if view.model is not None:
        parts += [f"serving {_number(view.model.serving)}", f"lag {lag(view.model)}"]
    accuracy = view.accuracies[-1] if view.accuracies else None
    return [*parts, f"accuracy {share(accuracy)}", f"failed {view.failed}"]


def _heading(elapsed: float, store: str) -> RenderableType:
    heading = Table.grid(expand=True)
    heading.add_column(no_wrap=True, overflow="ellipsis")
    heading.add_column(justify="right", no_wrap=True)
    heading.add_row(Text.assemble(("paramsync up", "bold"), f"  {store}"), f"{elapsed:.0f} s  Ctrl-C ends")
    return heading


def _training(status: pb.PublisherStatus | None) -> RenderableType:
    if status is None:
        return _panel(Text("\n"), "trainer")
    if status.HasField("total_steps"):
        done, total, of = status.step, status.total_steps, "steps"
    else:
        total = max(1, status.steps_per_epoch)
        done, of = status.step % total, f"of epoch {status.step // total + 1}"
    bar = Table.grid(expand=True, padding=(0, 2, 0, 0))
    bar.add_column(ratio=1)
    bar.add_column(no_wrap=True)
    bar.add_row(ProgressBar(total=total, completed=done), f"{done}/{total} {of}")
    facts = _facts(
        step=str(status.step),
        loss=_loss(status),
        speed=f"{status.steps_per_second:.0f} steps/s",
        published=str(status.publishes),
        skipped=str(status.skipped),
    )
    title = f"trainer on {status.device}" if status.device else "trainer"
    return _panel(Group(bar, facts), title)


def _versions(view: View) -> RenderableType:
    table = Table(box=None, pad_edge=False, expand=True, header_style="dim", padding=(0, 1, 0, 0))
    for column in ("version", "step", "published", "served", "accuracy"):
        table.add_column(column, justify="right", no_wrap=True)
    serving = view.model.serving.number if view.model is not None and view.model.HasField("serving") else None
    for row in view.rows:
        table.add_row(*_cells(row), style="bold green" if row.number == serving else "")
    for _ in range(8 - len(view.rows)):
        table.add_row("")
    behind = f"lag {lag(view.model)}" if view.model is not None else "lag"
    return _panel(table, "versions", behind)


def _cells(row: Row) -> tuple[str, ...]:
    return (
        str(row.number),
        NOTHING if row.step is None else str(row.step),
        NOTHING if row.published_at is None else time.strftime("%H:%M:%S", time.localtime(row.published_at)),
        NOTHING if row.served_after is None else f"+{duration(row.served_after)}",
        share(row.accuracy),
    )


def _predictions(view: View, width: int) -> RenderableType:
    accuracy = view.accuracies[-1] if view.accuracies else None
    failed = Text(f"failed {view.failed}", "bold red" if view.failed else "")
    heading = Table.grid(expand=True)
    heading.add_column(no_wrap=True)
    heading.add_column(justify="right", no_wrap=True)
    heading.add_row(
        Text.assemble("accuracy ", (share(accuracy), "bold green"), "   ", failed),
        "" if view.freshness is None else f"fresh in {duration(view.freshness)}",
    )
    bars = chart(view.accuracies, width=width, height=_CHART_LINES)
    return _panel(Group(heading, bars), "predictions", f"{view.rate:.0f} requests/s")


def _digit(example: Example | None, shades: bool) -> RenderableType:
    if example is None:
        return _panel(Text("\n" * 14), "a held-out digit")
    right = example.predicted == example.label
    caption = Text(f"{example.predicted}: {'right' if right else f'wrong, it is {example.label}'}", "bold")
    caption.stylize("green" if right else "red")
    body = Group(picture(example.image, shades=shades), caption)
    return _panel(body, "a held-out digit", f"version {example.version}")


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
