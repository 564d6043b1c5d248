"""Formats of times, sizes, messages and tables: words for people, JSON for programs."""

from __future__ import annotations

import math
import shutil
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from paramsync.host import files

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from paramsync.moments import Move

_UNBOUNDED = 1 << 20  # columns, more than any line has
_MANY = 512 << 20  # for fewer bytes there is no progress bar, because reading them is fast
NOTHING = "–"  # noqa: RUF001, shown for an absent value


def console(*, stderr: bool = False) -> Console:
    """Return the output for people. Text is never read as markup. In a file or pipe, lines are not wrapped or cut."""
    from rich.console import Console, ConsoleDimensions

    made = Console(stderr=stderr, markup=False, highlight=False, emoji=False)
    if not made.is_terminal:
        made.width = _UNBOUNDED
    elif made.is_dumb_terminal:  # rich assumes 80 columns
        made.size = ConsoleDimensions(*shutil.get_terminal_size())
    return made


def table(*columns: str, right: Collection[str] = (), whole: Collection[str] = ()) -> Table:
    """Return a table without ruled lines. Long texts wrap, except in `whole` columns. `right` columns align right."""
    from rich.table import Table

    made = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    for column in columns:
        made.add_column(
            column, justify="right" if column in right else "left", overflow="fold", no_wrap=column in whole
        )
    return made


def redraws(screen: Console) -> bool:
    """Whether the screen is a terminal that can redraw."""
    return screen.is_terminal and not screen.is_dumb_terminal


@contextmanager
def progress(what: str, total: int) -> Iterator[Callable[[int], None]]:
    """Show a progress bar on a terminal if `total` bytes are many. Yields the function to call with the bytes done."""
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

    people = console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    with Progress(*columns, console=people, transient=True, disable=not redraws(people) or total < _MANY) as bar:
        task = bar.add_task(what, total=total)
        yield lambda done: bar.advance(task, done)


def from_then_on(move: Move | None) -> str:
    """Return a text that says from when on operators' choices apply; "" if they apply already."""
    if move is None or move.at <= time.time():
        return ""
    return f" from {time.strftime('%H:%M:%S', time.localtime(move.at))} on"


def duration(seconds: float) -> str:
    if seconds < 0.9995:
        return f"{seconds * 1000:.0f} ms"
    for limit, size, unit in ((120, 1, "s"), (7200, 60, "min"), (172_800, 3600, "h")):
        if seconds < limit:
            return f"{seconds / size:.1f} {unit}" if seconds < 10 else f"{seconds / size:.0f} {unit}"
    return f"{seconds / 86_400:.0f} d"


def ago(then: float, now: float) -> str:
    return f"{duration(max(0.0, now - then))} ago"


def size(count: int) -> str:
    """Return a number of bytes as text; a kilobyte is 1000 bytes."""
    value, unit = float(count), "B"
    for larger in ("kB", "MB", "GB", "TB"):
        if value < 999.5:
            break
        value, unit = value / 1000, larger
    return f"{value:.1f} {unit}" if value < 9.95 and unit != "B" else f"{value:.0f} {unit}"


def way(copied: Any) -> str:
    """Return how a version was copied to or from a bucket. `copied` has bytes, size, way and deltas."""
    deltas = f"{copied.deltas} delta{'' if copied.deltas == 1 else 's'}"
    by = f"as {deltas}" if copied.way == "delta" else f"whole, and {deltas}" if copied.deltas else "whole"
    return f"{by}, {size(copied.bytes)} of {size(copied.size)} ({share(copied.bytes / max(copied.size, 1))})"


def share(value: float | None) -> str:
    return NOTHING if value is None else f"{value:.1%}"


def signed(keys: Mapping[int, str | None]) -> Iterator[str]:
    """Yield a line for each signing key, with the versions that it signed. `keys` has the key of each version."""
    numbers: defaultdict[str, list[int]] = defaultdict(list)
    for number in sorted(keys, reverse=True):
        if (key := keys[number]) is not None:
            numbers[key].append(number)
    for key, some in numbers.items():
        which = "all" if len(some) == len(keys) else ", ".join(map(str, some))
        yield f"signed by key {key if key.isalnum() else files.shown(key)}: {which}"


def to_json(value: object) -> str:
    """Return one line of JSON. NaN and infinity become strings, because JSON has no such numbers."""
    import json  # here, because most output is not JSON

    return json.dumps(_numbers(value), allow_nan=False) + "\n"


def _numbers(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _numbers(element) for key, element in value.items()}
    if isinstance(value, (list, tuple)):
        return [_numbers(element) for element in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value
