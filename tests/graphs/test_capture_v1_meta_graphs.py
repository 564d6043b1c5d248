"""A .meta file gives the graph between two names: ends that cannot be, and files that are none, are refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import tensorflow as tf

from paramsync.errors import GraphError, UnfinishedMetaError
from paramsync.graphs.specs import DEFAULT_SIGNATURE
from tests.support.v1_captured import ONES, answer, meta_graph, names

v1 = tf.compat.v1


def v1_checkpoint(directory: Path, *, use_resource: bool) -> npt.NDArray[Any]:
    """A trained v1 graph as a script without us leaves it; returns what its output is for a row of ones."""
    with tf.Graph().as_default():
        x = v1.placeholder(tf.float32, (None, 4), name="x")
        keep = v1.placeholder_with_default(1.0, (), name="keep")
        weights = v1.get_variable("layer/weights", (4, 2), use_resource=use_resource)
        bias = v1.get_variable("layer/bias", (2,), use_resource=use_resource)
        output = tf.nn.softmax(tf.matmul(x, weights) * keep + bias, name="probabilities")
        v1.train.AdamOptimizer(0.1).minimize(tf.reduce_sum(output[:, 0]))
        with v1.Session() as session:
            session.run(v1.global_variables_initializer())
            session.run(v1.get_collection(v1.GraphKeys.TRAIN_OP), {x: ONES})
            v1.train.Saver().save(session, str(directory / "model.ckpt"), global_step=100)
            return np.asarray(session.run(output, {x: ONES}))


@pytest.mark.parametrize("use_resource", [False, True], ids=["reference", "resource"])
def test_a_meta_file_gives_the_graph_between_two_names(tmp_path: Path, use_resource: bool) -> None:
    expected = v1_checkpoint(tmp_path, use_resource=use_resource)
    graph = meta_graph(tmp_path / "model.ckpt-100.meta", inputs=["x:0"], outputs=["probabilities"])
    assert names(graph) == ["layer/bias", "layer/weights"]
    found = answer(graph, tmp_path / "model.ckpt-100", {"x": ONES})
    np.testing.assert_array_equal(found["probabilities"], expected)


def test_inputs_and_outputs_of_a_meta_file_may_be_called_something_else(tmp_path: Path) -> None:
    v1_checkpoint(tmp_path, use_resource=True)
    graph = meta_graph(
        tmp_path / "model.ckpt-100.meta", inputs={"image": "x", "keep": "keep:0"}, outputs={"answer": "probabilities"}
    )
    signature = graph.signatures[DEFAULT_SIGNATURE]
    assert {name: str(spec) for name, spec in signature.inputs.items()} == {
        "image": "float32 [?, 4]",
        "keep": "float32 []",
    }
    assert {name: str(spec) for name, spec in signature.outputs.items()} == {"answer": "float32 [?, 2]"}


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
        (["x"], ["layer/bias/read"], "depends on .*'x'"),
    ],
)
def test_ends_that_cannot_be_are_refused_with_what_is_there(
    tmp_path: Path, inputs: list[str], outputs: list[str], says: str
) -> None:
    v1_checkpoint(tmp_path, use_resource=False)
    with pytest.raises(GraphError, match=says):
        meta_graph(tmp_path / "model.ckpt-100.meta", inputs=inputs, outputs=outputs)


@pytest.mark.parametrize("content", [b"", b"\xff" * 100])
def test_a_file_that_is_no_meta_graph_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "model.meta").write_bytes(content)
    with pytest.raises(UnfinishedMetaError, match="not a readable meta graph"):
        meta_graph(tmp_path / "model.meta", inputs=["x:0"], outputs=["y:0"])


def test_a_meta_file_that_ends_too_early_is_not_finished(tmp_path: Path) -> None:
    v1_checkpoint(tmp_path, use_resource=True)
    path = tmp_path / "model.ckpt-100.meta"
    path.write_bytes(path.read_bytes()[:2000])
    with pytest.raises(UnfinishedMetaError, match="not a readable meta graph"):
        meta_graph(path, inputs=["x:0"], outputs=["probabilities"])


def test_ops_that_only_training_needs_need_not_be_known_here(tmp_path: Path) -> None:
    expected = v1_checkpoint(tmp_path, use_resource=True)
    path = tmp_path / "model.ckpt-100.meta"
    meta = v1.MetaGraphDef.FromString(path.read_bytes())
    for node in meta.graph_def.node:
        if node.op == "ResourceApplyAdam":
            node.op = "ApplyAdamOfSomebodyElse"
    path.write_bytes(meta.SerializeToString())
    graph = meta_graph(path, inputs=["x:0"], outputs=["probabilities"])
    np.testing.assert_array_equal(answer(graph, tmp_path / "model.ckpt-100", {"x": ONES})["probabilities"], expected)
