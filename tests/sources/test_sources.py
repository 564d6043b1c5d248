"""What a source restores, with which graph, and what it says of a directory that it cannot serve."""

from __future__ import annotations

import logging
import os
import shutil
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from paramsync.errors import CorruptCheckpointError, ParameterError, SettingsError
from paramsync.following.follower import Follower
from paramsync.graphs.capturing import capture
from paramsync.sources.opening import open_source
from paramsync.store.commit import StoreWriter
from paramsync.store.store import Store
from tests.support.followers import saver_follower, serving
from tests.support.published import follower_of
from tests.support.stores import Scaled, X, answer, digits, following, quarantined, serves, train
from tests.support.written import publish


@pytest.mark.parametrize("way", ["tf.saved_model.save", "export", "graph file"])
def test_a_checkpoint_managers_directory_is_followed_with_a_graph_from(tmp_path: Path, way: str) -> None:
    model = digits()
    graph = tmp_path / "graph"
    if way == "export":
        model.export(str(graph), verbose=False)
    elif way == "graph file":
        capture(model).graph.save(graph)
    else:
        tf.saved_model.save(model, str(graph))
    store = tmp_path / "store"
    manager = tf.train.CheckpointManager(tf.train.Checkpoint(model=model), str(store), max_to_keep=2)
    with following(store, graph=graph) as follower:
        for number in (1, 2, 3):
            train(model)
            manager.save(number)
            serves(follower, number)
            assert np.array_equal(answer(follower), model(X))


def test_a_graph_that_comes_later_ends_the_wait_and_another_one_in_its_place_is_taken(tmp_path: Path) -> None:
    scaled = Scaled()
    scaled.fill(2)
    manager = tf.train.CheckpointManager(tf.train.Checkpoint(net=scaled), str(tmp_path / "store"), None)
    manager.save(1)
    graph = tmp_path / "not" / "yet" / "graph"
    with following(tmp_path / "store", graph=graph) as follower:
        assert f"needs the graph file {graph}, which is not there" in quarantined(follower, 1)
        graph.parent.mkdir(parents=True)
        tf.saved_model.save(scaled, str(graph), signatures=scaled.__call__)
        serves(follower, 1)
        assert np.array_equal(answer(follower), 2 * X)
        before = follower.replica.serving()
        shutil.rmtree(graph)
        assert np.array_equal(answer(follower), 2 * X)
        doubled = tf.function(lambda x: {"z": 2 * scaled(x)["y"]}, [tf.TensorSpec([None, 6], tf.float32, name="x")])
        tf.saved_model.save(scaled, str(graph), signatures=doubled)
        manager.save(2)
        serves(follower, 2)
        assert follower.replica.serving().graph is not before.graph
        assert np.array_equal(answer(follower), 4 * X)


def restored(store: Path, graph: Path) -> Any:
    source = open_source(store, graph=graph)
    (one,) = source.look().published or []
    return source.restore(one.version, lambda _: None)


def saved(store: Path, graph: Path, **objects: Scaled) -> None:
    """A checkpoint of these objects, and the graph of the first."""
    tf.train.CheckpointManager(tf.train.Checkpoint(**objects), str(store), None).save(1)
    capture(next(iter(objects.values()))).graph.save(graph)


def test_what_could_be_either_of_two_objects_is_refused(tmp_path: Path) -> None:
    saved(tmp_path / "store", tmp_path / "graph", net=Scaled(), average=Scaled())
    with pytest.raises(ParameterError, match=r"expected one object with .weight.*found several: .*average.* and .*net"):
        restored(tmp_path / "store", tmp_path / "graph")


def test_names_that_lead_nowhere_are_told_with_those_that_are_there(tmp_path: Path) -> None:
    saved(tmp_path / "store", tmp_path / "graph", net=Scaled())
    other = tf.train.Checkpoint(net=tf.train.Checkpoint(bias=tf.Variable([1.0])))
    tf.train.CheckpointManager(other, str(tmp_path / "other"), None).save(1)
    with pytest.raises(ParameterError, match=r"version 1: expected weight/.* .1 missing., found .*net/bias"):
        restored(tmp_path / "other", tmp_path / "graph")


def test_contradictions_are_refused_at_once(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="inputs and outputs together"):
        open_source(tmp_path, inputs=["x:0"])
    with pytest.raises(SettingsError, match="or a graph, found both"):
        open_source(tmp_path, inputs=["x:0"], outputs=["y:0"], graph=tmp_path / "graph")


def test_a_checkpoint_without_a_graph_says_how_to_give_one(tmp_path: Path) -> None:
    saved(tmp_path / "store", tmp_path / "graph", net=Scaled())
    with following(tmp_path / "store") as follower:
        reason = quarantined(follower, 1)
    assert "names no graph: give --inputs and --outputs to take it from" in reason
    assert "or a graph: the directory of a SavedModel" in reason


def test_a_lone_saved_model_is_told_where_it_should_be(tmp_path: Path) -> None:
    scaled = Scaled()
    tf.saved_model.save(scaled, str(tmp_path), signatures=scaled.__call__)
    problem = open_source(tmp_path).look().problem
    assert f"found one SavedModel: move it to {tmp_path / '1'}" in str(problem)


