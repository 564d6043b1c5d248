"""`paramsync graph`: shows a graph, writes it for TensorBoard, or puts the graph of a model into a store."""

from __future__ import annotations

import json
import platform
import struct
import subprocess
import sys
import time
from argparse import Namespace
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, BinaryIO

from crc32c import crc32c
from rich.console import Console
from rich.table import Table
from rich.text import Text

from paramsync.cli import formatting, graph_files, programs
from paramsync.cli.formatting import NOTHING, to_json
from paramsync.cli.graph_files import Outline, unsafe
from paramsync.cli.settings import environment_for_logs
from paramsync.errors import GraphError, SettingsError
from paramsync.graphdef.allowed_ops import STOCHASTIC
from paramsync.host import files
from paramsync.tensorbundle.sstable import mask
from paramsync.v1 import graph_def_pb2 as pb

_NAME_LIMIT = 200  # characters of a name in a table
_ENDS = 20  # how many possible results of a graph without signatures are shown
_EVENTS = "brain.Event:2"  # the version of event files
_PUBLISH = "trainer.graph_publish"
_WRONG_ARGUMENTS = 2


def run(arguments: Namespace) -> bool:
    if arguments.action == "publish":
        report, text = _publish(arguments.target, arguments.store, arguments.allow_ops)
    else:
        stored = graph_files.find(Path(arguments.source))
        graph = Outline(stored.graph_def, str(stored.path))
        if arguments.action == "tensorboard":
            report, text = _write(stored, Path(arguments.logdir))
        else:
            report, text = _described(stored, graph), None
    if arguments.json:
        sys.stdout.write(to_json(report))
    elif text is None:
        _show(formatting.console(), report)
    else:
        sys.stdout.write(text)
    return True


def _publish(target: str, store: str, allow_ops: Sequence[str]) -> tuple[dict[str, Any], str]:
    """Run `trainer.graph_publish` in another process, because the commands do not import TensorFlow."""
    programs.check_tensorflow()
    options = [f"--allow-op={op}" for op in allow_ops]
    done = subprocess.run(
        [sys.executable, "-m", programs.module(_PUBLISH), *options, "--", target, store],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        errors="replace",
        env=environment_for_logs(),
        check=False,
    )
    if done.returncode:
        _, ours, problem = done.stderr.rpartition(f"{_PUBLISH}: ")
        if not ours:
            problem = f"ended with exit code {done.returncode}: {done.stderr[-2000:]}"
        raise (SettingsError if done.returncode == _WRONG_ARGUMENTS else GraphError)(problem.strip())
    report = json.loads(done.stdout.splitlines()[-1])
    return report, f"graph {report['digest']} with {report['parameters']} parameters is in {report['path']}\n"


def _write(stored: graph_files.StoredGraph, directory: Path) -> tuple[dict[str, Any], str]:
    """Write an event file with the graph. The file gets its name once it is complete."""
    now = time.time()
    path = directory / f"events.out.tfevents.{now:.6f}.{platform.node()}.graph"
    try:
        directory.mkdir(parents=True, exist_ok=True)
        with files.aside(path) as file:
            _record(file, pb.EventRecord(wall_time=now, file_version=_EVENTS))
            _record(file, pb.EventRecord(wall_time=now, graph_def=stored.graph_def))
    except OSError as error:
        raise GraphError(f"{directory}: cannot be written: {error.strerror}") from error
    report = {"source": str(stored.path), "file": str(path), "bytes": path.stat().st_size}
    return report, f"{path} written; to look at it: tensorboard --logdir {directory}\n"


def _record(file: BinaryIO, event: pb.EventRecord) -> None:
    content = event.SerializeToString()
    for part in (struct.pack("<Q", len(content)), content):
        file.write(part)
        file.write(struct.pack("<I", mask(crc32c(part))))


def _described(stored: graph_files.StoredGraph, graph: Outline) -> dict[str, Any]:
    """Return the description of the graph, as JSON values."""
    ops = graph.ops()
    wanted = [spec.tensor or spec.name for signature in stored.signatures.values() for spec in signature.outputs]
    ends = [] if wanted else graph.ends()
    reached = graph.reached(wanted or ends)  # stochastic and unsafe ops matter only if an output needs them
    parameters = stored.parameters or [
        graph_files.parameter(variable) for variable in sorted(graph.variables, key=lambda variable: variable.name)
    ]
    sizes = [parameter.bytes for parameter in parameters]
    return {
        "source": str(stored.path),
        "kind": stored.kind,
        "digest": stored.digest,
        "signatures": {name: asdict(signature) for name, signature in stored.signatures.items()},
        "placeholders": [] if wanted else list(map(asdict, graph.placeholders)),
        "ends": ends,
        "parameters": list(map(asdict, parameters)),
        "parameter_bytes": None if None in sizes else sum(size for size in sizes if size is not None),
        "tables": list(map(asdict, stored.tables)),
        "nodes": ops.total(),
        "functions": graph.functions,
        "ops": dict(ops.most_common()),
        "stochastic": sorted(reached & STOCHASTIC),
        "unsafe": unsafe(reached),
    }


