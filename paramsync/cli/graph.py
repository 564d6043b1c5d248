"""`paramsync graph show` and `paramsync graph tensorboard`: what is in a graph, whatever holds it."""

from __future__ import annotations

import math
import platform
import struct
import sys
import time
from argparse import Namespace
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO

from crc32c import crc32c
from rich.console import Console
from rich.table import Table
from rich.text import Text

from paramsync import dtypes
from paramsync.cli import outline, sources
from paramsync.cli.wording import NOTHING, console, size, to_json
from paramsync.errors import GraphError
from paramsync.graphdef.allowed_ops import STOCHASTIC
from paramsync.host import files
from paramsync.tensorbundle.sstable import mask
from paramsync.v1 import graph_def_pb2 as pb

_NAME_LIMIT = 200  # characters of a name in a table
_ENDS = 20  # of a graph without signatures that are listed


def run(arguments: Namespace) -> bool:
    source = sources.find(Path(arguments.source))
    if arguments.action == "tensorboard":
        _write(source, Path(arguments.logdir), as_json=arguments.json)
        return True
    found = _described(source)
    if arguments.json:
        sys.stdout.write(to_json(found))
    else:
        _show(console(), found)
    return True


def _write(source: sources.Source, directory: Path, *, as_json: bool) -> None:
    try:
        file = write_graph(directory, bytes(source.graph_def), now=time.time(), host=platform.node())
    except OSError as error:
        raise GraphError(f"{directory}: cannot be written: {error.strerror}") from error
    if as_json:
        sys.stdout.write(to_json({"source": str(source.path), "file": str(file), "bytes": file.stat().st_size}))
    else:
        sys.stdout.write(f"{file} written; to look at it: tensorboard --logdir {directory}\n")


def _described(source: sources.Source) -> dict[str, Any]:
    """All that is shown, as JSON values."""
    found = source.outline
    ops = found.ops()
    wanted = [one.tensor or one.name for signature in source.signatures.values() for one in signature.outputs]
    ends = [] if wanted else found.ends()
    reached = found.reached(wanted or ends)  # what is said of ops is said of those that count when it predicts
    parameters = [_spec(one) | {"variable": one.variable, "bytes": _bytes(one)} for one in source.parameters]
    sizes = [one["bytes"] for one in parameters]
    return {
        "source": str(source.path),
        "kind": source.kind,
        "digest": source.digest,
        "signatures": {
            name: {"inputs": list(map(_spec, one.inputs)), "outputs": list(map(_spec, one.outputs))}
            for name, one in source.signatures.items()
        },
        "placeholders": [] if wanted else [_spec(sources.spec(one)) for one in found.placeholders],
        "ends": ends,
        "parameters": parameters,
        "parameter_bytes": None if None in sizes else sum(sizes),
        "tables": [_table(one) for one in source.tables],
        "nodes": ops.total(),
        "functions": found.functions,
        "ops": dict(ops.most_common()),
        "stochastic": sorted(reached & STOCHASTIC),
        "unsafe": outline.unsafe(reached),
    }


def _spec(one: sources.Spec) -> dict[str, Any]:
    shape = None if one.shape is None else list(one.shape)
    return {"name": one.name, "dtype": _dtype(one.dtype), "shape": shape, "tensor": one.tensor}


def _table(one: sources.Table) -> dict[str, Any]:
    entries = one.keys.shape[0] if one.keys.shape else None
    return {"node": one.node, "keys": _dtype(one.keys.dtype), "values": _dtype(one.values.dtype), "entries": entries}


def _dtype(number: int | None) -> str | None:
    return None if number is None else dtypes.name(number)


def _bytes(one: sources.Spec) -> int | None:
    """None where the dtype or the shape leaves it open."""
    dtype = None if one.dtype is None else dtypes.to_numpy(one.dtype)
    if dtype is None or dtype.kind == "O" or one.shape is None:
        return None
    known = [each for each in one.shape if each is not None]
    return math.prod(known) * dtype.itemsize if len(known) == len(one.shape) else None


def _show(screen: Console, found: Mapping[str, Any]) -> None:
    functions = f", {found['functions']} functions" if found["functions"] else ""
    screen.print(f"{found['source']}: {found['kind']}, {found['nodes']} nodes{functions}", style="bold", soft_wrap=True)
    if found["digest"]:
        screen.print(f"digest {found['digest']}", soft_wrap=True)
    for table in _tables(found):
        screen.print()
        screen.print(table)
    if found["stochastic"] or found["unsafe"]:
        screen.print()
    if found["stochastic"]:
        listed = ", ".join(found["stochastic"])
        screen.print(f"other results in each call: {listed}", style="yellow", soft_wrap=True)
    if found["unsafe"]:
        listed = ", ".join(map(_plain, found["unsafe"]))
        screen.print(f"not on the list of safe ops: {listed}", style="red", soft_wrap=True)


