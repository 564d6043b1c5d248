"""Numbered SavedModels, as TensorFlow Serving follows them: which are versions, which serve; no link is followed."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.core.protobuf import saved_model_pb2

from paramsync.errors import GraphError, UnfinishedError
from paramsync.following.follower import Follower
from paramsync.following.replica import Replica
from paramsync.graphs.capturing import capture
from paramsync.graphs.graph import Graph
from paramsync.sources.opening import open_source
from paramsync.version import Version
from tests.support.compressed import compress
from tests.support.followers import serving
from tests.support.stores import (
    WRITERS,
    Scaled,
    X,
    answer,
    following,
    saved_by_v1,
    saved_by_v2,
    saved_with_words,
    serves,
)


@pytest.fixture
def base(tmp_path: Path) -> Path:
    return tmp_path / "base"


@pytest.mark.parametrize("write", WRITERS)
def test_each_one_that_tensorflow_writes_comes_to_serve(base: Path, write: Callable[[Path, float], None]) -> None:
    with following(base) as follower:
        for number in (1, 2, 10):
            write(base / str(number), number)
            serves(follower, number)
            assert np.array_equal(answer(follower), number * X)
        first, last = follower.replica.residents[-1], follower.replica.serving()
        assert first.graph is last.graph  # the same model again: nothing has to be prepared for it


@pytest.mark.parametrize("write", [saved_by_v1, saved_by_v2])
def test_one_whose_index_older_tensorflow_compressed_comes_to_serve(
    base: Path, write: Callable[[Path, float], None]
) -> None:
    write(base / "1", 3.0)
    compress(base / "1" / "variables" / "variables.index")
    assert tf.train.list_variables(str(base / "1" / "variables" / "variables"))  # TensorFlow reads it too
    with following(base) as follower:
        serves(follower, 1)
        assert np.array_equal(answer(follower), 3 * X)


def numbers(base: Path) -> list[int]:
    return open_source(base).look().numbers or []


def test_names_are_numbers_as_they_are_for_tensorflow_serving(base: Path) -> None:
    saved_by_v1(base / "00042", 1.0)
    for name in ("tmp123", "-1", "1.0", "0x3", "7 ", "\u0665", "9" * 19, "copying-5", "3-temp"):
        shutil.copytree(base / "00042", base / name)
    (base / "8").mkdir()  # nothing in it yet
    (base / "9").write_text("no directory")
    assert numbers(base) == [42]
    shutil.copytree(base / "00042", base / "0")
    assert numbers(base) == [0, 42]


def test_one_that_is_written_again_in_place_is_served_again(base: Path) -> None:
    with following(base) as follower:
        saved_by_v2(base / "1", 1.0)
        serves(follower, 1)
        swaps = follower.status().swaps
        shutil.rmtree(base / "1")
        saved_by_v2(base / "1", 5.0)
        follower.sync(timeout=60)
        while follower.status().swaps == swaps:
            follower.sync(timeout=60)
        assert np.array_equal(answer(follower), 5 * X)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_values_that_are_not_finite_are_not_served_and_the_next_best_is(base: Path, value: float) -> None:
    saved_by_v1(base / "1", 1.0)
    saved_by_v1(base / "2", value)
    follower = Follower(Replica("m", base))
    follower.run_once()
    assert follower.status().serving == version_of(base, 1)
    (one,) = follower.status().quarantined
    assert "finite values" in one.reason


def version_of(base: Path, number: int) -> Version | None:
    look = open_source(base).look()
    return next((one.version for one in look.published or [] if one.number == number), None)


def test_tables_and_their_files_come_with_each_version(base: Path, tmp_path: Path) -> None:
    for number, words in enumerate((["a", "b"], ["b", "a"]), start=1):
        (tmp_path / "words").write_text("\n".join(words))
        saved_with_words(base / str(number), tmp_path / "words")
    source = open_source(base)
    found = [source.restore(one.version, lambda _: None) for one in source.look().published or []]
    asked = {"word": np.array([b"a", b"b"], object)}
    assert [one.predict(asked)["id"].numpy().tolist() for one in found] == [[0, 1], [1, 0]]


def test_a_directory_that_becomes_a_store_of_checkpoints_is_followed_on(base: Path, tmp_path: Path) -> None:
    saved_by_v2(base / "1", 1.0)
    source = open_source(base)
    assert source.look().numbers == [1]
    shutil.rmtree(base)
    assert source.look().numbers == []
    tf.train.CheckpointManager(tf.train.Checkpoint(net=Scaled()), str(base), None).save(7)
    assert source.look().numbers == [7]


def test_what_was_said_about_checkpoints_is_told_to_be_of_no_use(base: Path, tmp_path: Path) -> None:
    saved_by_v1(base / "1", 1.0)
    problem = open_source(base, graph=tmp_path / "graph").look().problem
    assert "expected checkpoints, found numbered SavedModels" in str(problem)


SECRET = "root:x:0:0"


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """SavedModels: `words` has an asset, `weights` has variables."""
    path = tmp_path_factory.mktemp("written")
    (path / "list").write_text("a\nb")
    saved_with_words(path / "words", path / "list")
    saved_by_v2(path / "weights", 2.0)
    return path


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    """A directory with files of the names that are asked for."""
    directory = tmp_path / "outside"
    directory.mkdir()
    (directory / "list").write_text(SECRET)
    return directory


def named(directory: Path, name: str) -> None:
    """Have a SavedModel say that its asset has this name."""
    saved = saved_model_pb2.SavedModel.FromString((directory / "saved_model.pb").read_bytes())
    saved.meta_graphs[0].asset_file_def[0].filename = name
    (directory / "saved_model.pb").write_bytes(saved.SerializeToString())


def words(graph: Graph) -> list[bytes]:
    found = graph([], {"word": tf.constant(["a", "b", SECRET])}, signature="serving_default")["id"]
    return [word for word, number in zip([b"a", b"b", SECRET.encode()], found.numpy(), strict=True) if number < 2]


def assets_are_a_link(version: Path, outside: Path) -> None:
    shutil.rmtree(version / "assets")
    (version / "assets").symlink_to(outside)


def the_file_is_a_link(version: Path, outside: Path) -> None:
    (version / "assets" / "list").unlink()
    (version / "assets" / "list").symlink_to(outside / "list")


def a_folder_between_is_a_link(version: Path, outside: Path) -> None:
    (version / "assets" / "between").symlink_to(outside)
    named(version, "between/list")


def the_name_goes_up(version: Path, outside: Path) -> None:
    named(version, "../../outside/list")


ASSETS = [
    assets_are_a_link,
    the_file_is_a_link,
    a_folder_between_is_a_link,
    the_name_goes_up,
]


@pytest.mark.parametrize("harm", ASSETS)
def test_an_asset_that_a_link_or_a_name_leads_out_of_is_refused(
    written: Path, tmp_path: Path, outside: Path, harm: Callable[[Path, Path], None]
) -> None:
    shutil.copytree(written / "words", tmp_path / "base" / "1")
    shutil.copytree(written / "words", tmp_path / "base" / "2")
    harm(tmp_path / "base" / "2", outside)
    with pytest.raises(GraphError, match=r"expected a file in the folder assets|base/2/assets.*found a symbolic link"):
        capture(tmp_path / "base" / "2")
    follower = Follower(Replica("m", tmp_path / "base"))
    follower.run_once()
    assert (serving(follower), [one.number for one in follower.status().quarantined]) == (1, [2])


def test_an_asset_in_a_folder_of_the_assets_or_a_hard_link_is_read(written: Path, tmp_path: Path) -> None:
    shutil.copytree(written / "words", tmp_path / "1")
    (tmp_path / "1" / "assets" / "between").mkdir()
    (tmp_path / "1" / "assets" / "list").rename(tmp_path / "list")
    os.link(tmp_path / "list", tmp_path / "1" / "assets" / "between" / "list")
    named(tmp_path / "1", "between/list")
    assert words(capture(tmp_path / "1").graph) == [b"a", b"b"]


@pytest.mark.parametrize("what", ["assets", "assets/list"])
def test_a_link_that_takes_the_place_of_what_was_looked_at_is_not_followed(
    written: Path, tmp_path: Path, outside: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    """It comes once all was looked at, before TensorFlow reads."""
    shutil.copytree(written / "words", tmp_path / "1")
    imported = tf.graph_util.import_graph_def
    placed: list[str] = []

    def after(*arguments: Any, **named: Any) -> Any:
        if not placed:
            (tmp_path / "1" / what).rename(tmp_path / "aside")
            (tmp_path / "1" / what).symlink_to(outside if what == "assets" else outside / "list")
            placed.append(what)
        return imported(*arguments, **named)

    monkeypatch.setattr(tf.graph_util, "import_graph_def", after)
    assert (words(capture(tmp_path / "1").graph), placed) == ([b"a", b"b"], [what])


@pytest.mark.parametrize(
    "what", ["variables", "variables/variables.index", "variables/variables.data-00000-of-00001", "saved_model.pb"]
)
def test_variables_or_a_graph_that_a_link_leads_to_are_not_read(written: Path, tmp_path: Path, what: str) -> None:
    shutil.copytree(written / "weights", tmp_path / "1")
    shutil.copytree(written / "weights", tmp_path / "2")
    (tmp_path / "2" / what).rename(tmp_path / "elsewhere")
    (tmp_path / "2" / what).symlink_to(tmp_path / "elsewhere")
    follower = Follower(Replica("m", tmp_path))
    follower.run_once()
    assert serving(follower) == 1
    source = open_source(tmp_path)
    latest = source.look().latest
    assert latest is not None
    with pytest.raises(UnfinishedError, match="found a symbolic link"):
        source.restore(latest, lambda progress: None)


def test_a_version_that_is_itself_a_link_serves_from_the_directory_it_leads_to(written: Path, tmp_path: Path) -> None:
    for name in ("words", "weights"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "7").symlink_to(written / name)
        follower = Follower(Replica("m", tmp_path / name))
        follower.run_once()
        assert serving(follower) == 7
