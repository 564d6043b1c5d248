"""Pre-trained graphs are connected, each in its scope and restored from its own checkpoint."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from paramsync.errors import GraphError, ParameterError
from paramsync.graphs.capturing import capture
from paramsync.graphs.surgery import connect
from tests.support.v1_drafts import control_flow

v1 = tf.compat.v1
KEYS = v1.GraphKeys

DATA = np.random.default_rng(0).normal(size=(7, 4)).astype(np.float32)


def encoder(x: tf.Tensor) -> tf.Tensor:
    return tf.nn.relu(tf.matmul(x, v1.get_variable("weights", [4, 5], use_resource=False)), name="features")


def head(x: tf.Tensor) -> tf.Tensor:
    weights = v1.get_variable("weights", [5, 3], use_resource=True)
    return tf.add(tf.matmul(x, weights), v1.get_variable("bias", [3], use_resource=True), name="logits")


def trained(folder: Path, build: Callable[[tf.Tensor], tf.Tensor], width: int) -> str:
    """A checkpoint with its .meta file, as a training script of TensorFlow 1 leaves them."""
    with tf.Graph().as_default():
        x = v1.placeholder(tf.float32, [None, width], name="x")
        loss = tf.reduce_sum(tf.square(build(x) - v1.placeholder(tf.float32, [], name="label")), name="loss")
        step = v1.train.AdamOptimizer(0.1).minimize(loss, global_step=v1.train.create_global_step(), name="train")
        v1.add_to_collection(KEYS.TRAIN_OP, step)
        v1.summary.scalar("loss", loss)
        with v1.Session() as session:
            session.run(v1.global_variables_initializer())
            session.run(step, {x: np.ones((2, width)), "label:0": 1.0})
            return str(v1.train.Saver().save(session, str(folder / build.__name__)))


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> list[tuple[str, str]]:
    folder = tmp_path_factory.mktemp("pair")
    checkpoints = [trained(folder, encoder, 4), trained(folder, head, 5)]
    return [(f"{one}.meta", one) for one in checkpoints]


def value(checkpoint: str, name: str) -> Any:
    return tf.train.load_variable(checkpoint, name)


def expected(pair: list[tuple[str, str]]) -> Any:
    features = np.maximum(DATA @ value(pair[0][1], "weights"), 0)
    return features @ value(pair[1][1], "weights") + value(pair[1][1], "bias")


def test_each_scope_is_restored_from_its_checkpoint_and_the_whole_is_tuned(
    pair: list[tuple[str, str]], tmp_path: Path
) -> None:
    with tf.Graph().as_default() as graph:
        both = connect(pair, {"x": "features"}, scopes=["encoder", "head"], outputs=["logits"])
        assert (list(both.inputs), list(both.outputs)) == (["encoder/x"], ["head/logits"])
        assert sorted(both.savers) == ["encoder", "head"]
        x, logits = both.inputs["encoder/x"], both.outputs["head/logits"]
        scale = v1.get_variable("scale", [], initializer=v1.ones_initializer())
        loss = tf.reduce_sum(tf.square(logits * scale - 1.0))
        step = v1.train.AdamOptimizer(0.01).minimize(loss)
        assert [one.op.name for one in v1.trainable_variables()] == [
            "encoder/weights",
            "head/weights",
            "head/bias",
            "scale",
        ]
        assert not graph.get_collection(KEYS.GLOBAL_STEP)
    with v1.Session(graph=graph) as session:
        both.initialise(session)
        np.testing.assert_allclose(session.run(logits, {x: DATA}), expected(pair), rtol=1e-5)
        losses = [session.run([loss, step], {x: DATA})[0] for _ in range(20)]
        assert losses[-1] < losses[0]
        tuned = both.savers["encoder"].save(session, str(tmp_path / "tuned"))
        saved = session.run(both.copies["encoder"].variables["weights"])
    assert dict(tf.train.list_variables(tuned)) == {"weights": [4, 5]}
    np.testing.assert_array_equal(value(tuned, "weights"), saved)
    assert not np.array_equal(saved, value(pair[0][1], "weights"))


class Words(tf.Module):
    def __init__(self) -> None:
        super().__init__()
        words = tf.lookup.KeyValueTensorInitializer(["a", "b"], tf.constant([0, 1], tf.int64))
        self.table = tf.lookup.StaticHashTable(words, 2)
        self.rows = tf.Variable(tf.random.normal((3, 4)))

    @tf.function(input_signature=[tf.TensorSpec([None], tf.string, name="words")])
    def __call__(self, words: tf.Tensor) -> dict[str, tf.Tensor]:
        return {"rows": tf.gather(self.rows, self.table.lookup(words))}


class Scores(tf.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weights = tf.Variable(tf.random.normal((4, 3)))

    @tf.function(input_signature=[tf.TensorSpec([None, 4], name="x")])
    def __call__(self, x: tf.Tensor) -> dict[str, tf.Tensor]:
        return {"y": tf.tanh(x @ self.weights)}


def test_captured_graphs_are_connected_with_their_tables_and_object_based_checkpoints(tmp_path: Path) -> None:
    modules: dict[str, Any] = {"words": Words(), "scores": Scores()}
    sources = [
        (capture(module).graph, tf.train.Checkpoint(module).write(str(tmp_path / name)))
        for name, module in modules.items()
    ]
    with tf.Graph().as_default() as graph:
        both = connect(sources, {"x": "rows"}, scopes=list(modules))
        assert len(v1.trainable_variables()) == 2
        (gradient,) = tf.gradients(both.outputs["scores/y"], v1.trainable_variables()[:1])
        gradient = tf.convert_to_tensor(gradient)
        with v1.Session(graph=graph) as session:
            both.initialise(session)
            found, _ = session.run([both.outputs["scores/y"], gradient], {both.inputs["words/words"]: ["b", "c", "a"]})
    wanted = modules["scores"](modules["words"](tf.constant(["b", "c", "a"]))["rows"])["y"]
    np.testing.assert_allclose(found, wanted.numpy(), rtol=1e-5)


def test_a_saver_that_renames_variables_names_the_keys(tmp_path: Path) -> None:
    with tf.Graph().as_default() as graph:
        encoder(v1.placeholder(tf.float32, [None, 4], name="x"))
        with v1.Session(graph=graph) as session:
            session.run(v1.global_variables_initializer())
            saver = v1.train.Saver({"renamed": v1.global_variables()[0]})
            checkpoint = saver.save(session, str(tmp_path / "model"))
            wanted = session.run(v1.global_variables()[0])
    with tf.Graph().as_default() as graph, v1.Session(graph=graph) as session:
        alone = connect([(f"{checkpoint}.meta", Path(checkpoint).parent)], outputs=["features"])
        alone.initialise(session)
        np.testing.assert_array_equal(session.run(alone.copies["graph1"].variables["weights"]), wanted)


def test_an_input_pipeline_makes_way_for_a_placeholder() -> None:
    with tf.Graph().as_default() as graph:
        data = v1.data.make_one_shot_iterator(tf.data.Dataset.from_tensors(DATA)).get_next()
        tf.identity(data * 2, name="y")
        with pytest.raises(GraphError, match="input pipeline"):
            connect([(graph, None)], outputs=["y"], graph=tf.Graph())
        alone = connect([(graph, None)], outputs=["y"], placeholders=[data.name], graph=tf.Graph())
    assert list(alone.inputs) == [f"graph1/{data.op.name}"]


def test_a_checkpoint_that_lacks_a_variable_or_has_another_is_refused(pair: list[tuple[str, str]]) -> None:
    (first, checkpoint), (second, other) = pair
    with tf.Graph().as_default() as graph:
        with pytest.raises(ParameterError, match=r"expected bias \(1 missing\), found .*weights"):
            connect([(second, checkpoint)], outputs=["logits"])
        with pytest.raises(ParameterError, match=r"expected weights float32 \[4, 5\], found float32 \[5, 3\]"):
            connect([(first, other)], outputs=["features"])
        with pytest.raises(GraphError, match="checkpoint nowhere cannot be read"):
            connect([(first, "nowhere")], outputs=["features"])
        assert not graph.get_operations()


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "an unknown input": (
        {"inputs": {"z": "features"}},
        "no graph has a tensor 'z'; their placeholders: graph1: x, label; graph2: x",
    ),
    "an unknown output": ({"inputs": {"x": "featur"}}, "no graph has a tensor 'featur'; .*similar: features"),
    "a later graph": (
        {"inputs": {"graph1/x": "logits"}},
        "'graph1/x' cannot read 'logits': .* not of a graph before it",
    ),
    "an ambiguous name": (
        {"inputs": {"x": "features"}, "outputs": ["loss"]},
        "'loss' is a tensor of several graphs: say graph1/loss or graph2/loss",
    ),
    "no outputs": ({"inputs": {"x": "features"}, "outputs": None}, "the graphs do not say what theirs are: name them"),
    "a graph of no use": ({}, "nothing of graph1 leads to them"),
    "too few scopes": ({"scopes": ["one"]}, "expected a scope for each of 2 graphs"),
    "no graph": ({"sources": [(3, None)]}, r"expected a \.meta file, .* found 3"),
    "no file": ({"sources": [("missing.meta", None)]}, r"missing\.meta cannot be read"),
    "no sources": ({"sources": []}, "sources: expected a list of pairs"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_graphs_that_cannot_be_connected_are_refused_and_nothing_added(what: str, pair: list[tuple[str, str]]) -> None:
    arguments, message = REFUSED[what]
    given: dict[str, Any] = {"sources": pair, "outputs": ["logits"]} | arguments
    with tf.Graph().as_default() as graph:
        with pytest.raises(GraphError, match=message):
            connect(**given)
        assert not graph.get_operations()


def test_an_input_reads_a_tensor_of_the_target_or_of_a_live_source_or_an_array() -> None:
    with tf.Graph().as_default() as first:
        hidden = encoder(v1.placeholder(tf.float32, [None, 4], name="x"))
    with tf.Graph().as_default() as second:
        rate = v1.placeholder(tf.float32, [], name="rate")
        tf.multiply(head(v1.placeholder(tf.float32, [None, 5], name="taken")), rate, name="score")
    with tf.Graph().as_default() as target:
        images = tf.constant(DATA) * 2
        both = connect(
            [(first, None), (second, None)],
            {"x": images, "taken": hidden, "rate": np.float32(3)},
            outputs=["score"],
        )
        variable = v1.get_variable("images", initializer=DATA)
        connect([(first, None)], {"x": variable}, outputs=["features"], scopes=["read"])
        assert not both.inputs
        with v1.Session(graph=target) as session:
            both.initialise(session)
            assert session.run(both.outputs["graph2/score"]).shape == (7, 3)
        with pytest.raises(GraphError, match=r"inputs: 'x' cannot read 'features:0': .* graph before"):
            connect([(first, None)], {"x": hidden}, outputs=["features"])


def meta_with_an_unknown_op() -> Any:
    """An output behind a loop, and before an unknown op."""
    with tf.Graph().as_default() as graph:
        x = v1.placeholder(tf.float32, [None, 4], name="x")
        weights = v1.get_variable("weights", [4, 4], initializer=v1.zeros_initializer())
        with control_flow("v1"):
            _, y = v1.while_loop(
                lambda step, _: step < 3, lambda step, state: (step + 1, state + 1.0), [0, x @ weights]
            )
        later = tf.identity(tf.identity(y, name="out"), name="odd")
        tf.identity(later, name="behind")
        meta = v1.train.export_meta_graph(graph=graph, saver_def=v1.train.Saver().as_saver_def())
    next(node for node in meta.graph_def.node if node.name == "odd").op = "NobodyKnows"
    return meta


def test_an_unknown_op_that_no_output_needs_is_left_out() -> None:
    meta = meta_with_an_unknown_op()
    with tf.Graph().as_default() as graph:
        whole = connect([(meta, None)], outputs=["out"])
        gradient = tf.gradients(whole.outputs["graph1/out"], whole.inputs["graph1/x"])
        with v1.Session(graph=graph) as session:
            whole.initialise(session)
            found, _ = session.run([whole.outputs["graph1/out"], gradient], {whole.inputs["graph1/x"]: np.ones((2, 4))})
    np.testing.assert_array_equal(found, np.full((2, 4), 3.0))


def test_a_tensor_that_needs_an_unknown_op_is_refused_by_the_ops_name() -> None:
    with tf.Graph().as_default() as graph:
        with pytest.raises(GraphError, match="'behind' needs the op NobodyKnows, which TensorFlow does not know here"):
            connect([(meta_with_an_unknown_op(), None)], outputs=["behind"])
        assert not graph.get_operations()
