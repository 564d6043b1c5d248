"""`paramsync verify`: checks every checksum of a version, its values, graph and signature."""

from __future__ import annotations

import sys
from argparse import Namespace
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from google.protobuf.unknown_fields import UnknownFieldSet  # type: ignore[import-not-found]  # it has no types
from rich.console import Console
from rich.table import Table
from rich.text import Text

from paramsync import dtypes
from paramsync.cli import formatting, graph_files
from paramsync.cli.formatting import console, progress, size, to_json
from paramsync.cli.graph_files import parse
from paramsync.cli.versions import look
from paramsync.errors import (
    CorruptCheckpointError,
    GraphError,
    ParameterError,
    RemoteError,
    StoreError,
    UnknownVersionError,
    UnreadableError,
    UntrustedError,
)
from paramsync.host import files
from paramsync.remote.bucket import is_address
from paramsync.store.signing import TrustedKeys
from paramsync.store.store import Store, has_checksum, number_of, read_record
from paramsync.tensorbundle.index import Entry, index_file
from paramsync.v1 import graph_def_pb2, graph_pb2
from paramsync.version import Version


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorFinding:
    """The finding about one tensor. `variable` is the framework's name for it, if known.

    `problem` says what is wrong with the tensor's bytes, or that the tensor has a NaN or infinity; None for a sound
    tensor. If the graph can be read, only parameters of the graph must be finite.
    """

    name: str
    variable: str | None
    dtype: str
    shape: list[int]
    shards: list[int]
    size: int
    problem: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """The verdict on one version. `tensors` is empty if the version's files cannot be opened.

    `problems` are about the version's files, graph, signature and objects in a bucket, not about single tensors.
    `signed_by` is the trusted key that signed the version, if any.
    """

    number: int
    step: int
    signed_by: str | None
    problems: list[str]
    tensors: list[TensorFinding]

    @property
    def ok(self) -> bool:
        return not self.problems and not self.wrong

    @property
    def wrong(self) -> list[TensorFinding]:
        return [tensor for tensor in self.tensors if tensor.problem]


def run(arguments: Namespace) -> bool:
    """Return True if nothing is wrong."""
    if not is_address(arguments.store):
        return _run(arguments)
    from paramsync.cli.bucket import fetching  # here, because most stores are directories

    return fetching(_run, arguments)


def _run(arguments: Namespace) -> bool:
    screen = console()
    trust = TrustedKeys([Path(file) for file in arguments.trust]) if arguments.trust else None
    verdicts = []
    is_remote = is_address(arguments.store)
    for verdict in remote_verdicts(arguments, trust) if is_remote else _verdicts(arguments, trust):
        verdicts.append(verdict)
        if not arguments.json:
            _show(screen, verdict)
    if arguments.json:
        listed = [{"ok": verdict.ok, **asdict(verdict)} for verdict in verdicts]
        sys.stdout.write(
            to_json({"store": arguments.store, "ok": all(verdict.ok for verdict in verdicts), "versions": listed})
        )
    return all(verdict.ok for verdict in verdicts)


def _verdicts(arguments: Namespace, trust: TrustedKeys | None) -> Iterator[Verdict]:
    """Yield the verdicts on the requested versions of a local store."""
    store = Store(Path(arguments.store))
    name, versions, broken = look(store.path)
    if name is None:
        raise StoreError(store.path, "nothing is published there yet")
    if arguments.all:
        yield from (_broken(store, prefix) for prefix in broken)
        for version in versions:
            with suppress(UnknownVersionError):  # pruned since it was listed
                yield _verify(store, version, trust)
        return
    wanted = store.latest() if arguments.version is None else store.find(arguments.version)
    if wanted is not None:
        yield _verify(store, wanted, trust)


