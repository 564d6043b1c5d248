"""Checkpoints that TensorFlow writes, followed while it writes them, with graphs from wherever they are."""

from __future__ import annotations

import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from paramsync.errors import ParameterError, SettingsError
from paramsync.following.follower import Follower
from paramsync.following.replica import Replica
from paramsync.graphs.capturing import capture
from paramsync.sources.opening import open_source
from paramsync.sources.source import Progress
from tests.support.published import saver_store
from tests.support.stores import Scaled, X, answer, digits, following, quarantined, serves, train

# Followed live --------------------------------------------------------------------------------------------------------


def test_a_savers_directory_is_followed_with_the_graphs_beside_its_checkpoints(tmp_path: Path) -> None:
    with following(tmp_path, inputs=["x:0"], outputs=["y:0"]) as follower:
        x = np.ones([1, 2], np.float32)

        def look(step: int) -> None:
            serves(follower, step)
            answers.append(elsewhere.submit(answer, follower, x=x).result().tolist())  # here a v1 graph is built

        answers: list[Any] = []
        with ThreadPoolExecutor(1) as elsewhere:
            saver_store(tmp_path, 3, look)
        assert answers == [[[1, 1]], [[2, 2]], [[3, 3]]]


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


def test_the_same_version_is_taken_again_with_another_graph(tmp_path: Path) -> None:
    scaled = Scaled()
    scaled.fill(3)
    tf.train.CheckpointManager(tf.train.Checkpoint(net=scaled), str(tmp_path / "store"), None).save(1)
    graph = tmp_path / "graph"
    capture(scaled).graph.save(graph)
    follower = Follower(Replica("m", tmp_path / "store", graph=graph))
    assert follower.run_once() is not None
    assert follower.run_once() is None
    once_more = tf.function(lambda x: {"y": scaled(x)["y"] + 1}, [tf.TensorSpec([None, 6], tf.float32, name="x")])
    capture(scaled, signatures={"serving_default": once_more}).graph.save(graph)
    assert follower.run_once() is not None
    assert np.array_equal(answer(follower), 3 * X + 1)


# Names ----------------------------------------------------------------------------------------------------------------


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


def test_objects_with_the_same_variables_are_no_choice(tmp_path: Path) -> None:
    net = Scaled()
    saved(tmp_path / "store", tmp_path / "graph", net=net, again=net)
    assert len(restored(tmp_path / "store", tmp_path / "graph").parameters) == 1


def test_names_that_lead_nowhere_are_told_with_those_that_are_there(tmp_path: Path) -> None:
    saved(tmp_path / "store", tmp_path / "graph", net=Scaled())
    other = tf.train.Checkpoint(net=tf.train.Checkpoint(bias=tf.Variable([1.0])))
    tf.train.CheckpointManager(other, str(tmp_path / "other"), None).save(1)
    with pytest.raises(ParameterError, match=r"version 1: expected weight/.* .1 missing., found .*net/bias"):
        restored(tmp_path / "other", tmp_path / "graph")


def test_a_variable_of_another_shape_is_refused_with_both_sides(tmp_path: Path) -> None:
    saved(tmp_path / "store", tmp_path / "graph", net=Scaled())
    other = tf.train.Checkpoint(net=tf.train.Checkpoint(weight=tf.Variable([1.0, 2.0])))
    tf.train.CheckpointManager(other, str(tmp_path / "other"), None).save(1)
    with pytest.raises(ParameterError, match=r"expected weight/.* float32 \[6\], found float32 \[2\]"):
        restored(tmp_path / "other", tmp_path / "graph")


def test_a_variable_of_another_dtype_is_refused_with_both_sides(tmp_path: Path) -> None:
    saved(tmp_path / "store", tmp_path / "graph", net=Scaled())
    other = tf.train.Checkpoint(net=tf.train.Checkpoint(weight=tf.Variable(tf.zeros(6, tf.float64))))
    tf.train.CheckpointManager(other, str(tmp_path / "other"), None).save(1)
    with pytest.raises(ParameterError, match=r"expected weight/.* float32 \[6\], found float64 \[6\]"):
        restored(tmp_path / "other", tmp_path / "graph")


def test_it_is_told_how_far_a_version_is(tmp_path: Path) -> None:
    saved(tmp_path / "store", tmp_path / "graph", net=Scaled())
    source = open_source(tmp_path / "store", graph=tmp_path / "graph")
    (one,) = source.look().published or []
    told: list[Progress] = []
    source.restore(one.version, told.append)
    assert told == [
        Progress("mapping"),
        Progress("verifying", bytes_total=24, variables_total=1),
        Progress("verifying", bytes_done=24, bytes_total=24, variables_done=1, variables_total=1),
        Progress("warming"),
    ]


# What is said ---------------------------------------------------------------------------------------------------------


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
