"""A table without lines that fits a terminal: columns leave, then names get lines of their own, then each fact does.

No text is cut. Columns that are called server and model are names of what a row is about; all others are facts.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from rich.cells import cell_len
from rich.console import RenderableType
from rich.padding import Padding
from rich.text import Text

from paramsync.cli.formatting import NOTHING, table

_GAP = "  "
_NAMES = ("server", "model")

Cells = Mapping[str, Text]
"""What a row says, by column; what goes over all further columns by the name ""."""


def fitted(rows: Sequence[Cells], width: int, *, dispensable: Sequence[str] = ()) -> Iterator[RenderableType]:
    """Rows as a table that is not wider than this, for which these give way, one after the other:

    1. columns that are `dispensable`, first the first;
    2. names, which go on a line of their own where they are too long;
    3. the table itself: a fact a line.
    """
    columns = list(dict.fromkeys(name for row in rows for name in row if name))
    for left_out in ("", *dispensable):
        columns = [name for name in columns if name != left_out]
        if _width(rows, columns) <= width:
            return _table(rows, columns, width)
    facts = [name for name in columns if name not in _NAMES]
    room = width - _width(rows, facts) - len(_GAP)
    if room >= len(_GAP.join(_names(columns))):
        return _table(rows, columns, width, room=room)
    return _below(rows)


def _names(columns: Sequence[str]) -> list[str]:
    return [name for name in columns if name in _NAMES]


def _width(rows: Sequence[Cells], columns: Sequence[str]) -> int:
    widest = (max(cell_len(name), *(_length(row, name) for row in rows)) for name in columns)
    return sum(widest) + len(_GAP) * max(0, len(columns) - 1)


def _length(row: Cells, name: str) -> int:
    return row[name].cell_len if name in row else len(NOTHING)


def _table(
    rows: Sequence[Cells], columns: Sequence[str], width: int, *, room: int | None = None
) -> Iterator[RenderableType]:
    """Names have so much room before the facts; longer ones a line of their own."""
    names, facts = _names(columns), [name for name in columns if name not in _NAMES]
    wide = {name: max(cell_len(name), *(_length(row, name) for row in rows)) for name in columns}
    if room is None:
        aligned = {name: wide[name] for name in names}
        room = _width(rows, names)
    else:
        aligned = dict.fromkeys(names, 0)
    for row in [{name: Text(name, "bold") for name in columns}, *rows]:
        title = Text(_GAP).join(_at(row.get(name, Text("")), aligned[name]) for name in names)
        title.rstrip()
        if title.cell_len > room:
            yield title
            title = Text("")
        if "" in row:
            yield from _hanging(title, row[""], indent=room + len(_GAP), width=width)
        else:
            cells = [_at(row.get(name, Text(NOTHING)), wide[name]) for name in facts]
            line = Text(_GAP).join([_at(title, room)] * bool(names) + cells)
            line.rstrip()
            yield line


def _at(text: Text, width: int) -> Text:
    padded = text.copy()
    padded.pad_right(max(0, width - text.cell_len))
    return padded


def _hanging(title: Text, text: Text, *, indent: int, width: int) -> Iterator[RenderableType]:
    """The text behind the title where that leaves room for it, else below."""
    if indent + text.cell_len <= width:
        yield Text.assemble(_at(title, indent), text)
    else:
        if title:
            yield title
        yield Padding(text, (0, 0, 0, len(_GAP)))


def _below(rows: Sequence[Cells]) -> Iterator[RenderableType]:
    for number, row in enumerate(rows):
        if number:
            yield Text("")
        facts = table(show_header=False)
        facts.add_column(style="bold", no_wrap=True)
        facts.add_column(overflow="fold")
        for name, text in row.items():
            facts.add_row(name, text)
        yield facts