def remote_verdicts(arguments: Namespace, trust: TrustedKeys | None) -> Iterator[Verdict]:
    """Yield the verdicts on the requested versions of a bucket, fetched as a server would, by deltas if possible."""
    from paramsync.cli.bucket import fetch  # here, because most stores are directories
    from paramsync.remote.bucket import Bucket
    from paramsync.remote.excerpt import Excerpt, faults, find, objects_in, read_manifests
    from paramsync.remote.manifest import Edge, Whole

    bucket = Bucket(arguments.store)
    state = bucket.state()
    last = find(bucket, state, arguments.version)
    manifests = read_manifests(bucket, state.versions if arguments.all else [last])
    objects: dict[str, Whole | Edge | None] = dict.fromkeys(state.objects) if arguments.all else {}
    for manifest in manifests.values():
        objects |= {} if isinstance(manifest, str) else objects_in(manifest)
    faulty = faults(bucket, objects, [listed.number for listed in manifests])
    checked = set()  # whole versions that were fetched

    def still_named() -> list[str]:
        """Return the faults that no verdict has named yet, of objects that some version still needs."""
        needed = bucket.state().objects if faulty else {}
        return [fault for name, fault in faulty.items() if name in needed]

    with Excerpt(bucket) as excerpt:
        for listed, manifest in manifests.items():
            needed = () if isinstance(manifest, str) else manifest.objects()
            problems = [faulty[name] for name in needed if name in faulty]
            verdict = Verdict(number=listed.number, step=listed.number, signed_by=None, problems=[], tensors=[])
            try:
                done = fetch(excerpt, bucket, listed, manifest)
                problems += done.damages
                verdict = _verify(excerpt.store, done.version, trust)
                if not isinstance(manifest, str) and manifest.whole.name not in checked:
                    checked.add(manifest.whole.name)
                    if done.way == "delta":
                        with Excerpt(bucket) as other:  # also check the whole version, which new servers fetch
                            problems += fetch(other, bucket, listed, manifest).damages
            except RemoteError as error:
                problems.append(str(error))
            if problems and listed not in (state := bucket.state()).versions:
                if arguments.all:  # the publisher dropped the version meanwhile
                    continue
                find(bucket, state, listed.number)
            faulty = {name: fault for name, fault in faulty.items() if name not in needed}
            if listed == last:
                problems += still_named()
                faulty = {}
            yield replace(verdict, problems=[*problems, *verdict.problems])
    if rest := still_named():  # the publisher dropped `last` meanwhile: the version that is newest now has these faults
        number = find(bucket, bucket.state(), None).number
        yield Verdict(number=number, step=number, signed_by=None, problems=rest, tensors=[])


def _broken(store: Store, name: str) -> Verdict:
    try:
        read_record(store.path, name)
        problem = f"{index_file(store.path / name)}: expected an index file, found no such file"
    except (CorruptCheckpointError, UnreadableError) as error:
        problem = str(error)
    number = number_of(name)
    return Verdict(number=number, step=number, signed_by=None, problems=[problem], tensors=[])


def _verify(store: Store, version: Version, trust: TrustedKeys | None) -> Verdict:
    """Raises UnknownVersionError if the version was pruned, StoreError if it cannot be read."""
    problems = []
    findings: list[TensorFinding] = []
    signed_by = None
    if trust is not None:
        distrusted = _distrust(store, version, trust)
        problems += [distrusted] if distrusted else []
        signed_by = None if distrusted else version.signed_by
    if version.graph and (broken := _graph_problem(store.graph_file(version.graph), version.graph)):
        problems.append(broken)
    try:
        bundle = store.open(version, mapped=False)  # if a mapped file were truncated, this process would be killed
    except (CorruptCheckpointError, UnreadableError) as error:
        problems.append(str(error))
    else:
        total = sum(entry.size for entry in bundle.entries.values())
        with progress(f"version {version.number}", total) as advance:
            wrong = bundle.faults(advance, finite=True)
        variables = graph_files.variables_of(store, version)
        if variables:  # other tensors, such as an optimizer's, are not served and may be infinite
            wrong = {
                name: error
                for name, error in wrong.items()
                if name in variables or not isinstance(error, ParameterError)
            }
        findings = [
            _finding(name, bundle.entries[name], wrong.get(name), variables.get(name))
            for name in sorted(bundle.entries)
        ]
    return Verdict(number=version.number, step=version.step, signed_by=signed_by, problems=problems, tensors=findings)


