"""`paramsync versions` and `status` for the address of a bucket, and functions that other commands share."""

from __future__ import annotations

import sys
import time
from argparse import Namespace
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field

from rich.table import Table
from rich.text import Text

from paramsync.cli import formatting
from paramsync.cli.formatting import NOTHING, ago, console, duration, from_then_on, progress, size, to_json
from paramsync.cli.live import Polled, show
from paramsync.cli.process import interruptible
from paramsync.errors import RemoteError, SettingsError
from paramsync.host import files
from paramsync.remote.bucket import Bucket, asked_once
from paramsync.remote.excerpt import Excerpt, read_manifests, remove_all
from paramsync.remote.manifest import Edge, Manifest, Whole
from paramsync.remote.state import Listed, State
from paramsync.remote.transfer import Transfer
from paramsync.version import Version

_POLL_SECONDS = 2.0  # the time between two polls of --watch


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteRow:
    """One version in a bucket.

    `bytes` is the size of its tensors. `whole_bytes` is the size of the object with all its tensors; None without such
    an object. `bases` are the versions from which deltas lead to this version; `delta_bytes` is the size of these
    deltas. `marks` are "newest", "pinned", and its labels.
    """

    number: int
    step: int
    committed_at: float | None
    bytes: int
    whole_bytes: int | None
    bases: list[int]
    delta_bytes: int
    marks: list[str]
    signed_by: str | None

    @property
    def way(self) -> str:
        bases = f"delta from {', '.join(map(str, self.bases))}" if self.bases else ""
        return " and ".join(filter(None, ["" if self.whole_bytes is None else "whole", bases])) or NOTHING


@dataclass(frozen=True, slots=True, kw_only=True)
class Contents:
    """The contents of a bucket.

    `broken` says what is wrong with manifests. `committed_at` is when the newest version was written.
    """

    state: State
    rows: list[RemoteRow]
    broken: list[str]
    bytes: int
    deltas: list[Edge]
    committed_at: float | None


@dataclass(slots=True)
class Look:
    """Reads the contents of a bucket. A manifest that was read is not read again, because manifests never change."""

    bucket: Bucket
    _manifests: dict[Listed, Manifest | str] = field(default_factory=dict)

    def run_once(self) -> Contents:
        """Read the state and new manifests. Raises RemoteError if there is no readable state or no answer."""
        state = self.bucket.state()
        new = [listed for listed in state.versions if isinstance(self._manifests.get(listed, ""), str)]
        known = self._manifests | read_manifests(self.bucket, new)
        self._manifests = {listed: known[listed] for listed in state.versions}
        versions, broken = [], []
        wholes: dict[int, Whole] = {}
        deltas: dict[str, Edge] = {}
        for listed, manifest in self._manifests.items():
            if isinstance(manifest, str):
                broken.append(manifest)
                continue
            try:
                versions.append((listed.number, manifest.version()))
            except RemoteError as error:
                broken.append(f"{listed.manifest}: {error}")
                continue
            deltas |= {edge.name: edge for edge in manifest.edges}
            wholes[manifest.whole.number] = manifest.whole
        rows = [_row(number, version, state, wholes.get(number), deltas.values()) for number, version in versions]
        total = sum(whole.size for whole in wholes.values()) + sum(edge.size for edge in deltas.values())
        return Contents(
            state=state,
            rows=rows,
            broken=broken,
            bytes=total,
            deltas=list(deltas.values()),
            committed_at=self._committed_at(state),
        )

    def _committed_at(self, state: State) -> float | None:
        """Return when the newest version was written, by the bucket server's clock."""
        if state.newest is None:
            return None
        try:
            with asked_once():
                return self.bucket.head(state.newest.manifest).written_at
        except FileNotFoundError:
            return None


def fetch(excerpt: Excerpt, bucket: Bucket, listed: Listed, manifest: Manifest | str) -> Transfer:
    """Fetch a version with a progress bar. Raises RemoteError if it, or its manifest, is damaged."""
    if isinstance(manifest, str):
        raise RemoteError(manifest)
    with progress(f"fetching version {listed.number}", manifest.whole.size) as bucket.received:
        return excerpt.fetch(listed)


