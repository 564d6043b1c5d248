"""A graph file that was damaged is written again by its publisher, found by `verify`, and then served."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import pytest

from paramsync.cli.__main__ import main
from paramsync.graphs.graph import Graph
from paramsync.store.commit import StoreWriter
from paramsync.store.store import add_checksum, has_checksum
from tests.support.followers import quarantined, serving
from tests.support.published import Doubled, Publisher, ask, captured, follower_of, proven
from tests.support.stores import following, serves
from tests.support.stores import quarantined as reason
from tests.support.tables import table_graph
from tests.support.troubles import as_nobody
from tests.support.written import changing, version


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


DAMAGES: dict[str, Callable[[Path], object]] = {
    "a flipped bit": flipped,
    "half of it": lambda path: path.write_bytes(path.read_bytes()[: path.stat().st_size // 2]),
    "nothing": lambda path: path.write_bytes(b""),
    "garbage": lambda path: path.write_bytes(random.Random(0).randbytes(500)),
    "another graph": lambda path: path.write_bytes(captured(Doubled).graph.to_bytes()),
    "gone": Path.unlink,
    "a folder": foldered,
}


@pytest.fixture(params=DAMAGES, ids=str)
def damage(request: pytest.FixtureRequest) -> Callable[[Path], object]:
    return DAMAGES[request.param]


def test_the_next_publication_mends_it_for_all_versions(
    publisher: Publisher, damage: Callable[[Path], object], caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(3):
        publisher.publish()
    path = graph_file(publisher.path)
    whole = path.read_bytes()
    damage(path)
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
    publisher: Publisher, damage: Callable[[Path], object], capsys: pytest.CaptureFixture[str]
) -> None:
    publisher.publish(1)
    assert main(["verify", str(publisher.path)]) == 0
    damage(graph_file(publisher.path))
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
