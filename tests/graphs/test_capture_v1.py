"""Graphs of TensorFlow 1, live or in a .meta file: their ends, the names of their parameters, and strangers' graphs."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import tensorflow as tf

from paramsync.errors import GraphError, UnfinishedMetaError, UnsafeGraphError
from paramsync.graphs.draft import finish
from paramsync.graphs.sources.meta_graphs import draft_of_meta
from paramsync.graphs.sources.v1_graphs import draft_of_tensors
from paramsync.graphs.specs import DEFAULT_SIGNATURE
from tests.support.captured import ONES, answer, meta_graph, names, two_layers
from tests.support.v1_drafts import control_flow

v1 = tf.compat.v1


def test_sparse_and_ragged_inputs_are_several() -> None:
    with tf.Graph().as_default():
        sparse = v1.sparse_placeholder(tf.float32, (None, 4), name="s")
        ragged = v1.ragged.placeholder(tf.float32, 1, (), name="r")
        y = tf.sparse.reduce_sum(sparse, 1) + tf.reduce_sum(ragged, 1)
        graph = finish(draft_of_tensors({"s": sparse, "r": ragged}, y))
    sparse_parts = ["s_indices", "s_values", "s_dense_shape"]
    assert [*graph.signatures[DEFAULT_SIGNATURE].inputs] == [*sparse_parts, "r_values", "r_row_splits"]


def test_what_are_no_tensors_of_one_graph_is_refused() -> None:
    with tf.Graph().as_default():
        x, y = two_layers()
    with tf.Graph().as_default():
        other, _ = two_layers()
    with pytest.raises(GraphError, match="of one graph, found some of 2"):
        draft_of_tensors([other], [y])
    with pytest.raises(GraphError, match="expected tensors of a v1 graph, found 'x:0'"):
        draft_of_tensors(["x:0"], [y])
    with pytest.raises(GraphError, match="found 'x' twice"):
        draft_of_tensors([x, x], [y])
    with pytest.raises(GraphError, match="at least one"):
        draft_of_tensors([x], [])


@pytest.mark.slow
def test_a_program_without_eager_execution_makes_the_same_graph() -> None:
    script = """
