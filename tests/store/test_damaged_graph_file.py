"""Damaged graph files and `checkpoint`s are found, written again by their publisher, and then served."""

from __future__ import annotations

import json
import os
import random
from collections.abc import Callable
from pathlib import Path

import pytest
import tensorflow as tf

from paramsync.cli.__main__ import main
from paramsync.errors import StoreError
from paramsync.following.follower import Follower
from paramsync.graphs.graph import Graph
from paramsync.store.commit import StoreWriter
from paramsync.store.store import Store, add_checksum, has_checksum, state_file
from tests.support.followers import quarantined, serving
from tests.support.published import Doubled, Publisher, ask, captured, follower_of, proven
from tests.support.stores import following, serves
from tests.support.stores import quarantined as reason
from tests.support.tables import table_graph
from tests.support.troubles import as_nobody
from tests.support.whole import assert_whole
from tests.support.written import changing, names, publish, tensors, version


def graph_file(store: Path) -> Path:
    (found,) = store.glob("graph-*.pb")
    return found


def flipped(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def foldered(path: Path) -> None:
    path.unlink()
    path.mkdir()
    (path / "kept").touch()


GRAPH_DAMAGES: dict[str, Callable[[Path], object]] = {
    "a flipped bit": flipped,
    "half of it": lambda path: path.write_bytes(path.read_bytes()[: path.stat().st_size // 2]),
    "nothing": lambda path: path.write_bytes(b""),
    "garbage": lambda path: path.write_bytes(random.Random(0).randbytes(500)),
    "another graph": lambda path: path.write_bytes(captured(Doubled).graph.to_bytes()),
    "gone": Path.unlink,
    "a folder": foldered,
}


@pytest.fixture(params=GRAPH_DAMAGES, ids=str)
def damage_graph(request: pytest.FixtureRequest) -> Callable[[Path], object]:
    return GRAPH_DAMAGES[request.param]


def test_the_next_publication_mends_it_for_all_versions(
    publisher: Publisher, damage_graph: Callable[[Path], object], caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(3):
        publisher.publish()
    path = graph_file(publisher.path)
    whole = path.read_bytes()
    damage_graph(path)
    late = follower_of(publisher.path)
    late.run_once()
    assert (serving(late), quarantined(late)) == (None, [0, 1, 2])
    publisher.publish()
    assert path.read_bytes() == whole
    assert f"{path}: was damaged or removed, and is written again" in caplog.messages
    late.run_once()
    assert (serving(late), quarantined(late)) == (3, [])
    assert proven(*ask(late))


def test_a_folder_in_place_of_a_graph_is_set_aside_with_what_is_in_it(publisher: Publisher) -> None:
    publisher.publish()
    path = graph_file(publisher.path)
    foldered(path)
    publisher.publish()
    aside = path.with_name(f"{path.name}.damaged")
    assert (path.is_file(), [one.name for one in aside.iterdir()]) == (True, ["kept"])


def test_a_follower_whose_quarantine_was_for_the_graph_hears_that_it_was_mended(publisher: Publisher) -> None:
    publisher.publish(1)
    flipped(graph_file(publisher.path))
    with following(publisher.path) as follower:
        assert "graph-" in reason(follower, 1)
        aside = publisher.path / ".tmp-graph"
        aside.write_bytes(captured().graph.to_bytes())
        aside.replace(graph_file(publisher.path))
        serves(follower, 1)
        assert follower.status().quarantined == ()


def test_verify_finds_it(
    publisher: Publisher, damage_graph: Callable[[Path], object], capsys: pytest.CaptureFixture[str]
) -> None:
    publisher.publish(1)
    assert main(["verify", str(publisher.path)]) == 0
    damage_graph(graph_file(publisher.path))
    assert main(["verify", str(publisher.path)]) == 1
    assert f"{publisher.path}/graph-" in capsys.readouterr().out


def test_a_checksum_is_of_the_file_that_has_it(tmp_path: Path) -> None:
    for graph in (captured().graph, table_graph({"a": 1})):
        content = graph.to_bytes()
        assert has_checksum(content)
        again = Graph.from_bytes(content)
        assert again.to_bytes() == content
        assert add_checksum(content[:-34]) == content
        assert not has_checksum(content[:-1])
    assert not has_checksum(b"")


def test_a_graph_is_not_removed_while_nobody_can_tell_who_needs_it(tmp_path: Path) -> None:
    with StoreWriter(tmp_path) as writer:
        for number, graph in ((1, "aa"), (2, "bb"), (3, "bb")):
            writer.add_graph(graph, b"graph")
            writer.commit(version(number, graph=graph), changing(number))
    record = tmp_path / "ckpt-2.json"
    before = record.stat().st_mode
    record.chmod(0)

    def publish() -> None:
        with StoreWriter(tmp_path, keep=2) as writer:
            writer.commit(version(4), changing(4))

    as_nobody(publish)
    record.chmod(before)
    assert (tmp_path / "graph-bb.pb").exists()


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
