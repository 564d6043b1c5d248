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

from paramsync import dtypes, files, layout
from paramsync.cli.versions import look
from paramsync.cli.wording import console, size, to_json
from paramsync.errors import CorruptCheckpointError, StoreError, UnknownVersionError
from paramsync.index import Entry, index_file
from paramsync.store import Store
from paramsync.version import Version

_MANY = 512 << 20  # bytes that take long enough to say how far it is


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One tensor. `problem` is None where its bytes are what its checksum says."""

    name: str
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
        layout.read_record(store.path, name)
        problem = f"{index_file(store.path / name)}: expected an index file, found no such file"
    except CorruptCheckpointError as error:
        problem = str(error)
    number = layout.number_of(name)
    return Verdict(number=number, step=number, problems=[problem], tensors=[])


def _verify(store: Store, version: Version) -> Verdict:
    """Raises UnknownVersionError where it was pruned, StoreError where it cannot be read."""
    problems = []
    findings: list[Finding] = []
    if version.graph and not store.graph_file(version.graph).is_file():
        problems.append(f"{store.graph_file(version.graph)}: expected the version's graph, found no such file")
    try:
        bundle = store.open(version, mapped=False)  # whoever cuts a file meanwhile ends nobody
    except CorruptCheckpointError as error:
        problems.append(str(error))
    else:
        total = sum(entry.size for entry in bundle.entries.values())
        with _progress(f"version {version.number}", total) as advance:
            wrong = bundle.faults(advance)
        findings = [_finding(name, bundle.entries[name], wrong.get(name)) for name in sorted(bundle.entries)]
    return Verdict(number=version.number, step=version.step, problems=problems, tensors=findings)


def _finding(name: str, entry: Entry, problem: CorruptCheckpointError | None) -> Finding:
    return Finding(
        name=name,
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
    with Progress(*columns, console=people, transient=True, disable=not people.is_terminal or total < _MANY) as bar:
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
    for one in findings:
        table.add_row(
            one.name if one.name.isprintable() else files.shown(one.name),
            one.dtype,
            str(one.shape),
            ", ".join(map(str, one.shards)),
            size(one.size),
            Text("wrong", "bold red") if one.problem else Text("ok", "green"),
        )
    return table
