"""`paramsync verify`: computes every checksum of a version again, and says what is wrong."""

from __future__ import annotations

import sys
from argparse import Namespace
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn
from rich.table import Table
from rich.text import Text

from paramsync import dtypes
from paramsync.cli import fields, sources
from paramsync.cli.versions import look
from paramsync.cli.wording import console, redraws, size, to_json
from paramsync.errors import CorruptCheckpointError, GraphError, StoreError, UnknownVersionError, UnreadableError
from paramsync.host import files
from paramsync.store.store import Store, is_sealed, number_of, read_record
from paramsync.tensorbundle.index import Entry, index_file
from paramsync.v1 import graph_pb2
from paramsync.version import Version

_MANY = 512 << 20  # bytes that take long enough to say how far it is


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One tensor. `problem` is None where its bytes are what its checksum says, `variable` where nobody says."""

    name: str
    variable: str | None
    dtype: str
    shape: list[int]
    shards: list[int]
    size: int
    problem: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """One version. `problems` are of its files as a whole: where there are any, no tensor may have been looked at."""

    number: int
    step: int
    problems: list[str]
    tensors: list[Finding]

    @property
    def ok(self) -> bool:
        return not self.problems and not self.wrong

    @property
    def wrong(self) -> list[Finding]:
        return [one for one in self.tensors if one.problem]


def run(arguments: Namespace) -> bool:
    """True where nothing is wrong."""
    path = Path(arguments.store)
    store = Store(path)
    screen = console()
    verdicts = []
    for verdict in _verdicts(store, arguments):
        verdicts.append(verdict)
        if not arguments.json:
            _show(screen, verdict)
    if arguments.json:
        listed = [{"ok": verdict.ok, **asdict(verdict)} for verdict in verdicts]
        sys.stdout.write(to_json({"store": str(path), "ok": all(one.ok for one in verdicts), "versions": listed}))
    return all(one.ok for one in verdicts)


def _verdicts(store: Store, arguments: Namespace) -> Iterator[Verdict]:
    """What was asked for, one version after the other."""
    name, versions, broken = look(store.path)
    if name is None:
        raise StoreError(store.path, "nothing is published there yet")
    if arguments.all:
        yield from (_broken(store, one) for one in broken)
        for version in versions:
            with suppress(UnknownVersionError):  # pruned since it was listed
                yield _verify(store, version)
        return
    asked = store.latest() if arguments.version is None else store.find(arguments.version)
    if asked is not None:
        yield _verify(store, asked)


def _broken(store: Store, name: str) -> Verdict:
    try:
        read_record(store.path, name)
        problem = f"{index_file(store.path / name)}: expected an index file, found no such file"
    except (CorruptCheckpointError, UnreadableError) as error:
        problem = str(error)
    number = number_of(name)
    return Verdict(number=number, step=number, problems=[problem], tensors=[])


def _verify(store: Store, version: Version) -> Verdict:
    """Raises UnknownVersionError where it was pruned, StoreError where it cannot be read."""
    problems = []
    findings: list[Finding] = []
    if version.graph and (broken := _graph_problem(store.graph_file(version.graph), version.graph)):
        problems.append(broken)
    try:
        bundle = store.open(version, mapped=False)  # whoever cuts a file meanwhile ends nobody
    except (CorruptCheckpointError, UnreadableError) as error:
        problems.append(str(error))
    else:
        total = sum(entry.size for entry in bundle.entries.values())
        with _progress(f"version {version.number}", total) as advance:
            wrong = bundle.faults(advance)
        variables = _variables(store, version)
        findings = [
            _finding(name, bundle.entries[name], wrong.get(name), variables.get(name))
            for name in sorted(bundle.entries)
        ]
    return Verdict(number=version.number, step=version.step, problems=problems, tensors=findings)


def _graph_problem(path: Path, digest: str) -> str | None:
    """What is wrong with a graph file, which is not built for that; one without a checksum is of an older publisher."""
    try:
        content = files.content(path, limit=files.MAX_MESSAGE)
        known = {field.number for field in graph_pb2.Graph.DESCRIPTOR.fields}
        strange = fields.numbers(memoryview(content), str(path)) - known
        said = bytes(fields.last(memoryview(content), graph_pb2.Graph.DIGEST_FIELD_NUMBER, str(path)))
        has_checksum = fields.last(memoryview(content), graph_pb2.Graph.CHECKSUM_FIELD_NUMBER, str(path))
    except FileNotFoundError:
        return f"{path}: expected the version's graph, found no such file"
    except OSError as error:
        return str(files.unread(path, "the version's graph", error))
    except (CorruptCheckpointError, GraphError) as error:
        return str(error)
    if strange or (has_checksum and not is_sealed(content)):
        return f"{path}: expected the version's graph as it was written, found one with another checksum"
    if said != digest.encode():
        return f"{path}: expected graph {digest}, found {files.shown(said.decode(errors='replace'))}"
    return None


def _variables(store: Store, version: Version) -> dict[str, str | None]:
    """What the framework calls the variables, by parameter; nothing where the graph cannot be read, which is told."""
    if not version.graph:
        return {}
    path = store.graph_file(version.graph)
    try:
        return sources.variables(memoryview(files.content(path, limit=files.MAX_MESSAGE)), str(path))
    except (OSError, CorruptCheckpointError, GraphError):
        return {}


def _finding(name: str, entry: Entry, problem: Exception | None, variable: str | None) -> Finding:
    return Finding(
        name=name,
        variable=variable,
        dtype=dtypes.name(entry.dtype),
        shape=list(entry.shape),
        shards=sorted({piece.shard for piece in entry.pieces}),
        size=entry.size,
        problem=str(problem) if problem else None,
    )


@contextmanager
def _progress(what: str, total: int) -> Iterator[Callable[[int], None]]:
    """A bar for what takes time, where a person is watching; gone when it is done."""
    people = console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    with Progress(*columns, console=people, transient=True, disable=not redraws(people) or total < _MANY) as bar:
        task = bar.add_task(what, total=total)
        yield lambda done: bar.advance(task, done)


def _show(screen: Console, verdict: Verdict) -> None:
    total = sum(one.size for one in verdict.tensors)
    found = f"{len(verdict.tensors)} tensors, {size(total)}"
    said = f"{len(verdict.wrong)} of {found} wrong" if verdict.wrong else found
    headline = Text(f"version {verdict.number}, step {verdict.step}: {said}: ", "bold", end="")
    screen.print(headline + (Text("ok", "bold green") if verdict.ok else Text("not ok", "bold red")))
    if verdict.tensors:
        screen.print(_table(verdict.tensors))
    for problem in [*verdict.problems, *(one.problem for one in verdict.wrong if one.problem)]:
        screen.print(problem, style="red", soft_wrap=True)


def _table(findings: Sequence[Finding]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    table.add_column("tensor", overflow="fold")
    table.add_column("dtype", no_wrap=True)
    table.add_column("shape", overflow="fold")
    table.add_column("shard", justify="right", overflow="fold")
    table.add_column("size", justify="right", no_wrap=True)
    table.add_column("", no_wrap=True)
    called = sources.called((one.name, one.variable) for one in findings)
    for one in findings:
        name = called[one.name]
        table.add_row(
            name if name.isprintable() else files.shown(name),
            one.dtype,
            str(one.shape),
            ", ".join(map(str, one.shards)),
            size(one.size),
            Text("wrong", "bold red") if one.problem else Text("ok", "green"),
        )
    return table
