"""A publisher goes on over a `checkpoint` that somebody damaged, and followers serve what it publishes."""

from __future__ import annotations

import json
import os
import random
from collections.abc import Callable
from pathlib import Path

import pytest
import tensorflow as tf

from paramsync.errors import StoreError
from paramsync.following.follower import Follower
from paramsync.store.commit import StoreWriter
from paramsync.store.store import Store, state_file
from tests.support.followers import quarantined, serving
from tests.support.published import Publisher, ask, proven
from tests.support.troubles import as_nobody
from tests.support.whole import assert_whole
from tests.support.written import names, publish, tensors, version


def other(content: Callable[[bytes], bytes]) -> Callable[[Path], object]:
    return lambda state: state.write_bytes(content(state.read_bytes()))


def instead(make: Callable[[Path], object]) -> Callable[[Path], object]:
    def put(state: Path) -> None:
        state.unlink()
        make(state)

    return put


def folder(state: Path) -> None:
    state.mkdir()
    (state / "inside").touch()


DAMAGES: dict[str, Callable[[Path], object]] = {
    "garbage": other(lambda _: b"garbage {{{"),
    "nothing": other(lambda _: b""),
    "binary": other(lambda _: random.Random(0).randbytes(5000)),
    "huge": lambda state: os.truncate(state, 1 << 30),
    "JSON": other(lambda _: json.dumps({"model_checkpoint_path": "ckpt-2"}).encode()),
    "a path elsewhere": other(lambda _: b'model_checkpoint_path: "../../etc/passwd"'),
    "a version that is not there": other(lambda _: b'model_checkpoint_path: "ckpt-7"'),
    "a folder": instead(folder),
    "a pipe": instead(os.mkfifo),
    "a link": instead(lambda state: state.symlink_to("/etc/passwd")),
    "gone": Path.unlink,
}


@pytest.fixture(params=DAMAGES, ids=str)
def damage(request: pytest.FixtureRequest) -> Callable[[Path], object]:
    return DAMAGES[request.param]


def test_the_open_publisher_goes_on_and_its_versions_are_served(
    publisher: Publisher, follower: Follower, damage: Callable[[Path], object]
) -> None:
    publisher.publish(1)
    publisher.publish(2)
    follower.run_once()
    damage(state_file(publisher.path))
    follower.run_once()
    assert (serving(follower), quarantined(follower)) == (2, [])
    number = publisher.publish(3).number
    assert number > 2
    follower.run_once()
    assert (serving(follower), follower.status().reason) == (number, "")
    assert proven(*ask(follower))
    assert [one.number for one in Store(publisher.path).versions()] == [1, 2, number]


def test_what_was_damaged_is_kept_under_one_name_and_what_is_there_is_listed_at_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    publish(tmp_path, 1, 2)
    state = state_file(tmp_path)
    whole = state.read_bytes()
    for content in (b"{{{ first", b"{{{ second"):
        state.write_bytes(content)
        StoreWriter(tmp_path).close()
        assert state.read_bytes() == whole  # before anything is published
        assert (tmp_path / "checkpoint.damaged").read_bytes() == content
    folder(tmp_path / "other")
    for _ in range(2):
        state.unlink()
        folder(state)
        StoreWriter(tmp_path).close()
        assert state.read_bytes() == whole
        assert (tmp_path / "checkpoint.damaged" / "inside").exists()
    state.write_bytes(b"{{{ third")
    StoreWriter(tmp_path).close()
    assert (tmp_path / "checkpoint.damaged").read_bytes() == b"{{{ third"
    assert len([name for name in names(tmp_path) if "checkpoint" in name]) == 1
    assert len(caplog.messages) == 5
    assert caplog.messages[0].endswith("set aside as checkpoint.damaged, written anew with ckpt-2 as the latest")


def test_a_store_of_which_nothing_is_left_begins_anew(tmp_path: Path) -> None:
    (tmp_path / "checkpoint").write_text("nonsense")
    with StoreWriter(tmp_path) as writer:
        assert not (tmp_path / "checkpoint").exists()
        writer.commit(version(0), tensors(0))
    assert assert_whole(tmp_path) == 0


def test_what_tensorflow_wrote_stays_listed_by_the_publisher_that_knew_of_it(tmp_path: Path) -> None:
    with StoreWriter(tmp_path, keep=1) as writer:
        tf.train.Checkpoint(weights=tf.Variable(1.0)).write(str(tmp_path / "theirs-1"))
        tf.compat.v1.train.update_checkpoint_state(str(tmp_path), "theirs-1")
        writer.commit(version(2), tensors(2))
        (tmp_path / "checkpoint").write_text("nonsense")
        writer.commit(version(3), tensors(3))
    assert [one.prefix for one in Store(tmp_path).versions()] == ["theirs-1", "ckpt-3"]


def test_a_state_that_may_not_be_read_now_is_no_damage(tmp_path: Path) -> None:
    publish(tmp_path, 1, 2)
    state = state_file(tmp_path)
    before = state.stat().st_mode
    state.chmod(0)

    def refused() -> str:
        with pytest.raises(StoreError) as caught:
            StoreWriter(tmp_path)
        return str(caught.value)

    assert as_nobody(refused).endswith("checkpoint cannot be read: Permission denied")
    state.chmod(before)
    publish(tmp_path, 3)
    assert not (tmp_path / "checkpoint.damaged").exists()
    assert [one.number for one in Store(tmp_path).versions()] == [1, 2, 3]


def test_an_index_that_may_not_be_read_now_costs_no_version_and_stops_no_publication(tmp_path: Path) -> None:
    """Of a version of ours that TensorFlow may have written over nobody can tell: it stays."""
    publish(tmp_path, 1, 2)
    index = tmp_path / "ckpt-1.index"
    before = index.stat().st_mode
    index.chmod(0)
    as_nobody(lambda: publish(tmp_path, 3, keep=1))
    index.chmod(before)
    assert [one.number for one in Store(tmp_path).versions()] == [1, 3]
    publish(tmp_path, 4, keep=1)
    assert [one.number for one in Store(tmp_path).versions()] == [4]
