"""`paramsync versions` and `status` of the address of a bucket."""

from __future__ import annotations

import sys
import time
from argparse import Namespace
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass

from rich.table import Table
from rich.text import Text

from paramsync.cli import formatting
from paramsync.cli.formatting import NOTHING, ago, console, duration, size, to_json
from paramsync.errors import RemoteError, SettingsError
from paramsync.host import files
from paramsync.remote.excerpt import Excerpt
from paramsync.remote.manifest import Manifest
from paramsync.remote.state import State
from paramsync.version import Version


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteRow:
    """One version in a bucket.

    `bytes` is the size of its tensors, `sent` of the objects that were written for it. `way` is "whole" if the bucket
    has all its tensors in one object, else "delta". `marks` are "newest", "pinned", and its labels.
    """

    number: int
    step: int
    committed_at: float | None
    bytes: int
    sent: int
    way: str
    marks: list[str]
    signed_by: str | None


def versions(arguments: Namespace) -> bool:
    """True if the manifest of every version can be read."""
    with Excerpt(arguments.store) as excerpt:
        rows, broken, total = _look(excerpt)
        state = excerpt.state
    if arguments.json:
        listed = [asdict(row) for row in rows]
        sys.stdout.write(to_json({"address": excerpt.address, "bytes": total, "versions": listed, "broken": broken}))
        return not broken
    screen = console()
    count = f"{len(rows)} version{'' if len(rows) == 1 else 's'}" if rows else "nothing published yet"
    screen.print(f"{excerpt.address}: {count}, {size(total)} in the bucket", style="bold", soft_wrap=True)
    if rows:
        screen.print(_table(rows, time.time()))
    if state.pinned is not None:
        screen.print(f"all followers serve version {state.pinned} (pinned)")
    for problem in broken:
        screen.print(problem, style="red", soft_wrap=True)
    return not broken


def status(arguments: Namespace) -> bool:
    """True if the manifest of every version can be read."""
    for option in ("watch", "check", "servers", "trainer"):
        if getattr(arguments, option):
            raise SettingsError(f"--{option.removesuffix('s')}: expected the name of a model with it, not an address")
    with Excerpt(arguments.model) as excerpt:
        rows, broken, total = _look(excerpt)
        state = excerpt.state
    newest = rows[-1] if rows else None
    if arguments.json:
        facts = {
            "address": excerpt.address,
            "run": state.run,
            "epoch": state.epoch,
            "newest": None if newest is None else asdict(newest),
            "pinned": state.pinned,
            "labels": dict(state.labels),
            "versions": len(state.versions),
            "objects": len(state.objects),
            "bytes": total,
            "condemned": len(state.condemned),
            "broken": broken,
        }
        sys.stdout.write(to_json(facts))
        return not broken
    screen = console()
    screen.print(excerpt.address, style="bold", soft_wrap=True)
    table = Table(box=None, pad_edge=False, show_header=False, padding=(0, 2, 0, 0))
    for name, text in _facts(state, newest, total):
        table.add_row(name, text)
    screen.print(table)
    for problem in broken:
        screen.print(problem, style="red", soft_wrap=True)
    return not broken


def _look(excerpt: Excerpt) -> tuple[list[RemoteRow], list[str], int]:
    """The versions, what is wrong with manifests, and the bytes of all objects with tensors."""
    rows, broken = [], []
    objects: dict[str, int] = {}
    for manifest in excerpt.manifests():
        if isinstance(manifest, str):
            broken.append(manifest)
            continue
        try:
            version = manifest.version()
        except RemoteError as error:
            broken.append(str(error))
            continue
        objects |= {edge.name: edge.size for edge in manifest.edges} | {manifest.whole.name: manifest.whole.size}
        rows.append(_row(version, manifest, excerpt.state))
    return rows, broken, sum(objects.values())


def _row(version: Version, manifest: Manifest, state: State) -> RemoteRow:
    number, newest = version.number, state.newest
    is_whole = manifest.whole.number == number
    marks = ["newest"] if newest is not None and newest.number == number else []
    marks += ["pinned"] if state.pinned == number else []
    marks += sorted(label for label, labelled in state.labels.items() if labelled == number)
    return RemoteRow(
        number=number,
        step=version.step,
        committed_at=version.committed_at,
        bytes=version.bytes,
        sent=sum(edge.size for edge in manifest.edges if edge.number == number) + is_whole * manifest.whole.size,
        way="whole" if is_whole else "delta",
        marks=marks,
        signed_by=version.signed_by or None,
    )


def _table(rows: Sequence[RemoteRow], now: float) -> Table:
    numbers = ("version", "step", "age", "size", "sent")
    table = formatting.table(*numbers, "as", "signed by", "", right=numbers)
    for row in reversed(rows):
        table.add_row(
            str(row.number),
            str(row.step),
            NOTHING if row.committed_at is None else duration(max(0.0, now - row.committed_at)),
            size(row.bytes),
            size(row.sent),
            row.way,
            NOTHING if row.signed_by is None else files.shown(row.signed_by),
            Text(", ".join(row.marks), "bold green"),
        )
    return table


def _facts(state: State, newest: RemoteRow | None, total: int) -> Iterable[tuple[str, str]]:
    if newest is None:
        yield "newest", "nothing published yet"
    else:
        age = "" if newest.committed_at is None else f", published {ago(newest.committed_at, time.time())}"
        yield "newest", f"version {newest.number}, step {newest.step}{age}"
    pinned = "follow the newest version" if state.pinned is None else f"serve version {state.pinned} (pinned)"
    yield "followers", pinned
    labels = ", ".join(f"{label} is version {number}" for label, number in sorted(state.labels.items()))
    yield "labels", labels or "none"
    yield "publisher", f"epoch {state.epoch} of run {state.run[:8]}"
    yield "versions", f"{len(state.versions)}, {size(total)} in {count_objects(state.objects)}"
    yield "to delete", count_objects(state.condemned)


def count_objects(names: Iterable[str]) -> str:
    count = len(list(names))
    return f"{count} object{'' if count == 1 else 's'}"