def _distrust(store: Store, version: Version, trust: TrustedKeys) -> str | None:
    """Return why the version is not trusted; None if a trusted key signed it."""
    try:
        trust.check_record(version)
        if version.graph:
            path = store.graph_file(version.graph)
            trust.check_graph(version, files.content(path, limit=files.MAX_MESSAGE), path)
        bundle = store.open(version, mapped=False)
        with progress(f"digests of version {version.number}", version.bytes) as advance:
            trust.check_tensors(version, bundle, advance=advance)
    except UntrustedError as error:
        return str(error)
    except (OSError, CorruptCheckpointError, UnreadableError):
        return f"version {version.number} is not trusted: its files cannot be read"
    return None


def _graph_problem(path: Path, digest: str) -> str | None:
    """Return what is wrong with a graph file, if anything. Older publishers wrote graph files without a checksum."""
    try:
        content = files.content(path, limit=files.MAX_MESSAGE)
        file = parse(graph_def_pb2.GraphFile, content, str(path))
    except FileNotFoundError:
        return f"{path}: expected the version's graph, found no such file"
    except OSError as error:
        return str(files.unread(path, "the version's graph", error))
    except (CorruptCheckpointError, GraphError) as error:
        return str(error)
    others = {field.field_number for field in UnknownFieldSet(file)}
    known = {field.number for field in graph_pb2.Graph.DESCRIPTOR.fields}
    is_checked = graph_pb2.Graph.CHECKSUM_FIELD_NUMBER in others
    if not others <= known or (is_checked and not has_checksum(content)):
        return f"{path}: expected the version's graph as it was written, found one with another checksum"
    if file.digest != digest:
        return f"{path}: expected graph {digest}, found {files.shown(file.digest)}"
    return None


def _finding(name: str, entry: Entry, problem: Exception | None, variable: str | None) -> TensorFinding:
    return TensorFinding(
        name=name,
        variable=variable,
        dtype=dtypes.name(entry.dtype),
        shape=list(entry.shape),
        shards=sorted({piece.shard for piece in entry.pieces}),
        size=entry.size,
        problem=str(problem) if problem else None,
    )


def _show(screen: Console, verdict: Verdict) -> None:
    total = sum(tensor.size for tensor in verdict.tensors)
    tensors = f"{len(verdict.tensors)} tensors, {size(total)}"
    result = f"{len(verdict.wrong)} of {tensors} wrong" if verdict.wrong else tensors
    result += f", signed by key {verdict.signed_by}" if verdict.signed_by else ""
    headline = Text(f"version {verdict.number}, step {verdict.step}: {result}: ", "bold", end="")
    screen.print(headline + (Text("ok", "bold green") if verdict.ok else Text("not ok", "bold red")))
    if verdict.tensors:
        screen.print(_table(verdict.tensors))
    for problem in [*verdict.problems, *(tensor.problem for tensor in verdict.wrong if tensor.problem)]:
        screen.print(problem, style="red", soft_wrap=True)


def _table(findings: Sequence[TensorFinding]) -> Table:
    columns = ("tensor", "dtype", "shape", "shard", "size", "")
    table = formatting.table(*columns, right=("shard", "size"), whole=("dtype", "size", ""))
    names = graph_files.shown_names((finding.name, finding.variable) for finding in findings)
    for finding in findings:
        name = names[finding.name]
        table.add_row(
            name if name.isprintable() else files.shown(name),
            finding.dtype,
            str(finding.shape),
            ", ".join(map(str, finding.shards)),
            size(finding.size),
            Text("wrong", "bold red") if finding.problem else Text("ok", "green"),
        )
    return table