def fetching(run: Callable[[Namespace], bool], arguments: Namespace) -> bool:
    """Run a command that fetches versions, and leave no files behind on Ctrl-C."""
    try:
        return interruptible(lambda: run(arguments))
    except KeyboardInterrupt:
        remove_all()
        raise


def versions(arguments: Namespace) -> bool:
    """Return True if the manifest of every version can be read."""
    bucket = Bucket(arguments.store)
    contents = interruptible(Look(bucket).run_once)
    rows, broken = contents.rows, contents.broken
    if arguments.json:
        facts = {"address": bucket.address, "bytes": contents.bytes, "versions": [asdict(row) for row in rows]}
        sys.stdout.write(to_json(facts | {"broken": broken}))
        return not broken
    screen = console()
    count = f"{len(rows)} version{'' if len(rows) == 1 else 's'}" if rows or broken else "nothing published yet"
    screen.print(f"{bucket.address}: {count}, {size(contents.bytes)} in the bucket", style="bold", soft_wrap=True)
    if rows:
        screen.print(_table(rows, time.time()))
        for line in formatting.signed({row.number: row.signed_by for row in rows}):
            screen.print(line)
    for problem in broken:
        screen.print(problem, style="red", soft_wrap=True)
    return not broken


def status(arguments: Namespace) -> bool:
    """Return True if the manifest of every version can be read."""
    for option in ("check", "trainer"):
        if getattr(arguments, option):
            raise SettingsError(f"--{option}: expected --server with it, or the name of a model, not an address")
    watch = watch_of(arguments.model)
    if arguments.watch:
        show(watch, [watch.polled], seconds=_POLL_SECONDS / 4, json=arguments.json)
    interruptible(watch.polled.run_once)
    if (error := watch.polled.last.error) is not None:
        raise error
    if arguments.json:
        sys.stdout.write(to_json(watch.facts()))
    else:
        console().print(watch.drawn())
    return not watch.broken


def watch_of(address: str) -> Watch:
    bucket = Bucket(address)
    return Watch(bucket.address, Polled(Look(bucket).run_once, _POLL_SECONDS))


@dataclass(slots=True)
class Watch:
    """The view of `--watch`. It has new lines and objects if the bucket changed, or stopped or started answering."""

    address: str
    polled: Polled[Contents]
    _said: object = None

    @property
    def broken(self) -> bool:
        answer = self.polled.last.answer
        return answer is not None and bool(answer.broken)

    def facts(self) -> dict[str, object] | None:
        """Return the last answer as JSON values; None if there is no answer, or the bucket has stopped answering."""
        last = self.polled.last
        return None if last.answer is None or last.error is not None else _facts(self.address, last.answer)

    def drawn(self) -> Table | Text:
        last = self.polled.last
        if last.answer is None:
            return Text(f"{last.error}", "bold red")
        view = _view(self.address, last.answer)
        if last.error is not None:
            view.add_row("lost", Text(files.line(str(last.error)), "bold red"))
        return view

    def lines(self) -> Iterator[str]:
        for facts in self.objects():
            contents = self.polled.last.answer
            error = str(facts.get("error", "")).removeprefix(f"{self.address}: ")
            text = error if error or contents is None else _sentence(contents)
            yield f"{time.strftime('%H:%M:%S')} {self.address}: {text}"

    def objects(self) -> Iterator[dict[str, object]]:
        last = self.polled.last
        facts = self.facts() or {"error": str(last.error)}
        if facts != self._said:
            self._said = facts
            yield facts


def _sentence(contents: Contents) -> str:
    newest = contents.state.newest
    text = "nothing published yet" if newest is None else f"version {newest.number} is the newest"
    return "; ".join([text, *_chosen(contents.state), *contents.broken])


def _chosen(state: State) -> list[str]:
    copied = [f"the bucket that is copied here: {text}" for text in _choices(state.of_source)]
    return [*_choices(state), *copied]


