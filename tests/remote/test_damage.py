"""Damaged, forged and replayed objects are refused with their reason, and the next good version comes."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import shutil
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import obstore
import pytest

from paramsync.errors import (
    EmptiedError,
    RemoteError,
)
from paramsync.remote import copy_note, download, protocol, state, tensors
from paramsync.remote.bucket_status import BucketStatus
from paramsync.remote.upload import Upload
from paramsync.store.commit import StoreWriter
from paramsync.store.store import Store, add_checksum
from paramsync.tensorbundle import index
from paramsync.version import Version
from tests.support.mirrors import SIZE, Pair, current_state, same

STATUS = BucketStatus(address="s3://bucket/models/m")
DAMAGES: dict[str, Callable[[bytes], bytes]] = {
    "flipped": lambda content: content[: len(content) // 2] + b"\xff" + content[len(content) // 2 + 1 :],
    "cut": lambda content: content[: len(content) // 2],
    "empty": lambda content: b"",
    "longer": lambda content: content + b"\0",
}


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("kind", ["data", "deltas", "versions"])
def test_a_damaged_object_is_never_served_and_the_next_good_version_is(pair: Pair, kind: str, damage: str) -> None:
    pair.publish(1)
    pair.upload.run_once()
    if kind != "data":
        pair.download.run_once()
    pair.publish(2)
    pair.upload.run_once()
    for name in pair.names():
        if name.startswith(kind) and not name.endswith("-1.json"):
            content = bytes(obstore.get(pair.objects, name).bytes())
            obstore.put(pair.objects, name, DAMAGES[damage](content))
    before = pair.target.latest()
    if (kind, damage) == ("data", "longer"):  # only the version's own bytes are read
        pair.download.run_once()
    else:
        with pytest.raises(RemoteError):
            pair.download.run_once()
        assert pair.target.latest() == before
        assert pair.download.run_once() is None
    pair.upload = pair.publisher()
    pair.publish(3)
    pair.upload.run_once()
    pair.download.run_once()
    same(pair.source, pair.target)


def test_a_follower_finds_a_way_around_a_damaged_delta(pair: Pair) -> None:
    for step in range(1, 4):
        pair.publish(step)
        pair.upload.run_once()
        if step < 3:
            pair.download.run_once()
    obstore.put(pair.objects, pair.name("deltas", "2-3"), b"damaged")
    with pytest.raises(RemoteError, match=pair.name("deltas", "2-3")):
        pair.download.run_once()
    ways = []
    for step in range(4, 12):
        pair.publish(step)
        pair.upload.run_once()
        try:
            ways.append(pair.download.run_once())
        except RemoteError:
            continue
    same(pair.source, pair.target)


def test_a_damaged_delta_is_told_although_a_whole_version_comes_in_its_place(pair: Pair) -> None:
    pair.publish(1)
    pair.upload.run_once()
    pair.download.run_once()
    step = 1
    while newest_manifest(pair)["whole"]["number"] == 1:
        step += 1
        pair.publish(step, changed=SIZE)
        pair.upload.run_once()
    delta = pair.name("deltas", "1-2")
    obstore.put(pair.objects, delta, b"damaged")
    done = pair.download.run_once()
    assert done is not None
    assert done.way == "whole"
    [said] = done.damages
    assert delta in said
    same(pair.source, pair.target)


def newest_manifest(pair: Pair) -> Any:
    return json.loads(pair.bucket.get(current_state(pair).versions[-1].manifest, 1 << 20))


def forge(pair: Pair, change: Callable[[dict[str, Any]], object]) -> None:
    """Change the newest manifest, and the state that names it, as somebody who can write to the bucket does."""
    current = current_state(pair)
    newest = current.versions[-1]
    manifest = newest_manifest(pair)
    change(manifest)
    content = json.dumps(manifest).encode()
    obstore.put(pair.objects, newest.manifest, content)
    newest = replace(newest, digest=hashlib.sha256(content).hexdigest())
    versions = (*current.versions[:-1], newest)
    obstore.put(pair.objects, state.NAME, replace(current, versions=versions).to_json())


def claim_terabytes(manifest: dict[str, Any]) -> None:
    """Have the manifest's index, record and whole version say that the last tensor is larger than any memory."""
    entries = dict(index.decode(base64.b64decode(manifest["index"]), path=Path()).entries)
    name = max(entries)
    entries[name] = replace(entries[name], size=1 << 50, shape=(1 << 48,))
    packed = index.Index(1, entries)
    manifest["index"] = base64.b64encode(index.encode(packed)).decode()
    manifest["record"] = json.dumps(json.loads(manifest["record"]) | {"checksum": index.digest(entries)})
    manifest["whole"] |= {"size": tensors.size_of(packed)}


