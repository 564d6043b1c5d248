"""Which graph of a store values are given for: one that is there, whole, and said where there are several."""

from __future__ import annotations

from pathlib import Path

import keras
import pytest

from paramsync.errors import GraphError, SettingsError, StoreError
from paramsync.graphs.capturing import capture
from paramsync.publishing.publisher import Publisher
from tests.support.givens import Affine, put, values
from tests.support.training import EVERY_STEP


@pytest.fixture
def store(tmp_path: Path) -> Path:
    put(tmp_path, Affine())
    return tmp_path


def test_a_store_without_a_graph_says_how_to_put_one_there(tmp_path: Path) -> None:
    for store in (tmp_path, tmp_path / "none"):
        with pytest.raises(
            SettingsError, match=f"found none; publish it: paramsync graph publish MODULE:BUILD {store}"
        ):
            Publisher.of_graph(store, schedule=EVERY_STEP)
    assert not (tmp_path / "none").exists()


def test_which_of_several_graphs_has_to_be_said(store: Path) -> None:
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    digests = sorted([put(store, model).graph.digest, capture(Affine()).graph.digest])
    with pytest.raises(SettingsError, match=f"found 2; say which by its digest: {', '.join(digests)}"):
        Publisher.of_graph(store, schedule=EVERY_STEP)
    with pytest.raises(SettingsError, match=f"expected graph 'abc', found {', '.join(digests)}"):
        Publisher.of_graph(store, "abc", schedule=EVERY_STEP)
    with Publisher.of_graph(store, capture(Affine()).graph.digest, schedule=EVERY_STEP) as publisher:
        publisher.publish(1, values=values())


def test_a_graph_file_that_is_damaged_is_refused(store: Path) -> None:
    (path,) = store.glob("graph-*.pb")
    for content, message in ((b"\xff", "not readable"), (b"", "expected graph")):
        path.write_bytes(content)
        with pytest.raises(GraphError, match=message):
            Publisher.of_graph(store, schedule=EVERY_STEP)
    path.unlink()
    path.mkdir()
    with pytest.raises((GraphError, StoreError), match="graph-"):
        Publisher.of_graph(store, schedule=EVERY_STEP)
