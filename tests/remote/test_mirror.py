"""Mirrors between directories and a bucket, which is obstore's in memory."""

from __future__ import annotations

import base64
import hashlib
import json
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import obstore
import pytest
import tensorflow as tf
from obstore.store import MemoryStore

from paramsync.errors import (
    EmptiedError,
    FencedError,
    RemoteError,
    SettingsError,
    UnknownLabelError,
    UnknownVersionError,
)
from paramsync.following.follower import Follower
from paramsync.following.replica import Replica
from paramsync.remote import download, fleet, protocol, state, tensors, upload
from paramsync.remote.bucket import Bucket
from paramsync.remote.copy_note import CopyNote
from paramsync.remote.download import Download
from paramsync.remote.mirror import Mirror
from paramsync.remote.protocol import Found
from paramsync.remote.state import Listed, State
from paramsync.remote.upload import Upload
from paramsync.sources.diagnosis import absence
from paramsync.store.commit import StoreWriter
from paramsync.store.store import Store, add_checksum
from paramsync.tensorbundle import index
from paramsync.version import Version
from tests.support.programs import eventually
from tests.support.published import Publisher

SIZE = 100_000
LONG = 60.0


class Pair:
    """A store, its bucket, and a store that follows the bucket."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.objects = MemoryStore()
        self.bucket = Bucket("s3://bucket/models/m", store=self.objects)
        self.stop = threading.Event()
        self.source, self.target = Store(folder / "source"), Store(folder / "target")
        self.writer = StoreWriter(self.source.path, keep=3)
        self.tensors: dict[str, Any] = {
            "dense/kernel": np.random.default_rng(0).standard_normal(SIZE, np.float32),
            "dense/bias": np.zeros(10, np.float32),
            "words": np.array([b"one", b""], object),
            "step": np.int64(0),
            "flag": np.array([True, False]),
            "phase": np.array([1 + 2j], np.complex128),
        }
        self.upload = self.publisher()
        self.download = self.follower("target")

    def publisher(self) -> Upload:
        return Upload(self.source, self.bucket, keep=3, stop=self.stop)

    def follower(self, name: str) -> Download:
        return Download(self.bucket, self.folder / name, keep=3, stop=self.stop)

    def publish(self, step: int, changed: int = 100, *, graph: str = "") -> Version:
        """Publish a version in which so many elements of the kernel differ from the one before."""
        kernel = self.tensors["dense/kernel"].copy()
        kernel[np.random.default_rng(step).choice(SIZE, changed, replace=False)] += 1e-3
        self.tensors = {**self.tensors, "dense/kernel": kernel, "step": np.int64(step)}
        now = time.time()
        version = Version(
            number=step, step=step, prefix="", graph=graph, step_done_at=now, snapshot_at=now, metrics={"loss": 0.5}
        )
        return self.writer.commit(version, self.tensors)

    def close(self) -> None:
        self.download.close()
        self.writer.close()

    def names(self) -> set[str]:
        return set(self.bucket.names())


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Pair]:
    made = Pair(tmp_path)
    yield made
    made.close()


def same(first: Store, second: Store) -> None:
    """Both stores have the same newest version, record and all, and the same bytes."""
    version = first.latest()
    assert version is not None
    assert second.latest() == version
    old, new = first.open(version), second.open(version)
    new.verify(new.entries)
    for name in old.entries:
        assert np.asarray(old.array(name)).tolist() == np.asarray(new.array(name)).tolist(), name


def test_the_newest_version_comes_as_it_was_published_and_then_as_deltas(pair: Pair) -> None:
    pair.publish(1)
    assert pair.upload.run_once() is not None
    first = pair.download.run_once()
    assert first is not None
    assert first.way == "whole"
    same(pair.source, pair.target)
    for step in range(2, 5):
        pair.publish(step)
        pair.upload.run_once()
        done = pair.download.run_once()
        assert done is not None
        assert (done.way, done.deltas) == ("delta", 1)
        assert done.bytes < first.bytes / 50
        same(pair.source, pair.target)
    assert pair.upload.run_once() is None
    assert pair.download.run_once() is None


def test_stock_tensorflow_reads_what_came_over_the_bucket(pair: Pair) -> None:
    pair.publish(1)
    pair.upload.run_once()
    pair.download.run_once()
    reader = tf.train.load_checkpoint(tf.train.latest_checkpoint(str(pair.target.path)))
    assert (reader.get_tensor("dense/kernel") == pair.tensors["dense/kernel"]).all()
    assert reader.get_tensor("words").tolist() == [b"one", b""]


def test_only_the_newest_of_many_versions_is_copied(pair: Pair) -> None:
    for step in range(1, 6):
        pair.publish(step)
    done = pair.upload.run_once()
    assert done is not None
    assert done.version.number == 5
    assert pair.upload.run_once() is None


@pytest.mark.parametrize(("behind", "deltas"), [(1, 1), (7, 7), (10, 3)])
def test_a_late_follower_takes_few_deltas(pair: Pair, behind: int, deltas: int) -> None:
    pair.publish(1)
    pair.upload.run_once()
    pair.download.run_once()
    for step in range(2, 2 + behind):
        pair.publish(step)
        pair.upload.run_once()
    done = pair.download.run_once()
    assert done is not None
    assert (done.way, done.deltas) == ("delta", deltas)
    same(pair.source, pair.target)


def test_a_new_follower_takes_the_last_whole_version_and_the_deltas_since(pair: Pair) -> None:
    for step in range(1, 5):
        pair.publish(step)
        pair.upload.run_once()
    late = pair.follower("late")
    done = late.run_once()
    assert done is not None
    assert done.way == "whole"
    assert done.bytes <= 1.5 * done.size
    same(pair.source, Store(pair.folder / "late"))
    late.close()


def test_versions_that_change_much_are_sent_whole_before_the_deltas_are_half_as_large(pair: Pair) -> None:
    ways = []
    for step in range(1, 9):
        pair.publish(step, changed=SIZE // 3)
        done = pair.upload.run_once()
        assert done is not None
        ways.append(done.way)
        pair.download.run_once()
        same(pair.source, pair.target)
    assert ways[0] == "whole"
    assert ways.count("whole") > 1
    assert "delta" in ways


def test_a_version_with_other_tensors_is_sent_whole(pair: Pair) -> None:
    pair.publish(1)
    pair.upload.run_once()
    pair.download.run_once()
    pair.tensors["more"] = np.ones(3, np.float32)
    pair.publish(2)
    pair.upload.run_once()
    done = pair.download.run_once()
    assert done is not None
    assert done.way == "whole"
    same(pair.source, pair.target)


def test_follower_and_publisher_go_on_after_a_restart(pair: Pair) -> None:
    for step in (1, 2):
        pair.publish(step)
        pair.upload.run_once()
    pair.download.run_once()
    pair.download.close()
    pair.download = pair.follower("target")
    pair.publish(3)
    pair.upload.run_once()
    done = pair.download.run_once()
    assert done is not None
    assert done.way == "delta"
    pair.upload = pair.publisher()
    pair.publish(4)
    done = pair.upload.run_once()
    assert done is not None
    assert done.way == "whole"
    pair.download.run_once()
    same(pair.source, pair.target)


def test_a_publisher_that_another_one_replaced_stops_and_says_so(pair: Pair) -> None:
    pair.publish(1)
    pair.upload.run_once()
    other = pair.publisher()
    other.start()
    pair.publish(2)
    with pytest.raises(FencedError, match="another publisher has begun"):
        pair.upload.run_once()
    assert other.run_once() is not None


def choose(pair: Pair, choice: fleet.Choice) -> State:
    return pair.bucket.perform(protocol.choose(choice, "c" * 32), pair.stop)


def test_a_version_that_operators_pinned_or_labelled_stays_and_new_followers_fetch_the_pinned_one(pair: Pair) -> None:
    for step in range(1, 4):
        pair.publish(step)
        pair.upload.run_once()
    pair.download.run_once()
    choose(pair, fleet.pin("s3://bucket/m", 2))
    choose(pair, fleet.label("s3://bucket/m", "stable", 1))
    for step in range(4, 9):
        pair.publish(step)
        pair.upload.run_once()
    assert pair.download.run_once() is None  # it waits at what it has
    new = pair.follower("new")
    assert new.run_once() is not None
    assert new.state is not None
    assert [version.number for version in new.state.versions] == [1, 2, 6, 7, 8]
    assert new.state.live <= pair.names()
    found = Store(pair.folder / "new").latest()
    assert found is not None
    assert found.number == 2
    choose(pair, fleet.label("s3://bucket/m", "stable", None))
    state = choose(pair, fleet.pin("s3://bucket/m", None))
    assert (state.pinned, dict(state.labels)) == (None, {})
    pair.publish(9)
    pair.upload.run_once()
    assert new.run_once() is not None
    assert [version.number for version in new.state.versions] == [7, 8, 9]
    same(pair.source, Store(pair.folder / "new"))
    new.close()


def test_a_choice_of_what_is_not_there_is_refused_and_nothing_changes(pair: Pair) -> None:
    for step in (1, 2):
        pair.publish(step)
        pair.upload.run_once()
    before = pair.bucket.read()
    with pytest.raises(UnknownVersionError, match="there are: 1, 2"):
        choose(pair, fleet.pin("s3://bucket/m", 3))
    with pytest.raises(UnknownLabelError):
        choose(pair, fleet.label("s3://bucket/m", "stable", None))
    assert choose(pair, fleet.roll_back("s3://bucket/m")).pinned == 1
    with pytest.raises(RemoteError, match="no version to go back to"):
        choose(pair, fleet.roll_back("s3://bucket/m"))
    choose(pair, fleet.pin("s3://bucket/m", None))
    assert before != pair.bucket.read()


def test_a_follower_obeys_the_choices_for_all_unless_it_has_its_own(tmp_path: Path) -> None:
    publisher = Publisher(tmp_path)
    for step in (1, 2, 3):
        publisher.publish(step)
    with Follower(Replica("m", tmp_path), poll_seconds=3600) as follower:
        follower.sync(timeout=LONG)
        CopyNote("s3://bucket/m", pinned=2, labels={"stable": 1}).write(tmp_path)
        eventually(lambda: serving(follower) == 2, lambda: f"{follower.status()}")
        eventually(lambda: follower.status().labels == {"stable": 1}, lambda: f"{follower.status()}")
        assert follower.status().pinned == 2
        follower.pin(1, timeout=LONG)
        assert serving(follower) == 1
        follower.unpin(timeout=LONG)
        eventually(lambda: serving(follower) == 2, lambda: f"{follower.status()}")
        CopyNote("s3://bucket/m").write(tmp_path)
        eventually(lambda: serving(follower) == 3, lambda: f"{follower.status()}")
        eventually(lambda: not follower.status().labels, lambda: f"{follower.status()}")
    publisher.close()


def serving(follower: Follower) -> int | None:
    version = follower.status().serving
    return None if version is None else version.number


def test_a_store_that_began_anew_below_the_bucket_is_reported(pair: Pair) -> None:
    pair.publish(10)
    pair.upload.run_once()
    with StoreWriter(pair.folder / "anew") as writer:
        now = time.time()
        writer.commit(Version(number=1, step=1, prefix="", step_done_at=now, snapshot_at=now), pair.tensors)
    anew = Upload(Store(pair.folder / "anew"), pair.bucket, keep=3, stop=pair.stop)
    with pytest.raises(RemoteError, match="version 1 here and version 10 in the bucket"):
        anew.run_once()


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


def test_what_no_version_needs_is_deleted_after_the_grace_period(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    for step in range(1, 4):
        pair.publish(step, changed=SIZE)
        pair.upload.run_once()
    monkeypatch.setattr(upload, "GRACE", 0.0)
    for step in range(4, 9):
        pair.publish(step, changed=SIZE)
        pair.upload.run_once()
    current = current_state(pair)
    assert pair.names() <= current.live | set(current.condemned) | {state.NAME}
    assert current.live <= pair.names()
    assert "versions/1/1.json" not in pair.names()
    pair.download.run_once()
    same(pair.source, pair.target)


def current_state(pair: Pair) -> State:
    found = pair.bucket.read()
    assert isinstance(found, Found)
    return state.from_json(found.content)


DAMAGES: dict[str, Callable[[bytes], bytes]] = {
    "flipped": lambda content: content[: len(content) // 2] + b"\xff" + content[len(content) // 2 + 1 :],
    "cut": lambda content: content[: len(content) // 2],
    "empty": lambda content: b"",
    "longer": lambda content: content + b"\0",
}


def test_a_local_copy_says_what_it_copies_and_why_no_version_comes(tmp_path: Path) -> None:
    CopyNote("s3://bucket/m", "no credentials").write(tmp_path)
    assert absence(tmp_path) == f"{tmp_path}: copies s3://bucket/m: no credentials"
    CopyNote("s3://bucket/m").write(tmp_path)
    assert absence(tmp_path) == f"{tmp_path}: copies s3://bucket/m: nothing is published there yet"
    (tmp_path / "mirror.json").write_text('{"other": 1}')
    assert "copies" not in absence(tmp_path)


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
        if name.startswith(kind) and not name.endswith("/1.json"):
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
    obstore.put(pair.objects, "deltas/1/2-3", b"damaged")
    with pytest.raises(RemoteError, match="deltas/1/2-3"):
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


def test_objects_that_no_state_came_to_name_are_deleted_too(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(upload, "GRACE", 0.0)
    pair.publish(1)
    pair.upload.run_once()
    obstore.put(pair.objects, "data/2024/mine", b"not of paramsync")
    with monkeypatch.context() as patch:
        patch.setattr(Bucket, "perform", failing(ConnectionError("away")))
        pair.publish(2)
        with pytest.raises(ConnectionError):
            pair.upload.run_once()
    assert "deltas/1/1-2" in pair.names()
    pair.publish(3)
    pair.upload.run_once()
    pair.upload.run_once()
    assert "deltas/1/1-2" not in pair.names()
    with monkeypatch.context() as patch:
        patch.setattr(Bucket, "perform", failing(ConnectionError("away")))
        pair.publish(4)
        with pytest.raises(ConnectionError):
            pair.upload.run_once()
    assert "versions/1/4.json" in pair.names()
    pair.upload = pair.publisher()
    for step in (5, 6):
        pair.publish(step)
        pair.upload.run_once()
    assert "versions/1/4.json" not in pair.names()
    assert "data/2024/mine" in pair.names()
    pair.download.run_once()
    same(pair.source, pair.target)


def test_a_version_whose_commit_was_interrupted_is_committed_again(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    pair.publish(1)
    pair.upload.run_once()
    pair.publish(2)
    perform = pair.bucket.perform

    def interrupted(steps: protocol.Steps[Any], stop: threading.Event) -> None:
        perform(steps, stop)
        raise InterruptedError

    with monkeypatch.context() as patch:
        patch.setattr(pair.bucket, "perform", interrupted)
        with pytest.raises(InterruptedError):
            pair.upload.run_once()
    pair.upload.run_once()
    pair.download.run_once()
    same(pair.source, pair.target)
    assert [version.number for version in current_state(pair).versions] == [1, 2]


def failing(error: Exception) -> Callable[..., object]:
    def fail(*arguments: object) -> None:
        raise error

    return fail


def forge(pair: Pair, change: Callable[[dict[str, Any]], object]) -> None:
    """Change the newest manifest, and the state that names it, as somebody who can write to the bucket does."""
    current = current_state(pair)
    newest = current.versions[-1]
    manifest = json.loads(pair.bucket.get(newest.manifest, 1 << 20))
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


def in_record(**values: Any) -> Callable[[dict[str, Any]], object]:
    return lambda manifest: manifest.update(record=json.dumps(json.loads(manifest["record"]) | values))


FORGERIES: dict[str, Callable[[dict[str, Any]], object]] = {
    "terabytes": claim_terabytes,
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
    sound = bytes(obstore.get(pair.objects, "data/1/1").bytes())
    obstore.put(pair.objects, "data/1/1", DAMAGES["flipped"](sound))
    monkeypatch.setattr(download, "_FIRST_PAUSE", 0.0)
    with pytest.raises(RemoteError, match="came damaged"):
        pair.download.run_once()
    obstore.put(pair.objects, "data/1/1", sound)
    pair.download.run_once()
    same(pair.source, pair.target)


@pytest.mark.parametrize("damage", [*DAMAGES])
def test_a_damaged_graph_is_not_kept(pair: Pair, monkeypatch: pytest.MonkeyPatch, damage: str) -> None:
    monkeypatch.setattr(download, "_FIRST_PAUSE", 0.0)
    graph = add_checksum(b"a graph" * 100)
    pair.writer.add_graph("ab", graph)
    pair.publish(1, graph="ab")
    pair.upload.run_once()
    obstore.put(pair.objects, "graphs/1/1.pb", DAMAGES[damage](graph))
    with pytest.raises(RemoteError, match="expected a graph"):
        pair.download.run_once()
    obstore.put(pair.objects, "graphs/1/1.pb", graph)
    pair.download.run_once()
    same(pair.source, pair.target)
    assert pair.target.graph_file("ab").read_bytes() == graph


def test_state_and_manifest_stay_small_however_many_versions_come(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(upload, "_STRIDES", (1, 2, 4))
    monkeypatch.setattr(upload, "_KEPT", 4)
    monkeypatch.setattr(upload, "_MOST_CONDEMNED", 10)
    for step in range(1, 60):
        pair.publish(step, changed=1)
        pair.upload.run_once()
        current = current_state(pair)
        assert len(current.objects) <= 3 * 4 + 3 * 3 + 2
        assert len(current.condemned) <= 10 + 6
        if step % 7 == 0:
            late = pair.follower(f"late{step}")
            late.run_once()
            same(pair.source, Store(pair.folder / f"late{step}"))
            late.close()


def test_more_versions_than_a_state_has_room_for_are_refused() -> None:
    with pytest.raises(SettingsError, match="at most 100"):
        Mirror("store", "s3://bucket/m", keep=101)
    numbers = range(10**9, 10**9 + 100)
    most = tuple(Listed(number, f"versions/{10**6}/{number}.json", "0" * 64) for number in numbers)
    names = [f"deltas/{10**6}/{number}-{number + 64}" for number in range(10**9, 10**9 + 820)]
    objects = dict.fromkeys(names[:300], (numbers[0], numbers[-1]))
    full = State("0" * 32, 10**6, 10**9, "0" * 32, "0" * 32, most, objects, tuple(names[300:]))
    assert len(full.to_json()) < state.LIMIT


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
    pair.download = pair.follower("target")
    with pytest.raises(RemoteError, match="version 10 here and version 1 in the bucket"):
        pair.download.run_once()


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


def test_the_probe_leaves_nothing_behind(pair: Pair) -> None:
    pair.bucket.probe()
    assert pair.names() == set()


@pytest.mark.parametrize(
    "address", ["s3://bucket/m?key=secret", "s3://key:secret@bucket/m", "digits", "http://host/bucket", "s3:bucket"]
)
def test_an_address_with_a_secret_or_of_no_bucket_is_refused(address: str) -> None:
    with pytest.raises(Exception, match="expected") as refused:
        Bucket(address)
    assert "secret" not in str(refused.value)
