"""Parameters of v1 graphs go by the names that their Saver writes, parts of one by the name of the whole."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import tensorflow as tf

from paramsync.errors import GraphError
from paramsync.following.replica import Replica
from paramsync.graphs.draft import finish
from paramsync.graphs.sources.meta_graphs import draft_of_meta
from paramsync.graphs.sources.v1_graphs import draft_of_tensors
from paramsync.store.store import Store
from tests.support.v1_captured import ONES, answer, meta_graph, names

v1 = tf.compat.v1


def averaged(directory: Path) -> None:
    """A graph that is trained with its own variables and served, by another Saver, with their moving averages."""
    with tf.Graph().as_default(), v1.Session() as session:
        x = v1.placeholder(tf.float32, (None, 4), name="x")
        weights = v1.get_variable("weights", (4, 2))
        tf.matmul(x, weights, name="y")
        average = tf.train.ExponentialMovingAverage(0.5)
        average.apply([weights])
        session.run(v1.global_variables_initializer())
        session.run(weights.assign(tf.ones((4, 2))))
        v1.train.Saver().save(session, str(directory / "own"))
        v1.train.Saver(average.variables_to_restore([weights])).save(session, str(directory / "averages"))


def test_names_are_those_that_the_saver_of_the_meta_file_writes(tmp_path: Path) -> None:
    averaged(tmp_path)
    own = meta_graph(tmp_path / "own.meta", inputs=["x"], outputs=["y"])
    averages = meta_graph(tmp_path / "averages.meta", inputs=["x"], outputs=["y"])
    assert names(own) == ["weights"]
    assert names(averages) == ["weights/ExponentialMovingAverage"]
    np.testing.assert_array_equal(answer(averages, tmp_path / "averages", {"x": ONES})["y"], [[4.0, 4.0]])


def test_names_of_live_tensors_are_those_of_the_saver_that_is_given() -> None:
    with tf.Graph().as_default():
        x = v1.placeholder(tf.float32, (None, 4), name="x")
        weights = v1.get_variable("weights", (4, 2))
        y = tf.matmul(x, weights)
        saver = v1.train.Saver({"old/w": weights})
    assert names(finish(draft_of_tensors([x], [y]))) == ["weights"]
    assert names(finish(draft_of_tensors([x], [y], saver=saver))) == ["old/w"]


def test_a_meta_graph_without_a_saver_names_variables_as_themselves() -> None:
    with tf.Graph().as_default() as graph:
        x = v1.placeholder(tf.float32, (None, 4), name="x")
        v1.get_variable("table", (4, 2), partitioner=v1.fixed_size_partitioner(2))
        tf.matmul(x, tf.concat(v1.global_variables(), 0), name="y")
        meta = v1.train.export_meta_graph(graph=graph)
    meta.ClearField("saver_def")
    assert names(finish(draft_of_meta(meta, ["x"], ["y"]))) == ["table"]


def test_two_variables_under_one_name_are_refused() -> None:
    with tf.Graph().as_default():
        x = v1.placeholder(tf.float32, (), name="x")
        one, two = v1.get_variable("one", ()), v1.get_variable("two", ())
        y = x * one + two
        saver = v1.train.Saver({"two": one})
    with pytest.raises(GraphError, match="'one' and 'two' are both saved as 'two'"):
        draft_of_tensors([x], [y], saver=saver)


def partitioned_store(path: Path, *, use_resource: bool, sharded: bool) -> npt.NDArray[Any]:
    """What a script with a partitioned variable leaves behind; returns the whole of it."""
    with tf.Graph().as_default(), v1.Session() as session:
        ids = v1.placeholder(tf.int32, (None,), name="ids")
        table = v1.get_variable(
            "table", (7, 3), partitioner=v1.fixed_size_partitioner(3), use_resource=use_resource,
            initializer=v1.random_normal_initializer(),
        )  # fmt: skip
        tf.identity(v1.nn.embedding_lookup(table, ids, partition_strategy="div"), name="rows")
        session.run(v1.global_variables_initializer())
        v1.train.Saver(sharded=sharded).save(session, str(path / "model"), global_step=1)
        return np.asarray(session.run(tf.convert_to_tensor(table)))


@pytest.mark.parametrize("sharded", [False, True], ids=["one shard", "sharded"])
@pytest.mark.parametrize("use_resource", [False, True], ids=["reference", "resource"])
def test_a_savers_store_of_a_partitioned_variable_is_served(tmp_path: Path, use_resource: bool, sharded: bool) -> None:
    whole = partitioned_store(tmp_path, use_resource=use_resource, sharded=sharded)
    store = Store(tmp_path)
    latest = store.latest()
    assert latest is not None
    replica = Replica("m", store, inputs=["ids:0"], outputs=["rows:0"])
    replica.swap(replica.restore(latest))
    found, version = replica.predict({"ids": np.array([6, 0, 3, 3], np.int32)})
    assert version.number == 1
    np.testing.assert_array_equal(found["rows"].numpy(), whole[[6, 0, 3, 3]])
    assert [(spec.name, spec.shape) for spec in replica.take().graph.parameters] == [("table", (7, 3))]


@pytest.mark.parametrize("place", ["7 3 0,3", "7 0,3:0,3", "a 3 0,3:0,3", "7 3 x:0,3", ""])
def test_a_saver_that_says_something_else_of_a_part_is_refused(tmp_path: Path, place: str) -> None:
    partitioned_store(tmp_path, use_resource=True, sharded=False)
    meta = v1.MetaGraphDef.FromString((tmp_path / "model-1.meta").read_bytes())
    listed = next(node for node in meta.graph_def.node if node.name == "save/SaveV2/shape_and_slices")
    listed.attr["value"].tensor.string_val[1] = place.encode()
    with pytest.raises(GraphError, match=r"Saver says|are both saved as"):
        draft_of_meta(meta, ["ids"], ["rows"])