def _choices(state: State) -> list[str]:
    then, pinned = from_then_on(state.move), state.pinned
    what = "follow the newest version" if pinned is None else f"serve version {pinned}, pinned"
    chosen = [] if pinned is None and not then else [f"all followers {what}{then}"]
    return [*chosen, *(f"{label} is version {number}" for label, number in sorted(state.labels.items()))]


def _row(number: int, version: Version, state: State, whole: Whole | None, deltas: Iterable[Edge]) -> RemoteRow:
    """Return the row of a version.

    `whole` and `deltas` may come from later manifests, because long deltas and whole objects are sent after a version.
    """
    newest = state.newest
    marks = ["newest"] if newest is not None and newest.number == number else []
    marks += ["pinned"] if state.pinned == number else []
    marks += sorted(label for label, labelled in state.labels.items() if labelled == number)
    leading = [edge for edge in deltas if edge.number == number]
    return RemoteRow(
        number=number,
        step=version.step,
        committed_at=version.committed_at,
        bytes=version.bytes,
        whole_bytes=None if whole is None else whole.size,
        bases=sorted([edge.base for edge in leading], reverse=True),
        delta_bytes=sum(edge.size for edge in leading),
        marks=marks,
        signed_by=version.signed_by or None,
    )


def _table(rows: Sequence[RemoteRow], now: float) -> Table:
    numbers = ("version", "step", "age", "size", "sent")
    table = formatting.table(*numbers, "kept", "", right=numbers)
    for row in reversed(rows):
        table.add_row(
            str(row.number),
            str(row.step),
            NOTHING if row.committed_at is None else duration(max(0.0, now - row.committed_at)),
            size(row.bytes),
            size((row.whole_bytes or 0) + row.delta_bytes),
            row.way,
            Text(", ".join(row.marks), "bold green"),
        )
    return table


def _facts(address: str, contents: Contents) -> dict[str, object]:
    state = contents.state
    newest = next((asdict(row) for row in contents.rows if state.newest and row.number == state.newest.number), None)
    return {
        "address": address,
        "run": state.run,
        "epoch": state.epoch,
        "newest": newest,
        "newest_written_at": contents.committed_at,
        "pinned": state.pinned,
        "serve_at": None if state.move is None else state.move.at,
        "labels": dict(state.labels),
        "source": _source(state.of_source) if "source" in state.choices else None,
        "versions": len(state.versions),
        "bytes": contents.bytes,
        "deltas": len(contents.deltas),
        "delta_bytes": sum(edge.size for edge in contents.deltas),
        "condemned": len(state.condemned),
        "broken": contents.broken,
    }


def _source(state: State) -> dict[str, object]:
    serve_at = None if state.move is None else state.move.at
    return {"pinned": state.pinned, "serve_at": serve_at, "labels": dict(state.labels)}


def _view(address: str, contents: Contents) -> Table:
    view = Table(box=None, pad_edge=False, show_header=False, padding=(0, 2, 0, 0))
    view.add_row("bucket", Text(address, "bold", overflow="fold"))
    for name, text in _lines(contents, time.time()):
        view.add_row(name, Text(text, overflow="fold"))
    for problem in contents.broken:
        view.add_row("broken", Text(files.line(problem), "red"))
    return view


def _lines(contents: Contents, now: float) -> Iterator[tuple[str, str]]:
    state, deltas = contents.state, contents.deltas
    if state.newest is None:
        yield "newest", "nothing published yet"
    else:
        step = next((f", step {row.step}" for row in contents.rows if row.number == state.newest.number), "")
        age = "" if contents.committed_at is None else f", came {ago(contents.committed_at, now)}"
        yield "newest", f"version {state.newest.number}{step}{age}"
    yield "chosen", "; ".join(_chosen(state)) or "nothing: all followers serve the newest version"
    yield "publisher", f"epoch {state.epoch} of run {state.run[:8]}"
    yield "versions", f"{len(state.versions)}, {size(contents.bytes)}"
    yield "deltas", f"{len(deltas)}, {size(sum(edge.size for edge in deltas))}"
    yield "condemned", f"{count_objects(len(state.condemned))} to be deleted"


def count_objects(count: int) -> str:
    return f"{count} object{'' if count == 1 else 's'}"