def _show(screen: Console, report: Mapping[str, Any]) -> None:
    functions = f", {report['functions']} functions" if report["functions"] else ""
    screen.print(
        f"{report['source']}: {report['kind']}, {report['nodes']} nodes{functions}", style="bold", soft_wrap=True
    )
    if report["digest"]:
        screen.print(f"digest {report['digest']}", soft_wrap=True)
    for table in _tables(report):
        screen.print()
        screen.print(table)
    if report["stochastic"] or report["unsafe"]:
        screen.print()
    if report["stochastic"]:
        listed = ", ".join(report["stochastic"])
        screen.print(f"other results in each call: {listed}", style="yellow", soft_wrap=True)
    if report["unsafe"]:
        listed = ", ".join(map(_shown, report["unsafe"]))
        screen.print(f"not on the list of safe ops: {listed}", style="red", soft_wrap=True)


def _tables(report: Mapping[str, Any]) -> Iterator[Table]:
    for name, signature in report["signatures"].items():
        yield _specs(_shown(name), [(side, spec) for side in ("inputs", "outputs") for spec in signature[side]])
    if report["placeholders"]:
        yield _specs("no signatures", [("placeholders", spec) for spec in report["placeholders"]])
    if report["ends"]:
        ends = formatting.table("ends: what depends on a placeholder, and nothing reads")
        for name in report["ends"][:_ENDS]:
            ends.add_row(_shown(name))
        if len(report["ends"]) > _ENDS:
            ends.add_row(f"and {len(report['ends']) - _ENDS} more", style="dim")
        yield ends
    if report["parameters"]:
        yield _parameters(report)
    if report["tables"]:
        lookups = formatting.table("table", "keys", "values", "entries", right=["entries"], whole=["entries"])
        for table in report["tables"]:
            lookups.add_row(_shown(table["node"]), table["keys"], table["values"], str(table["entries"]))
        yield lookups
    ops = formatting.table("op", "", "count", right=["count"], whole=["count"])
    for op, count in report["ops"].items():
        mark = ("not safe", "red") if op in report["unsafe"] else ("random", "yellow")
        is_marked = op in report["unsafe"] or op in report["stochastic"]
        ops.add_row(_shown(op), Text(*mark) if is_marked else "", str(count))
    yield ops


def _specs(title: str, rows: Sequence[tuple[str, Mapping[str, Any]]]) -> Table:
    table = formatting.table(title, "name", "dtype", "shape", "tensor")
    before = ""
    for side, spec in rows:
        tensor = NOTHING if spec["tensor"] is None else _shown(spec["tensor"])
        first = "" if side == before else side
        table.add_row(first, _shown(spec["name"]), spec["dtype"] or NOTHING, _shape(spec["shape"]), tensor)
        before = side
    return table


def _parameters(report: Mapping[str, Any]) -> Table:
    table = formatting.table("parameter", "dtype", "shape", "size", right=["size"], whole=["size"])
    parameters = report["parameters"]
    names = graph_files.shown_names((parameter["name"], parameter["variable"]) for parameter in parameters)
    for parameter in parameters:
        name, dtype = _shown(names[parameter["name"]]), parameter["dtype"] or NOTHING
        table.add_row(name, dtype, _shape(parameter["shape"]), _size(parameter["bytes"]))
    table.add_row(f"{len(parameters)} in all", "", "", _size(report["parameter_bytes"]), style="bold")
    return table


def _size(count: int | None) -> str:
    return NOTHING if count is None else formatting.size(count)


def _shape(shape: Sequence[int | None] | None) -> str:
    if shape is None:
        return "any"
    return f"[{', '.join('?' if size is None else str(size) for size in shape)}]"


def _shown(name: str) -> str:
    """Return a name, cut and escaped if it is too long or not printable."""
    return name if name.isprintable() and len(name) <= _NAME_LIMIT else files.shown(name)