v1 = tf.compat.v1


def saved_by_script(
    path: Path, *, latest_filename: str | None = None, write_version: int | None = None, sharded: bool = False
) -> None:
    """By a script of TensorFlow 1: x to y."""
    told = {} if write_version is None else {"write_version": write_version}
    with tf.Graph().as_default(), v1.Session() as session:
        x = v1.placeholder(tf.float32, [None, 2], name="x")
        tf.multiply(x, v1.get_variable("w", [2]), name="y")
        session.run(v1.global_variables_initializer())
        saver = v1.train.Saver(sharded=sharded, **told)
        for step in (1, 2):
            saver.save(session, str(path / "model"), global_step=step, latest_filename=latest_filename)


def said(follower: Follower) -> str:
    follower.run_once()
    assert serving(follower) is None
    return follower.status().reason


def test_a_saver_that_calls_its_state_otherwise(tmp_path: Path) -> None:
    saved_by_script(tmp_path, latest_filename="newest")
    text = said(saver_follower(tmp_path))
    assert "expected a file checkpoint, which names the latest one, found 'newest' in its place" in text
    assert text.endswith("leave out latest_filename='newest' where the Saver saves")
    saved_by_script(tmp_path)
    follower = saver_follower(tmp_path)
    follower.run_once()
    assert (serving(follower), follower.status().reason) == (2, "")


@pytest.mark.parametrize("sharded", [False, True])
def test_the_format_before_the_one_that_is_read(tmp_path: Path, sharded: bool) -> None:
    saved_by_script(tmp_path, write_version=v1.train.SaverDef.V1, sharded=sharded)
    text = said(saver_follower(tmp_path))
    name = "model-2-?????-of-00001" if sharded else "model-2"
    assert f"checkpoint: expected the files of {name}, found {name} itself, in TensorFlow's V1 format" in text
    assert "leave out write_version" in text
    with pytest.raises(CorruptCheckpointError, match="V1 format"):
        Store(tmp_path).latest()


def test_checkpoints_that_nothing_lists(tmp_path: Path) -> None:
    tf.train.Checkpoint(weights=tf.Variable(1.0)).write(str(tmp_path / "weights"))
    follower = follower_of(tmp_path)
    assert "found " not in said(follower)  # whoever saves may be about to list it
    then = time.time() - 5
    os.utime(tmp_path / "weights.index", (then, then))
    assert "found checkpoints ('weights.index') without it: save them by Checkpoint.save" in said(follower)


OTHERS = {
    "model.tflite": "found model.tflite, a TensorFlow Lite model",
    "export.meta": "found export.meta, a SessionBundle: export the model as a SavedModel",
    "export-00000-of-00001": "found export-00000-of-00001, a SessionBundle",
    "model.keras": "found model.keras, a model as Keras saves it",
    "model.onnx": "found model.onnx, a model of ONNX",
}


@pytest.mark.parametrize("where", ["1", "00000123", ""])
@pytest.mark.parametrize("name", OTHERS)
def test_models_of_other_kinds(tmp_path: Path, where: str, name: str) -> None:
    (tmp_path / where).mkdir(exist_ok=True)
    (tmp_path / where / name).write_bytes(b"TFL3")
    text = said(follower_of(tmp_path))
    assert OTHERS[name] in text
    assert str(tmp_path / where / "saved_model.pb") in text


def test_nothing_is_said_of_what_may_still_become_something(tmp_path: Path) -> None:
    for name in ("3", "4/variables"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "notes").write_text("model_checkpoint_path: 'no file of this is here'")
    assert "found " not in said(follower_of(tmp_path))


def test_nothing_is_said_of_a_store_of_ours_before_its_first_version(tmp_path: Path) -> None:
    with StoreWriter(tmp_path):
        assert "found " not in said(follower_of(tmp_path))
    publish(tmp_path, 1)
    (tmp_path / "checkpoint").unlink()
    then = time.time() - 5
    os.utime(tmp_path / "ckpt-1.index", (then, then))
    assert "found " not in said(follower_of(tmp_path))


@pytest.mark.parametrize(
    ("file", "why"),
    [
        (None, "no such directory, {parent} is there"),
        ("", "the directory is empty"),
        ("notes.txt", "no `checkpoint` in it, nor a SavedModel in a directory whose name is a number"),
        ("publisher.lock", "its publisher has published nothing yet"),
        ("checkpoint", "its `checkpoint` names no version"),
    ],
)
def test_a_follower_says_what_it_waits_for_and_why(
    file: str | None, why: str, follower: Follower, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    if file is not None:
        (tmp_path / "m").mkdir()
    if file:
        (tmp_path / "m" / file).touch()
    expected = f"{tmp_path / 'm'}: {why.format(parent=tmp_path)}"
    with caplog.at_level(logging.WARNING, "paramsync"):
        for _ in range(3):
            follower.run_once()
    assert follower.status().reason == expected
    assert [record.getMessage() for record in caplog.records] == [f"m: waits for a version: {expected}"]