import tensorflow as tf
tf.compat.v1.disable_v2_behavior()
from tests.graphs.test_capture_v1 import spoken
from paramsync.graphs.draft import finish
from paramsync.graphs.sources.v1_graphs import draft_of_tensors
print(finish(draft_of_tensors(*spoken())).digest)
"""
    root = Path(__file__).parents[2]
    there = subprocess.run([sys.executable, "-c", script], cwd=root, capture_output=True, text=True, check=True)
    with tf.Graph().as_default():
        here = finish(draft_of_tensors(*spoken()))
    assert there.stdout.split() == [here.digest]


def spoken() -> tuple[tf.Tensor, tf.Tensor]:
    text = v1.placeholder(tf.string, (None,), name="text")
    words = tf.lookup.KeyValueTensorInitializer(["one", "two"], tf.range(2, dtype=tf.int64))
    found = tf.lookup.StaticHashTable(words, -1).lookup(text)
    return text, tf.identity(tf.cast(found, tf.float32) * v1.get_variable("scale", (), dtype=tf.float32), name="y")


# Meta graphs ----------------------------------------------------------------------------------------------------------


def v1_checkpoint(directory: Path) -> npt.NDArray[Any]:
    """Leave the files of a script that trains. Returns its output for a row of ones."""
    with tf.Graph().as_default():
        x = v1.placeholder(tf.float32, (None, 4), name="x")
        keep = v1.placeholder_with_default(1.0, (), name="keep")
        weights = v1.get_variable("layer/weights", (4, 2))
        bias = v1.get_variable("layer/bias", (2,))
        output = tf.nn.softmax(tf.matmul(x, weights) * keep + bias, name="probabilities")
        v1.train.AdamOptimizer(0.1).minimize(tf.reduce_sum(output[:, 0]))
        with v1.Session() as session:
            session.run(v1.global_variables_initializer())
            session.run(v1.get_collection(v1.GraphKeys.TRAIN_OP), {x: ONES})
            v1.train.Saver().save(session, str(directory / "model.ckpt"), global_step=100)
            return np.asarray(session.run(output, {x: ONES}))


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("trained")
    v1_checkpoint(folder)
    return folder


@pytest.mark.parametrize(
    ("inputs", "outputs", "says"),
    [
        (["y:0"], ["probabilities"], "no tensor 'y:0'; its placeholders: x, keep"),
        (["x:1"], ["probabilities"], "no tensor 'x:1'; its placeholders: x, keep"),
        (["x"], ["logits"], "no tensor 'logits:0'; its placeholders: x, keep"),
        (["x"], ["probabilities:7"], "output 7 of node 'probabilities', which has 1"),
        (["x", "x:0"], ["probabilities"], "expected each tensor once"),
        (["keep:0"], ["probabilities"], "placeholder 'x' is needed for the outputs but not among the inputs"),
        (["x", "probabilities"], ["probabilities"], "depends on .*'x'"),
    ],
)
def test_ends_that_cannot_be_are_refused_with_the_known_names(
    trained: Path, inputs: list[str], outputs: list[str], says: str
) -> None:
    with pytest.raises(GraphError, match=says):
        meta_graph(trained / "model.ckpt-100.meta", inputs=inputs, outputs=outputs)


@pytest.mark.parametrize("content", [b"", b"\xff" * 100])
def test_a_file_that_is_no_meta_graph_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "model.meta").write_bytes(content)
    with pytest.raises(UnfinishedMetaError, match="not a readable meta graph"):
        meta_graph(tmp_path / "model.meta", inputs=["x:0"], outputs=["y:0"])


def test_ops_that_only_training_needs_need_not_be_known_here(tmp_path: Path) -> None:
    expected = v1_checkpoint(tmp_path)
    path = tmp_path / "model.ckpt-100.meta"
    meta = v1.MetaGraphDef.FromString(path.read_bytes())
    for node in meta.graph_def.node:
        if node.op == "ResourceApplyAdam":
            node.op = "ApplyAdamOfSomebodyElse"
    path.write_bytes(meta.SerializeToString())
    graph = meta_graph(path, inputs=["x:0"], outputs=["probabilities"])
    np.testing.assert_array_equal(answer(graph, tmp_path / "model.ckpt-100", {"x": ONES})["probabilities"], expected)


# Names of parameters --------------------------------------------------------------------------------------------------


def test_names_are_those_of_the_saver_that_is_given_or_that_the_meta_graph_has() -> None:
    with tf.Graph().as_default() as graph:
        x = v1.placeholder(tf.float32, (None, 4), name="x")
        weights = v1.get_variable("weights", (4, 2))
        y = tf.matmul(x, weights, name="y")
        saver = v1.train.Saver({"old/w": weights})
        meta = v1.train.export_meta_graph(graph=graph, saver_def=saver.saver_def)
    assert names(finish(draft_of_meta(meta, ["x"], ["y"]))) == ["old/w"]
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


@pytest.mark.parametrize("place", ["7 3 0,3", "7 0,3:0,3", "a 3 0,3:0,3", ""])
def test_a_saver_that_says_something_else_of_a_part_is_refused(place: str) -> None:
    with tf.Graph().as_default() as graph:
        ids = v1.placeholder(tf.int32, (None,), name="ids")
        table = v1.get_variable("table", (7, 3), partitioner=v1.fixed_size_partitioner(3))
        tf.identity(v1.nn.embedding_lookup(table, ids, partition_strategy="div"), name="rows")
        saver = v1.train.Saver()
        meta = v1.train.export_meta_graph(graph=graph, saver_def=saver.saver_def)
    listed = next(node for node in meta.graph_def.node if node.name == "save/SaveV2/shape_and_slices")
    listed.attr["value"].tensor.string_val[1] = place.encode()
    with pytest.raises(GraphError, match=r"Saver says|are not parts of one"):
        finish(draft_of_meta(meta, ["ids"], ["rows"]))


# Graphs of strangers --------------------------------------------------------------------------------------------------


def reading(path: Path) -> Any:
    with tf.Graph().as_default() as graph:
        x = v1.placeholder(tf.string, (), name="x")
        pipeline = tf.io.read_file(str(path))
        words = tf.identity(pipeline, name="words")
        tf.strings.join([x, words], name="y")
        return v1.train.export_meta_graph(graph=graph)


def test_an_op_that_is_not_safe_is_refused_by_name_unless_it_is_allowed(tmp_path: Path) -> None:
    meta = reading(tmp_path / "secret")
    with pytest.raises(UnsafeGraphError, match="ReadFile"):
        draft_of_meta(meta, ["x"], ["y"])
    draft_of_meta(meta, ["x"], ["y"], allowed=["ReadFile"])


def test_batches_beyond_the_rank_are_refused_before_tensorflow_aborts() -> None:
    with tf.Graph().as_default() as graph:
        x, rows = v1.placeholder(tf.float32, (None,), name="x"), v1.placeholder(tf.int32, (None,), name="rows")
        tf.identity(tf.gather(tf.reshape(x, [1, -1]), tf.reshape(rows, [1, -1]), batch_dims=1), name="y")
        meta = v1.train.export_meta_graph(graph=graph)
    gather = next(node for node in meta.graph_def.node if node.op == "GatherV2")
    gather.attr["batch_dims"].i = 2
    gather.input[:2] = ["x", "rows"]
    with pytest.raises(GraphError, match="cannot be imported"):
        finish(draft_of_meta(meta, ["x", "rows"], ["y"]))


FILLINGS: dict[str, tuple[Callable[[], tf.Tensor], str]] = {
    "a loop that may never end": (
        lambda: tf.while_loop(lambda _: True, lambda number: [number + 1], [tf.zeros([1], tf.int64)])[0],
        "fills a table: expected it to be filled without a loop",
    ),
    "an unsafe op": (lambda: tf.strings.to_number(tf.stack([tf.io.read_file("secret")]), tf.int64), "ReadFile"),
    "more than the memory": (
        lambda: tf.range(1 << 40, dtype=tf.int64),
        "fills a table: expected shapes that are known",
    ),
}


@pytest.mark.parametrize(("filling", "says"), FILLINGS.values(), ids=FILLINGS)
def test_a_table_is_filled_by_safe_ops_that_end_and_fit_in_memory(filling: Callable[[], tf.Tensor], says: str) -> None:
    with tf.Graph().as_default() as graph:
        keys = v1.placeholder(tf.int64, (None,), name="keys")
        numbers = filling()
        words = tf.lookup.KeyValueTensorInitializer(numbers, numbers)
        tf.identity(tf.lookup.StaticHashTable(words, -1).lookup(keys), name="y")
        meta = v1.train.export_meta_graph(graph=graph)
    with pytest.raises(GraphError, match=says):
        draft_of_meta(meta, ["keys"], ["y"])


@control_flow("v1")
def test_a_loop_that_two_tensors_enter_is_refused_before_tensorflow_sees_it() -> None:
    """TensorFlow would end the process."""
    with tf.Graph().as_default() as graph:
        x = v1.placeholder(tf.float32, (), name="x")
        _, y = tf.while_loop(lambda i, _: i < 3, lambda i, y: (i + 1, y * 2.0), [tf.constant(0), x])
        tf.identity(y, name="y")
        meta = v1.train.export_meta_graph(graph=graph)
    merge = next(node for node in meta.graph_def.node if node.op == "Merge")
    merge.input.insert(0, merge.input[0])
    merge.attr["N"].i = 3
    with pytest.raises(UnsafeGraphError, match="expected one tensor that enters the loop"):
        draft_of_meta(meta, ["x"], ["y"])
