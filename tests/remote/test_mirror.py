"""Mirrors between directories and a bucket, which is obstore's in memory."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import obstore
import pytest
import tensorflow as tf

from paramsync.checkpoint.tensor_bytes import PORTION
from paramsync.errors import (
    FencedError,
    RemoteError,
    SettingsError,
)
from paramsync.remote import copy_note, download, protocol, state, tensors, upload
from paramsync.remote.bucket import Bucket
from paramsync.remote.bucket_status import BucketStatus
from paramsync.remote.mirror import BUSY, IDLE, Mirror, pause
from paramsync.remote.state import Listed, State
from paramsync.remote.upload import Upload
from paramsync.store.commit import StoreWriter
from paramsync.store.store import PublisherState, Store
from paramsync.version import Version
from tests.support import partitioned
from tests.support.mirrors import SIZE, Pair, current_state, same
from tests.support.opened import opened


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


@pytest.mark.parametrize("first", [1, 5, 8])
def test_a_follower_a_hundred_versions_behind_takes_deltas_wherever_it_stopped(pair: Pair, first: int) -> None:
    for step in range(1, first + 101):
        pair.publish(step)
        pair.upload.run_once()
        if step == first:
            pair.download.run_once()
    done = pair.download.run_once()
    assert done is not None
    assert done.way == "delta"
    assert done.deltas <= 7 + 12 + 7
    same(pair.source, pair.target)


def test_the_deltas_of_a_version_are_together_smaller_than_two_whole_versions(pair: Pair) -> None:
    for step in range(1, 30):
        pair.publish(step, changed=SIZE // 3)
        done = pair.upload.run_once()
    newest = current_state(pair).newest
    assert done is not None
    assert newest is not None
    assert sum(edge.size for edge in download.read_manifest(pair.bucket, newest).edges) < 2 * done.size


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


def test_a_version_that_changes_little_does_not_wait_for_a_whole_one_that_is_due(pair: Pair) -> None:
    wholes = set()
    for step in range(1, 30):
        pair.publish(step, changed=SIZE // 15)
        done = pair.upload.run_once()
        assert done is not None
        assert done.way == ("whole" if step == 1 else "delta")
        wholes |= {name for name in current_state(pair).objects if name.startswith("data/")}
        new = pair.follower(f"new{step}")
        fetched = new.run_once()
        assert fetched is not None
        assert fetched.bytes <= 1.5 * fetched.size
        same(pair.source, Store(pair.folder / f"new{step}"))
        new.close()
    assert len(wholes) > 1


def test_a_whole_version_that_did_not_get_through_is_left_out_and_a_later_one_is_sent(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(upload, "_KEPT", 1)  # a whole version is due each time
    monkeypatch.setattr(upload, "GRACE", 0.0)
    put = pair.bucket.put

    def lost(name: str, *arguments: Any) -> None:
        put(name, *arguments)
        if name == pair.name("data", "2"):
            raise ConnectionError("only the answer is lost")

    monkeypatch.setattr(pair.bucket, "put", lost)
    for step in range(1, 5):
        pair.publish(step)
        done = pair.upload.run_once()
        assert done is not None
        assert done.way == ("whole" if step == 1 else "delta")
        assert pair.upload.run_once() is None
    wholes = {name for name in current_state(pair).objects if name.startswith("data/")}
    assert wholes == {pair.name("data", "1"), pair.name("data", "3")}
    assert pair.name("data", "2") not in pair.names()
    pair.download.run_once()
    same(pair.source, pair.target)


def test_tensors_of_many_portions_and_of_none_come_whole_and_as_deltas(pair: Pair) -> None:
    chance = np.random.default_rng(0)
    for at, size in enumerate((0, 1, PORTION - 1, PORTION, 2 * PORTION + 5, 63, 0)):
        pair.tensors[f"bytes/{at}"] = chance.integers(0, 256, size, np.uint8)
    for step in (1, 2):
        pair.publish(step)
        pair.upload.run_once()
        done = pair.download.run_once()
        assert done is not None
        assert done.way == ("whole" if step == 1 else "delta")
        same(pair.source, pair.target)
        pair.tensors["bytes/4"] = pair.tensors["bytes/4"] ^ (chance.random(2 * PORTION + 5) < 0.01)


def test_a_large_delta_comes_as_well(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(download, "PORTION", 100)
    monkeypatch.setattr(upload, "_SMALL", 100)
    for step in (1, 2):
        pair.publish(step)
        pair.upload.run_once()
        pair.download.run_once()
    same(pair.source, pair.target)


@pytest.mark.parametrize("together", [1, 8])
def test_a_tensor_that_did_not_change_stays_in_its_file(
    pair: Pair, monkeypatch: pytest.MonkeyPatch, together: int
) -> None:
    monkeypatch.setattr(tensors, "_TOGETHER", together)
    pair.tensors["frozen"] = np.random.default_rng(0).integers(0, 256, 3 * PORTION, np.uint8)
    for step in (1, 2):
        pair.publish(step)
        pair.upload.run_once()
        pair.writer.close()
        pair.writer = StoreWriter(pair.source.path, keep=3)  # which writes all tensors, also the frozen one
        pair.download.run_once()
    source, target = (
        [store.open(store.find(at)).marks("frozen") for at in (1, 2)] for store in (pair.source, pair.target)
    )
    assert source[0] != source[1]
    assert target[0] == target[1]
    same(pair.source, pair.target)


def test_a_whole_version_is_sent_where_a_delta_would_take_longer(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(upload, "_LARGE", 0)
    ways = []
    for step, seconds in ((1, None), (2, 1e-9), (3, 1e9), (4, None)):
        monkeypatch.setattr(Bucket, "seconds", lambda bucket, size, seconds=seconds: seconds)
        pair.publish(step)
        done = pair.upload.run_once()
        assert done is not None
        ways.append(done.way)
        pair.download.run_once()
        same(pair.source, pair.target)
    assert ways == ["whole", "whole", "delta", "delta"]


def test_a_version_whose_bytes_stop_coming_is_fetched_at_the_next_look(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    pair.publish(1)
    pair.upload.run_once()
    for error in (ConnectionError("away"), FileNotFoundError("gone")):
        with monkeypatch.context() as patch:
            patch.setattr(Bucket, "get_range", failing(error))
            if isinstance(error, ConnectionError):
                with pytest.raises(ConnectionError, match="away"):
                    pair.download.run_once()
            else:
                assert pair.download.run_once() is None
        assert pair.target.latest() is None
    pair.download.run_once()
    same(pair.source, pair.target)


def test_a_follower_that_versions_always_leave_before_they_arrive_says_so(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    def publish_whole(step: int) -> None:
        pair.upload = pair.publisher()
        pair.publish(step)
        pair.upload.run_once()

    with monkeypatch.context() as patch:
        patch.setattr(Bucket, "get_range", failing(FileNotFoundError("gone")))
        publish_whole(1)
        assert pair.download.run_once() is None
        publish_whole(2)
        with pytest.raises(RemoteError, match="version 2 lacks an object: gone; keep more versions"):
            pair.download.run_once()
    publish_whole(3)
    pair.download.run_once()
    same(pair.source, pair.target)


def test_partitioned_variables_come_in_one_piece_and_as_deltas(pair: Pair) -> None:
    source = pair.folder / "partitioned"
    source.mkdir()
    publisher = Upload(Store(source), pair.bucket, keep=3, stop=pair.stop)
    array = partitioned.bits(1000, 8)
    for step in (1, 2):
        array[step] += 1
        prefix = source / f"ckpt-{step}"
        partitioned.save(prefix, array, ["0,600:-", "600,400:-"])
        tf.compat.v1.train.update_checkpoint_state(str(source), str(prefix))
        publisher.run_once()
        done = pair.download.run_once()
        assert done is not None
        assert done.way == ("whole" if step == 1 else "delta")
        version = pair.target.latest()
        assert version is not None
        assert (pair.target.open(version).array("kernel") == array).all()


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


@pytest.mark.parametrize("finished", [True, False], ids=["finished", "died"])
def test_followers_know_how_the_last_publisher_ended_until_another_one_begins(pair: Pair, finished: bool) -> None:
    def publisher() -> PublisherState | None:
        pair.download.run_once()
        pair.download.note(BucketStatus(address=pair.bucket.address))
        note = copy_note.read(pair.target.path)
        assert note is not None
        return None if note.publisher is None else note.publisher.state

    pair.publish(1)
    for _ in range(2):
        pair.upload.run_once()
        assert publisher() is None
    pair.writer.close(finished=finished)
    assert pair.upload.run_once() is None
    assert publisher() is (PublisherState.FINISHED if finished else PublisherState.DIED)
    sequence = current_state(pair).sequence
    assert pair.upload.run_once() is None
    assert current_state(pair).sequence == sequence
    pair.writer = StoreWriter(pair.source.path, keep=3)
    pair.publish(2)
    pair.upload.run_once()
    assert publisher() is None
    pair.writer.close()
    pair.upload.run_once()
    assert publisher() is PublisherState.FINISHED
    pair.publisher().start()
    assert publisher() is None


def test_a_mirror_of_a_copy_tells_on_how_the_publisher_ended(pair: Pair) -> None:
    there = Bucket("s3://bucket/other", store=obstore.store.MemoryStore())
    relay = Upload(pair.target, there, keep=3, stop=pair.stop)

    def ended() -> str:
        pair.upload.run_once()
        pair.download.run_once()
        pair.download.note(BucketStatus(address=pair.bucket.address))
        relay.run_once()
        return there.state().ended

    pair.publish(1)
    assert [ended(), ended()] == ["", ""]
    pair.writer.close(finished=False)
    assert ended() == "died"
    assert there.state().ended_at == current_state(pair).ended_at


def test_the_end_of_a_publisher_is_told_again_after_a_version_that_came_late(pair: Pair) -> None:
    there = Bucket("s3://bucket/other", store=obstore.store.MemoryStore())
    relay = Upload(pair.target, there, keep=3, stop=pair.stop)
    for step in (1, 2):
        pair.publish(step)
        pair.upload.run_once()
        if step == 1:
            pair.download.run_once()
            relay.run_once()
    pair.writer.close()
    pair.upload.run_once()
    data = pair.name("deltas", "1-2")
    sound = bytes(obstore.get(pair.objects, data).bytes())
    obstore.put(pair.objects, data, b"damaged")
    with pytest.raises(RemoteError, match="came damaged"):
        pair.download.run_once()
    pair.download.note(BucketStatus(address=pair.bucket.address))
    relay.run_once()
    assert there.state().ended == "finished"
    obstore.put(pair.objects, data, sound)
    pair.download.close()
    pair.download = pair.follower("target")
    pair.download.run_once()
    relay.run_once()
    relay.run_once()
    assert there.state().ended == "finished"


def test_a_publisher_that_ended_without_giving_its_lock_back_died(pair: Pair) -> None:
    pair.publish(1)
    pair.upload.run_once()
    pair.upload.tell_end()
    assert current_state(pair).ended == ""
    pair.upload.tell_end(is_over=True)
    assert current_state(pair).ended == "died"


def test_the_end_of_a_publisher_is_told_later_if_the_bucket_is_away(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    pair.publish(1)
    pair.upload.run_once()
    pair.writer.close()
    with monkeypatch.context() as patch:
        patch.setattr(Bucket, "perform", failing(ConnectionError("away")))
        assert pair.upload.run_once() is None
    assert current_state(pair).ended == ""
    pair.upload.run_once()
    assert current_state(pair).ended == "finished"


def test_a_publisher_that_another_one_replaced_stops_and_says_so(pair: Pair) -> None:
    pair.publish(1)
    pair.upload.run_once()
    other = pair.publisher()
    other.start()
    pair.publish(2)
    with pytest.raises(FencedError, match="another publisher has begun"):
        pair.upload.run_once()
    assert other.run_once() is not None


def test_a_store_that_began_anew_below_the_bucket_is_reported(pair: Pair) -> None:
    pair.publish(10)
    pair.upload.run_once()
    with StoreWriter(pair.folder / "anew") as writer:
        now = time.time()
        writer.commit(Version(number=1, step=1, prefix="", step_done_at=now, snapshot_at=now), pair.tensors)
    anew = Upload(Store(pair.folder / "anew"), pair.bucket, keep=3, stop=pair.stop)
    with pytest.raises(RemoteError, match="version 1 here and version 10 in the bucket"):
        anew.run_once()


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
    assert pair.name("versions", "1.json") not in pair.names()
    pair.download.run_once()
    same(pair.source, pair.target)


def test_objects_that_no_state_came_to_name_are_deleted_too(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(upload, "GRACE", 0.0)
    pair.publish(1)
    pair.upload.run_once()
    strangers = {"data/2024/mine", "data/0/12", "versions/0/7.json", "deltas/0/1-2", f"data/0/{'f' * 8}-1"}
    for name in strangers:
        obstore.put(pair.objects, name, b"not of paramsync")
    with monkeypatch.context() as patch:
        patch.setattr(Bucket, "perform", failing(ConnectionError("away")))
        pair.publish(2)
        with pytest.raises(ConnectionError):
            pair.upload.run_once()
    assert pair.name("deltas", "1-2") in pair.names()
    pair.publish(3)
    pair.upload.run_once()
    pair.upload.run_once()
    assert pair.name("deltas", "1-2") not in pair.names()
    with monkeypatch.context() as patch:
        patch.setattr(Bucket, "perform", failing(ConnectionError("away")))
        pair.publish(4)
        with pytest.raises(ConnectionError):
            pair.upload.run_once()
    assert pair.name("versions", "4.json") in pair.names()
    pair.upload = pair.publisher()
    for step in (5, 6):
        pair.publish(step)
        pair.upload.run_once()
    assert pair.name("versions", "4.json") not in pair.names()
    assert strangers <= pair.names()
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
    def fail(*arguments: object, **options: object) -> None:
        raise error

    return fail


def test_state_and_manifest_stay_small_however_many_versions_come(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(upload, "_STRIDES", (1, 2, 4))
    monkeypatch.setattr(upload, "_KEPT", 4)
    monkeypatch.setattr(upload, "_LEAST", 4)
    monkeypatch.setattr(upload, "MOST_CONDEMNED", 10)
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
    most = tuple(Listed(number, f"versions/{10**6}/{'0' * 8}-{number}.json", "0" * 64) for number in numbers)
    names = [f"deltas/{10**6}/{'0' * 8}-{number}-{number + 64}" for number in range(10**9, 10**9 + 820)]
    objects = dict.fromkeys(names[:300], (numbers[0], numbers[-1]))
    full = State("0" * 32, 10**6, 10**9, "0" * 32, "0" * 32, most, objects, tuple(names[300:]))
    assert len(full.to_json()) < state.LIMIT


@pytest.mark.parametrize(("quiet", "seconds"), [(0.0, BUSY), (0.5, BUSY), (8.0, 0.5), (32.0, IDLE), (1e6, IDLE)])
def test_looks_become_rarer_the_longer_no_version_comes(quiet: float, seconds: float) -> None:
    assert pause(quiet) == seconds


def test_a_look_without_a_new_version_reads_no_file_of_the_copy(pair: Pair) -> None:
    pair.publish(1)
    pair.upload.run_once()
    pair.download.run_once()
    with opened() as names:
        pair.download.run_once()
        assert names == []
        (pair.target.path / "ckpt-1.json").touch()
        pair.download.run_once()
        assert "ckpt-1.json" in names


def test_the_probe_leaves_nothing_behind(pair: Pair) -> None:
    pair.bucket.probe(threading.Event())
    assert pair.names() == set()


@pytest.mark.parametrize(
    "address", ["s3://bucket/m?key=secret", "s3://key:secret@bucket/m", "digits", "http://host/bucket", "s3:bucket"]
)
def test_an_address_with_a_secret_or_of_no_bucket_is_refused(address: str) -> None:
    with pytest.raises(Exception, match="expected") as refused:
        Bucket(address)
    assert "secret" not in str(refused.value)


def test_no_version_is_skipped_that_waits_for_its_moment(pair: Pair) -> None:
    for step in (1, 2):
        pair.publish(step)
    pair.publish(3, serve_after=-1.0)
    waiting = [pair.publish(step, serve_after=600.0 + step) for step in (4, 5)]
    for expected in waiting:
        sent = pair.upload.run_once()
        assert sent is not None
        assert sent.version == expected
    assert pair.upload.run_once() is None
    for expected in waiting:
        fetched = pair.download.run_once()
        assert fetched is not None
        assert fetched.version == expected
    assert pair.download.run_once() is None
    same(pair.source, pair.target)


@pytest.mark.parametrize("kind", ["data", "versions"])
def test_a_damaged_version_that_waits_for_its_moment_does_not_keep_others_from_coming(pair: Pair, kind: str) -> None:
    for step in (1, 2, 3):
        pair.upload = pair.publisher()
        pair.publish(step, serve_after=600.0)
        pair.upload.run_once()
    [first] = [name for name in pair.names() if name.startswith(f"{kind}/1/")]
    obstore.put(pair.objects, first, b"damaged")
    if kind == "data":
        with pytest.raises(RemoteError, match="version 1 came damaged"):
            pair.download.run_once()
    for number in (2, 3):
        done = pair.download.run_once()
        assert done is not None
        assert done.version.number == number
    assert pair.download.run_once() is None
    same(pair.source, pair.target)


def test_versions_whose_moments_are_over_are_skipped_as_others_are(pair: Pair) -> None:
    for step in (1, 2, 3):
        pair.publish(step, serve_after=0.0)
        pair.upload.run_once()
    fetched = pair.download.run_once()
    assert fetched is not None
    assert fetched.version.number == 3
