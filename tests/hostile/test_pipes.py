"""A pipe in place of any file of a store, into which nobody writes, holds up nobody."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
import tensorflow as tf

from paramsync.following.follower import Follower
from paramsync.following.replica import Replica
from tests.support.followers import LONG, SILENT, serving
from tests.support.stores import Scaled, saved_by_v2, saved_with_words


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Numbered SavedModels of each kind."""
    path = tmp_path_factory.mktemp("written")
    (path / "list").write_text("a\nb")
    for number in (1, 2):
        saved_by_v2(path / "variables" / str(number), number)
        saved_with_words(path / "assets" / str(number), path / "list")
    return path


@pytest.fixture
def looked(tmp_path: Path) -> Iterator[list[Follower]]:
    followers: list[Follower] = []
    yield followers
    for one in followers:
        one.close()


def look(path: Path, looked: list[Follower], graph: Path | None = None) -> Follower:
    """One that has done its first look in time."""
    follower = Follower(Replica("m", path, graph=graph), poll_seconds=3600)
    looked.append(follower)
    follower.start(SILENT)
    follower.looked.result(LONG)
    return follower


PIECES = [
    "assets/2/assets/list",
    "assets/2/assets",
    "assets/2/saved_model.pb",
    "variables/2/variables/variables.index",
    "variables/2/variables/variables.data-00000-of-00001",
    "variables/2/variables",
    "variables/2",
]


@pytest.mark.parametrize("piece", PIECES)
def test_the_saved_model_before_serves(written: Path, tmp_path: Path, looked: list[Follower], piece: str) -> None:
    base = tmp_path / piece.split("/")[0]
    shutil.copytree(written / base.name, base)
    moved = tmp_path / piece
    moved.rename(tmp_path / "away")
    os.mkfifo(moved)
    assert serving(look(base, looked)) == 1


@pytest.mark.parametrize("piece", ["graph", "graph/saved_model.pb"])
def test_a_graph_that_was_given_is_refused(tmp_path: Path, looked: list[Follower], piece: str) -> None:
    tf.train.CheckpointManager(tf.train.Checkpoint(net=Scaled()), str(tmp_path / "store"), None).save(1)
    (tmp_path / piece).parent.mkdir(exist_ok=True)
    os.mkfifo(tmp_path / piece)
    (found,) = look(tmp_path / "store", looked, tmp_path / "graph").status().quarantined
    assert "expected a regular file" in found.reason


def test_a_base_that_is_a_pipe_is_told(tmp_path: Path, looked: list[Follower]) -> None:
    os.mkfifo(tmp_path / "base")
    assert "expected a directory" in (look(tmp_path / "base", looked).status().reason or "")
