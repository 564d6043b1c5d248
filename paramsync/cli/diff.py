"""`paramsync diff`: lists parameters that differ between two versions of a store, the largest change first."""

from __future__ import annotations

import math
import sys
from argparse import Namespace
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path

from rich.console import Console
from rich.table import Table

from paramsync.cli import formatting, graph_files
from paramsync.cli.formatting import NOTHING, console, progress, share, to_json
from paramsync.cli.versions import look
from paramsync.errors import RemoteError, StoreError
from paramsync.host import files
from paramsync.remote.bucket import is_address
from paramsync.store.differences import EDGES, Difference, differences
from paramsync.store.store import Store
from paramsync.version import Version


def run(arguments: Namespace) -> bool:
    """Return True if both versions could be read."""
    if not is_address(arguments.store):
        return _run(arguments)
    from paramsync.cli.bucket import fetching  # here, because most stores are directories

    return fetching(_run, arguments)


def _run(arguments: Namespace) -> bool:
    with _store(arguments) as store:
        return _compare(store, arguments)


@contextmanager
def _store(arguments: Namespace) -> Iterator[Store]:
    """The store to read. For the address of a bucket, a temporary store into which the two versions are fetched."""
    if not is_address(arguments.store):
        yield Store(Path(arguments.store))
        return
    from paramsync.cli.bucket import fetch  # here, because most stores are directories
    from paramsync.remote.bucket import Bucket
    from paramsync.remote.excerpt import Excerpt, find, read_manifests

    bucket = Bucket(arguments.store)
    state = bucket.state()
    newer = find(bucket, state, arguments.new)
    before = [listed for listed in state.versions if listed.number < newer.number]
    if arguments.old is None and not before:
        raise RemoteError(f"{bucket.address}: {_alone(newer.number)}")
    older = before[-1] if arguments.old is None else find(bucket, state, arguments.old)
    with Excerpt(bucket, keep=2) as excerpt:
        wanted = sorted({older, newer}, key=lambda listed: listed.number)
        for listed, manifest in read_manifests(bucket, wanted).items():
            fetch(excerpt, bucket, listed, manifest)
        yield excerpt.store


def _compare(store: Store, arguments: Namespace) -> bool:
    old, new = _versions(store, arguments.old, arguments.new)
    with progress(f"versions {old.number} and {new.number}", max(old.bytes, new.bytes)) as advance:
        found = differences(store, old, new, advance=advance)
    variables = graph_files.variables_of(store, old) | graph_files.variables_of(store, new)
    top = len(found) if arguments.top is None else arguments.top
    if arguments.json:
        versions = {key: {"number": side.number, "step": side.step} for key, side in (("old", old), ("new", new))}
        listed = [{"variable": variables.get(each.name), **asdict(each)} for each in found[:top]]
        answer = {"store": arguments.store, **versions, "histogram_edges": list(EDGES), "parameters": listed}
        sys.stdout.write(to_json(answer))
        return True
    shown = graph_files.shown_names((each.name, variables.get(each.name)) for each in found)
    names = {name: text if text.isprintable() else files.shown(text) for name, text in shown.items()}
    screen = console()
    screen.print(_headline(old, new, found), style="bold", soft_wrap=True)
    _show(screen, found, names, top)
    return True


def _versions(store: Store, old: int | None, new: int | None) -> tuple[Version, Version]:
    """Return the versions to compare.

    Raises StoreError if nothing is published or no version is older, UnknownVersionError, CorruptCheckpointError.
    """
    _, versions, _ = look(store.path)
    newer = store.latest() if new is None else store.find(new)
    if newer is None:
        raise StoreError(store.path, "nothing is published there yet")
    if old is not None:
        return store.find(old), newer
    older = [version for version in versions if version.number < newer.number]
    if not older:
        raise StoreError(store.path, _alone(newer.number))
    return older[-1], newer


def _alone(number: int) -> str:
    return f"expected a version before {number} to compare with, found none"


def _headline(old: Version, new: Version, found: Sequence[Difference]) -> str:
    counts = Counter(each.kind for each in found)
    others = "".join(f", {counts[kind]} {kind}" for kind in ("reshaped", "added", "removed") if counts[kind])
    changed = f"{counts['changed']} of {len(found)} parameters changed{others}"
    return f"version {old.number} to {new.number}, {new.step - old.step:+} steps: {changed}"


def _show(screen: Console, found: Sequence[Difference], names: Mapping[str, str], top: int) -> None:
    changed = [each for each in found if each.kind == "changed"]
    if changed[:top]:
        screen.print(_table(changed[:top], names))
    if more := len(changed[top:]):
        screen.print(f"{more} more changed, by less")
    for each in found:
        if each.kind not in ("changed", "unchanged"):
            screen.print(f"{each.kind}: {names[each.name]}, {_form(each)}", soft_wrap=True)
    for each in found[:top]:
        if each.not_finite:
            what = f"NaN or infinity in {each.not_finite} of {each.elements} elements, which no other figure counts"
            screen.print(f"{names[each.name]}: {what}", style="red", soft_wrap=True)


def _form(difference: Difference) -> str:
    now = f"{difference.dtype} {list(difference.shape)}"
    if difference.kind != "reshaped":
        return now
    return f"{difference.dtype_before} {list(difference.shape_before or ())} to {now}"


def _table(changed: Sequence[Difference], names: Mapping[str, str]) -> Table:
    numbers = ("change", "relative", "largest", "elements")
    table = formatting.table("tensor", "shape", *numbers, right=numbers, whole=numbers)
    for each in changed:
        table.add_row(
            names[each.name],
            str(list(each.shape)),
            "NaN" if each.not_finite and each.norm is None else _number(each.norm),
            _number(each.relative),
            _number(each.largest),
            share(each.changed / each.elements),
        )
    return table


def _number(value: float | None) -> str:
    if value is None:
        return NOTHING
    return "from zero" if math.isinf(value) else f"{value:.3g}"
