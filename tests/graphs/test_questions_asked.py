"""Questions people ask about v1 graphs, each as they ask it, and the answer to each."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from paramsync.graphs.surgery import connect, duplicate, synchronise

v1 = tf.compat.v1

IMAGES = np.random.default_rng(0).normal(size=(5, 64)).astype(np.float32)


def dense(tensor: tf.Tensor, units: int, name: str) -> tf.Tensor:
    with v1.variable_scope(name):
        kernel = v1.get_variable("kernel", [tensor.shape[-1], units])
        return tf.nn.tanh(tf.matmul(tensor, kernel) + v1.get_variable("bias", [units]), name="out")


def session_of(graph: tf.Graph) -> Any:
    session = v1.Session(graph=graph)
    with graph.as_default():
        session.run(v1.global_variables_initializer())
    return session


def test_how_do_i_clone_a_network_with_new_placeholders_and_its_own_weights_when_i_lack_the_code_that_built_it(
    tmp_path: Path,
) -> None:
    """All I have is the checkpoint, and the names of the input and the output tensor."""
    with tf.Graph().as_default() as graph:
        dense(dense(v1.placeholder(tf.float32, [None, 64], name="state"), 32, "hidden"), 4, "q")
        with session_of(graph) as session:
            checkpoint = v1.train.Saver().save(session, str(tmp_path / "agent"))

    with tf.Graph().as_default() as mine:
        saver = v1.train.import_meta_graph(f"{checkpoint}.meta")
        target = duplicate("q/out:0", "state:0", scope="target")
        follow = synchronise(target.originals, target)
        (state,), (values,) = target.inputs, target.outputs
        assert values.shape.as_list() == [None, 4]
        gradients = tf.gradients(values, list(target.variables.values()))
        assert None not in gradients
    with session_of(mine) as session:
        saver.restore(session, checkpoint)
        feed = {state: IMAGES, "state:0": IMAGES}
        assert not np.array_equal(*session.run(["q/out:0", values], feed))
        follow.run(session)
        np.testing.assert_array_equal(*session.run(["q/out:0", values], feed))


def test_how_do_i_replace_the_input_of_a_network_and_share_its_weights(tmp_path: Path) -> None:
    """Two dense layers, 64 to 100 to 100: I want the same layers over another tensor, and to see it in TensorBoard."""
    with tf.Graph().as_default() as graph:
        x = v1.placeholder(tf.float32, [None, 64], name="x")
        y = dense(dense(x, 100, "first"), 100, "second")
        noisy = v1.placeholder(tf.float32, [None, 64], name="clean") + 0.1
        again = duplicate(y, scope="denoised", variables="shared", replace={x: noisy})
        assert len(v1.global_variables()) == 4
        v1.summary.FileWriter(str(tmp_path), graph).close()
    with session_of(graph) as session:
        found = session.run(again.outputs[0], {"clean:0": IMAGES})
        np.testing.assert_array_equal(found, session.run(y, {x: IMAGES + np.float32(0.1)}))
    (events,) = tmp_path.glob("events*")
    shown = [one.graph_def for one in v1.train.summary_iterator(str(events)) if one.graph_def]
    nodes = {node.name: list(node.input) for node in v1.GraphDef.FromString(shown[0]).node}
    assert nodes["denoised/first/MatMul"][0] == "add"
    assert not [name for name in nodes if name.startswith("denoised/first/kernel/Init")]


def test_how_do_i_copy_a_whole_graph_into_a_scope_of_itself() -> None:
    """export_meta_graph and import_meta_graph(import_scope=...) left my copy with the weights of the original."""
    with tf.Graph().as_default() as graph:
        x = v1.placeholder(tf.float32, [None, 64], name="x")
        label = v1.placeholder(tf.float32, [None, 4], name="label")
        y = dense(x, 4, "net")
        loss = tf.reduce_mean(tf.square(y - label), name="loss")
        step = v1.train.AdamOptimizer(0.01).minimize(loss)

        v1.train.import_meta_graph(v1.train.export_meta_graph(), import_scope="stock")
        (stock,) = (one for one in v1.global_variables("stock") if one.op.name == "stock/net/kernel")
        copy = duplicate([y, loss, step], [x, label], scope="copy")
        kernel = next(one for one in v1.trainable_variables() if one.op.name == "net/kernel")
        assert sorted(one.op.name for one in v1.trainable_variables("copy")) == ["copy/net/bias", "copy/net/kernel"]
        assert len(v1.global_variables("copy")) == len(copy.variables) == 8  # weights, Adam's slots and powers
    with session_of(graph) as session:
        np.testing.assert_array_equal(*session.run([kernel, stock]))
        before = session.run([kernel, copy[kernel]])
        feed = {copy[x]: IMAGES, copy[label]: np.ones((5, 4))}
        losses = [session.run([copy[loss], copy[step]], feed)[0] for _ in range(20)]
        after = session.run([kernel, copy[kernel]])
    assert losses[-1] < losses[0]
    np.testing.assert_array_equal(before[0], after[0])
    assert not np.array_equal(before[1], after[1])


@pytest.mark.parametrize("apart", [False, True], ids=["one graph", "two graphs"])
def test_how_do_i_keep_a_copy_on_the_cpu_up_to_date_while_the_original_trains_on_the_gpu(apart: bool) -> None:
    with tf.Graph().as_default() as training:
        x = v1.placeholder(tf.float32, [None, 64], name="x")
        with tf.device("/GPU:0"):
            y = dense(x, 4, "net")
            step = v1.train.GradientDescentOptimizer(0.1).minimize(tf.reduce_sum(y))
    serving = tf.Graph() if apart else training
    copy = duplicate(y, x, scope="serving", graph=serving, device="/CPU:0")
    assert all(one.device == "/device:CPU:0" for one in copy.variables.values())
    both = synchronise(training, copy)
    config = v1.ConfigProto(allow_soft_placement=True)  # so that this also runs where there is no GPU
    with v1.Session(graph=training, config=config) as trains, v1.Session(graph=serving, config=config) as other:
        serves = other if apart else trains
        with training.as_default():
            trains.run(v1.global_variables_initializer())
        for _ in range(3):
            trains.run(step, {x: IMAGES})
            both.run(trains, serves)
            found = serves.run(copy.outputs[0], {copy.inputs[0]: IMAGES})
            np.testing.assert_array_equal(found, trains.run(y, {x: IMAGES}))


def test_how_do_i_connect_two_pre_trained_graphs_and_fine_tune_the_whole(tmp_path: Path) -> None:
    """Both have a variable of the same name, and each has its own checkpoint."""
    checkpoints, weights = [], []
    for name, width, units in (("encoder", 64, 8), ("classifier", 8, 3)):
        with tf.Graph().as_default() as graph:
            dense(v1.placeholder(tf.float32, [None, width], name="input"), units, "layer")
            with session_of(graph) as session:
                checkpoints.append(v1.train.Saver().save(session, str(tmp_path / name)))
                weights.append(tf.train.load_variable(checkpoints[-1], "layer/kernel"))

    with tf.Graph().as_default() as graph:
        sources = [(f"{one}.meta", one) for one in checkpoints]
        whole = connect(
            sources,
            {"classifier/input": "encoder/layer/out"},
            scopes=["encoder", "classifier"],
            outputs=["classifier/layer/out"],
        )
        (images,), (scores,) = whole.inputs.values(), whole.outputs.values()
        loss = tf.reduce_mean(tf.square(scores - 1.0))
        step = v1.train.AdamOptimizer(0.05).minimize(loss)
    with v1.Session(graph=graph) as session:
        whole.initialise(session)
        kernels = [whole.copies[scope].variables["layer/kernel"] for scope in ("encoder", "classifier")]
        for found, expected in zip(session.run(kernels), weights, strict=True):
            np.testing.assert_array_equal(found, expected)
        losses = [session.run([loss, step], {images: IMAGES})[0] for _ in range(30)]
        assert losses[-1] < losses[0]
        assert not any(np.array_equal(*both) for both in zip(session.run(kernels), weights, strict=True))
        tuned = whole.savers["classifier"].save(session, str(tmp_path / "tuned"))
    assert {name for name, _ in tf.train.list_variables(tuned)} == {"layer/kernel", "layer/bias"}
