"""Numbered SavedModels, as TensorFlow Serving follows them: which are versions, and which serve."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from paramsync.following.follower import Follower
from paramsync.following.replica import Replica
from paramsync.sources.opening import open_source
from paramsync.version import Version
from tests.support.compressed import compress
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