def share_a_place(manifest: dict[str, Any]) -> None:
    """Have the manifest's index say that many tensors have the same bytes: a small object would fill a large memory."""
    entries = dict(index.decode(base64.b64decode(manifest["index"]), path=Path()).entries)
    entries |= {f"zeros{at}": entries["zeros"] for at in range(3)}
    packed = index.Index(1, entries)
    manifest["index"] = base64.b64encode(index.encode(packed)).decode()
    manifest["record"] = json.dumps(json.loads(manifest["record"]) | {"checksum": index.digest(entries)})


def in_record(**values: Any) -> Callable[[dict[str, Any]], object]:
    return lambda manifest: manifest.update(record=json.dumps(json.loads(manifest["record"]) | values))


FORGERIES: dict[str, Callable[[dict[str, Any]], object]] = {
    "terabytes": claim_terabytes,
    "shared": share_a_place,
    "prefix": in_record(prefix="../../elsewhere"),
    "number": in_record(number=3),
    "step": in_record(step=-1),
    "graph": in_record(graph="../elsewhere"),
    "missing graph": in_record(graph="ab"),
    "index": lambda manifest: manifest.update(index="AAAA"),
    "edges": lambda manifest: manifest.update(edges={"a": 1}),
    "outside": lambda manifest: manifest["whole"].update(name="../../elsewhere"),
    "gone": lambda manifest: manifest["whole"].update(name="data/1/7"),
}


@pytest.mark.parametrize("forgery", FORGERIES)
def test_a_forged_manifest_is_refused_and_the_next_good_version_comes(pair: Pair, forgery: str) -> None:
    pair.tensors["zeros"] = np.zeros(4, np.float32)
    pair.publish(1)
    pair.upload.run_once()
    pair.publish(2)
    pair.upload.run_once()
    forge(pair, FORGERIES[forgery])
    if forgery in ("gone", "missing graph"):  # as if it was collected meanwhile
        assert pair.download.run_once() is None
    with pytest.raises(RemoteError):
        pair.download.run_once()
    assert pair.download.run_once() is None
    assert pair.target.latest() is None
    pair.publish(3)
    pair.upload = pair.publisher()
    pair.upload.run_once()
    pair.download.run_once()
    same(pair.source, pair.target)