def _tables(found: Mapping[str, Any]) -> Iterator[Table]:
    for name, signature in found["signatures"].items():
        yield _specs(_plain(name), [(kind, one) for kind in ("inputs", "outputs") for one in signature[kind]])
    if found["placeholders"]:
        yield _specs("no signatures", [("placeholders", one) for one in found["placeholders"]])
    if found["ends"]:
        yield _ends(found["ends"])
    if found["parameters"]:
        yield _parameters(found)
    if found["tables"]:
        yield _lookups(found["tables"])
    yield _ops(found)


def _grid(*columns: str, numbers: int = 0) -> Table:
    """A table whose last columns are of numbers."""
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    for at, column in enumerate(columns):
        number = at >= len(columns) - numbers
        table.add_column(column, justify="right" if number else "left", overflow="fold", no_wrap=number)
    return table


def _specs(title: str, rows: Sequence[tuple[str, Mapping[str, Any]]]) -> Table:
    table = _grid(title, "name", "dtype", "shape", "tensor")
    before = ""
    for kind, one in rows:
        tensor = NOTHING if one["tensor"] is None else _plain(one["tensor"])
        table.add_row("" if kind == before else kind, _plain(one["name"]), _type(one), _shape(one["shape"]), tensor)
        before = kind
    return table


def _ends(names: Sequence[str]) -> Table:
    table = _grid("ends: what depends on a placeholder, and nothing reads")
    for one in names[:_ENDS]:
        table.add_row(_plain(one))
    if len(names) > _ENDS:
        table.add_row(f"and {len(names) - _ENDS} more", style="dim")
    return table


def _parameters(found: Mapping[str, Any]) -> Table:
    table = _grid("parameter", "dtype", "shape", "size", numbers=1)
    called = sources.called((one["name"], one["variable"]) for one in found["parameters"])
    for one in found["parameters"]:
        table.add_row(_plain(called[one["name"]]), _type(one), _shape(one["shape"]), _size(one["bytes"]))
    count = len(found["parameters"])
    table.add_row(f"{count} in all", "", "", _size(found["parameter_bytes"]), style="bold")
    return table


def _lookups(tables: Sequence[Mapping[str, Any]]) -> Table:
    table = _grid("table", "keys", "values", "entries", numbers=1)
    for one in tables:
        table.add_row(_plain(one["node"]), one["keys"], one["values"], str(one["entries"]))
    return table


def _ops(found: Mapping[str, Any]) -> Table:
    table = _grid("op", "", "count", numbers=1)
    for op, count in found["ops"].items():
        mark = ("not safe", "red") if op in found["unsafe"] else ("random", "yellow")
        marked = op in found["unsafe"] or op in found["stochastic"]
        table.add_row(_plain(op), Text(*mark) if marked else "", str(count))
    return table


def _type(one: Mapping[str, Any]) -> str:
    return one["dtype"] or NOTHING


def _size(count: int | None) -> str:
    return NOTHING if count is None else size(count)


def _shape(shape: Sequence[int | None] | None) -> str:
    if shape is None:
        return "any"
    return f"[{', '.join('?' if each is None else str(each) for each in shape)}]"


def _plain(name: str) -> str:
    """A name as it is, or what can be shown of it."""
    return name if name.isprintable() and len(name) <= _NAME_LIMIT else files.shown(name)


_VERSION = "brain.Event:2"


def write_graph(directory: Path, graph_def: bytes, *, now: float, host: str) -> Path:
    """Makes an event file with that graph, and the directory where it is not there. Raises OSError.

    The file has its name once it is complete.
    """
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / f"events.out.tfevents.{now:.6f}.{host}.graph"
    with files.aside(path) as file:
        _record(file, pb.EventRecord(wall_time=now, file_version=_VERSION))
        _record(file, pb.EventRecord(wall_time=now, graph_def=graph_def))
    return path


def _record(file: BinaryIO, event: pb.EventRecord) -> None:
    content = event.SerializeToString()
    length = struct.pack("<Q", len(content))
    for part in (length, content):
        file.write(part)
        file.write(struct.pack("<I", mask(crc32c(part))))