def test_a_version_that_was_damaged_on_its_way_is_fetched_again(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    pair.publish(1)
    pair.upload.run_once()
    sound = bytes(obstore.get(pair.objects, pair.name("data", "1")).bytes())
    obstore.put(pair.objects, pair.name("data", "1"), DAMAGES["flipped"](sound))
    monkeypatch.setattr(download, "_FIRST_PAUSE", 0.0)
    with pytest.raises(RemoteError, match="came damaged"):
        pair.download.run_once()
    obstore.put(pair.objects, pair.name("data", "1"), sound)
    pair.download.run_once()
    same(pair.source, pair.target)


def newest_file(pair: Pair, kind: str) -> Path:
    version = pair.target.latest()
    assert version is not None
    [path] = pair.target.path.glob("graph-*" if kind == "graph" else f"{version.prefix}.{kind}*")
    return path


@pytest.mark.parametrize("kind", ["data", "index", "json", "graph"])
@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("is_restarted", [True, False], ids=["restarted", "running"])
def test_a_version_that_is_damaged_here_is_fetched_anew(pair: Pair, kind: str, damage: str, is_restarted: bool) -> None:
    graph = add_checksum(b"a graph" * 100)
    for step in (1, 2):
        pair.writer.add_graph("ab", graph)
        pair.publish(step, graph="ab")
        pair.upload.run_once()
        pair.download.run_once()
    path = newest_file(pair, kind)
    path.write_bytes(DAMAGES[damage](path.read_bytes()))
    if is_restarted:
        restart(pair)
    done = pair.download.run_once()
    same(pair.source, pair.target)
    assert pair.target.graph_file("ab").read_bytes() == graph
    if (kind, damage) == ("data", "longer"):  # its tensors are sound
        assert done is None
        return
    assert done is not None
    if kind != "json":  # without its record, the version is not there
        assert done.damages == (f"version 2 was damaged in {pair.target.path}, and came again",)
    assert pair.download.run_once() is None


@pytest.mark.parametrize("how", ["restarted", "running", "unseen"])
def test_a_base_that_is_damaged_here_does_not_keep_the_next_version_from_coming(pair: Pair, how: str) -> None:
    for step in (1, 2):
        pair.publish(step)
        pair.upload.run_once()
        pair.download.run_once()
    path = newest_file(pair, "data")
    before = path.stat()
    path.write_bytes(DAMAGES["flipped"](path.read_bytes()))
    if how == "unseen":  # as when a bit of memory flips
        os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    pair.publish(3)
    pair.upload.run_once()
    if how == "restarted":
        restart(pair)
    done = pair.download.run_once()  # by way of the delta that failed from here
    assert done is not None
    assert (done.way, done.deltas) == ("whole", 2)
    same(pair.source, pair.target)


def test_versions_come_though_the_list_of_versions_here_is_damaged(pair: Pair) -> None:
    for step in (1, 2):
        pair.publish(step)
        pair.upload.run_once()
        pair.download.run_once()
        (pair.target.path / "checkpoint").write_bytes(b"\xff")
        assert pair.download.run_once() is None
        same(pair.source, pair.target)


@pytest.mark.parametrize("damage", [*DAMAGES])
def test_a_damaged_graph_is_not_kept(pair: Pair, monkeypatch: pytest.MonkeyPatch, damage: str) -> None:
    monkeypatch.setattr(download, "_FIRST_PAUSE", 0.0)
    graph = add_checksum(b"a graph" * 100)
    pair.writer.add_graph("ab", graph)
    pair.publish(1, graph="ab")
    pair.upload.run_once()
    obstore.put(pair.objects, pair.name("graphs", "1.pb"), DAMAGES[damage](graph))
    with pytest.raises(RemoteError, match="expected a graph"):
        pair.download.run_once()
    obstore.put(pair.objects, pair.name("graphs", "1.pb"), graph)
    pair.download.run_once()
    same(pair.source, pair.target)
    assert pair.target.graph_file("ab").read_bytes() == graph


def test_a_state_that_somebody_brought_back_is_ignored(pair: Pair) -> None:
    pair.publish(1)
    pair.upload.run_once()
    old = bytes(obstore.get(pair.objects, state.NAME).bytes())
    pair.publish(2)
    pair.upload.run_once()
    pair.download.run_once()
    obstore.put(pair.objects, state.NAME, old)
    with pytest.raises(RemoteError, match="brought an older state back"):
        pair.download.run_once()
    version = pair.target.latest()
    assert version is not None
    assert version.number == 2


def test_the_state_of_another_run_is_not_followed(pair: Pair) -> None:
    pair.publish(1)
    pair.upload.run_once()
    pair.download.run_once()
    obstore.delete(pair.objects, state.NAME)
    other = pair.publisher()
    pair.publish(2)
    other.run_once()
    with pytest.raises(RemoteError, match="expected versions of run"):
        pair.download.run_once()


def restart(pair: Pair) -> None:
    """Have the follower's process begin again, with nothing but its local copy."""
    pair.download.close()
    pair.download = pair.follower("target")


@pytest.mark.parametrize("is_noted", [True, False], ids=["noted", "killed before it was noted"])
def test_after_a_restart_another_run_is_followed_only_once_an_operator_removed_the_copy(
    pair: Pair, is_noted: bool
) -> None:
    pair.publish(1)
    pair.upload.run_once()
    pair.download.run_once()
    if is_noted:
        pair.download.note(STATUS)
    obstore.delete(pair.objects, state.NAME)
    restart(pair)
    with pytest.raises(EmptiedError):
        pair.download.run_once()
    pair.publish(2)
    pair.publisher().run_once()
    for _ in range(2):
        with pytest.raises(RemoteError, match=f"expected versions of run .* remove {pair.target.path} to follow these"):
            pair.download.run_once()
        restart(pair)
    version = pair.target.latest()
    assert version is not None
    assert version.number == 1
    shutil.rmtree(pair.target.path)
    pair.download.run_once()
    same(pair.source, pair.target)


def test_after_a_restart_an_older_state_is_ignored(pair: Pair) -> None:
    pair.publish(1)
    pair.upload.run_once()
    pair.publish(2)
    pair.upload.run_once()
    old = bytes(obstore.get(pair.objects, state.NAME).bytes())
    pair.bucket.perform(protocol.choose(lambda state: {"pinned": 2}, "c" * 32), pair.stop)
    pair.download.run_once()
    pair.download.note(STATUS)
    obstore.put(pair.objects, state.NAME, old)
    restart(pair)
    with pytest.raises(RemoteError, match="brought an older state back"):
        pair.download.run_once()


def test_the_choices_of_operators_hold_while_the_bucket_is_away_after_a_restart(pair: Pair) -> None:
    pair.publish(1)
    pair.upload.run_once()
    pair.bucket.perform(protocol.choose(lambda state: {"pinned": 1, "labels": {"stable": 1}}, "c" * 32), pair.stop)
    pair.download.run_once()
    pair.download.note(STATUS)
    restart(pair)
    pair.download.note(replace(STATUS, reason="the bucket does not answer"))
    note = copy_note.read(pair.target.path)
    assert note is not None
    assert (note.reason, note.pinned, note.labels) == ("the bucket does not answer", 1, {"stable": 1})


def test_a_bucket_that_began_anew_below_a_copy_is_reported_after_a_restart_too(pair: Pair) -> None:
    pair.publish(10)
    pair.upload.run_once()
    pair.download.run_once()
    pair.download.close()
    for name in pair.names():
        obstore.delete(pair.objects, name)
    with StoreWriter(pair.folder / "anew") as writer:
        now = time.time()
        writer.commit(Version(number=1, step=1, prefix="", step_done_at=now, snapshot_at=now), pair.tensors)
    Upload(Store(pair.folder / "anew"), pair.bucket, keep=3, stop=pair.stop).run_once()
    (pair.target.path / copy_note.NAME).unlink()  # an operator's word that this run may be followed
    pair.download = pair.follower("target")
    with pytest.raises(RemoteError, match="version 10 here and version 1 in the bucket"):
        pair.download.run_once()


def test_an_emptied_bucket_is_an_error_and_no_fresh_start(pair: Pair) -> None:
    pair.publish(1)
    pair.upload.run_once()
    pair.download.run_once()
    obstore.delete(pair.objects, state.NAME)
    pair.publish(2)
    with pytest.raises(EmptiedError):
        pair.upload.run_once()
    with pytest.raises(EmptiedError):
        pair.download.run_once()
    same_version = pair.target.latest()
    assert same_version is not None
    assert same_version.number == 1
