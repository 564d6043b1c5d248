"""A captured graph computes what its source computes, bit for bit, and names things as people and checkpoints do."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from tensorflow.core.protobuf import trackable_object_graph_pb2

from paramsync.errors import GraphError
from paramsync.graphs.capturing import capture
from paramsync.graphs.specs import DEFAULT_SIGNATURE
from paramsync.tensorbundle.index import OBJECT_GRAPH
from tests.support.captured import Scaler, answers, mlp


def convolution() -> keras.Model:
    layers = keras.layers
    return keras.Sequential(
        [keras.Input((6, 6, 2)), layers.Conv2D(4, 3), layers.BatchNormalization(), layers.Flatten(), layers.Dense(2)]
    )


def embedding() -> keras.Model:
    ids = keras.Input((5,), dtype="int32", name="ids")
    return keras.Model(ids, keras.layers.Dense(3)(keras.layers.Flatten()(keras.layers.Embedding(100, 16)(ids))))


def two_in_two_out() -> keras.Model:
    left, right = keras.Input((4,), name="left"), keras.Input((4,), name="right")
    return keras.Model(
        [left, right], [keras.layers.Dense(2, name="sum")(left + right), keras.layers.Dense(1, name="one")(left)]
    )


@pytest.mark.parametrize("rows", [1, 7])
@pytest.mark.parametrize("build", [mlp, convolution, embedding, two_in_two_out])
def test_a_captured_keras_model_answers_bit_for_bit_like_the_model(build: Any, rows: int) -> None:
    model = build()
    captured = capture(model)
    random = np.random.default_rng(0)
    inputs = {
        name: tf.cast(random.uniform(0, 50, [size or rows for size in spec.shape or ()]), spec.dtype)
        for name, spec in captured.graph.signatures[DEFAULT_SIGNATURE].inputs.items()
    }
    given = list(inputs.values())
    expected = keras.tree.flatten(model(given[0] if len(given) == 1 else given, training=False))
    for found, wanted in zip(answers(captured, inputs).values(), expected, strict=True):
        np.testing.assert_array_equal(found, wanted.numpy())


def test_names_are_those_people_gave_and_plain_where_they_gave_none() -> None:
    named = capture(two_in_two_out()).graph.signatures[DEFAULT_SIGNATURE]
    plain = capture(convolution()).graph.signatures[DEFAULT_SIGNATURE]
    assert (list(named.inputs), list(named.outputs)) == (["left", "right"], ["sum", "one"])
    assert (list(plain.inputs), list(plain.outputs)) == (["inputs"], ["outputs"])


def test_reads_in_nested_functions_lookups_and_captured_constants_are_lifted() -> None:
    module = Scaler()
    rows = tf.constant([5, 0, 3])
    captured = capture(module)
    for name, value in answers(captured, {"rows": rows}).items():
        np.testing.assert_array_equal(value, module(rows)[name].numpy())
    assert [spec.name.split("/")[0] for spec in captured.graph.parameters] == ["scale", "table"]


def test_another_set_of_parameters_is_another_answer_of_the_same_function() -> None:
    captured = capture(Scaler())
    scale, table = (variable.read_value() for variable in captured.variables)
    before = captured.graph([scale, table], {"rows": tf.constant([1])})["scaled"].numpy()
    after = captured.graph([scale, table + 1], {"rows": tf.constant([1])})["scaled"].numpy()
    np.testing.assert_array_equal(after - before, [[2.0, 3.0]])


def test_parameters_have_the_keys_that_tensorflow_saves_them_under(tmp_path: Path) -> None:
    model = mlp()
    model.compile("adam", "mse")
    captured = capture(model)
    tf.train.Checkpoint(model).write(str(tmp_path / "stock"))
    saved = tf.train.load_checkpoint(str(tmp_path / "stock"))
    for spec, variable in zip(captured.graph.parameters, captured.variables, strict=True):
        np.testing.assert_array_equal(saved.get_tensor(spec.name), variable.numpy())


def test_the_object_graph_is_tensorflows_less_what_is_not_published(tmp_path: Path) -> None:
    model = mlp()
    model.compile("adam", "mse")
    captured = capture(model)
    tf.train.Checkpoint(model).write(str(tmp_path / "stock"))
    parse = trackable_object_graph_pb2.TrackableObjectGraph.FromString
    stock = parse(tf.train.load_checkpoint(str(tmp_path / "stock")).get_tensor(OBJECT_GRAPH))
    ours = parse(captured.object_graph)
    published = {spec.name for spec in captured.graph.parameters}
    assert len(ours.nodes) == len(stock.nodes)
    for mine, theirs in zip(ours.nodes, stock.nodes, strict=True):
        # "root" is how a Checkpoint names the object it was given, not a part of that object
        assert list(mine.children) == [child for child in theirs.children if child.local_name != "root"]
        assert list(mine.attributes) == [one for one in theirs.attributes if one.checkpoint_key in published]


@pytest.mark.slow
def test_the_digest_is_equal_in_another_process_and_after_other_models() -> None:
    here = [mlp(), mlp()][1]
    script = """
from paramsync.graphs.capturing import capture
from tests.support.captured import mlp
print(capture(mlp()).graph.digest)
"""
    root = Path(__file__).parents[2]
    there = subprocess.run([sys.executable, "-c", script], cwd=root, capture_output=True, text=True, check=True)
    assert there.stdout.strip() == capture(here).graph.digest


def test_the_digest_differs_after_changing_an_activation() -> None:
    assert capture(mlp("relu")).graph.digest != capture(mlp("tanh")).graph.digest


def test_a_model_that_is_not_built_is_refused_with_what_to_do() -> None:
    with pytest.raises(GraphError, match="build it, or call it once"):
        capture(keras.Sequential([keras.layers.Dense(2)]))


def test_a_module_without_a_signature_is_refused_with_what_to_do() -> None:
    with pytest.raises(GraphError, match=r"must be a tf\.function with an input_signature"):
        capture(tf.Module())


class Counter(tf.Module):
    def __init__(self) -> None:
        super().__init__()
        self.calls = tf.Variable(0.0)

    @tf.function(input_signature=[tf.TensorSpec((), tf.float32)])
    def __call__(self, x: tf.Tensor) -> tf.Tensor:
        self.calls.assign_add(1.0)
        return x + self.calls


def test_a_graph_that_assigns_while_predicting_is_refused_by_op() -> None:
    with pytest.raises(GraphError, match="AssignAddVariableOp"):
        capture(Counter())


class Borrower(tf.Module):
    def __init__(self, lent: list[tf.Variable]) -> None:
        super().__init__()
        self._lent: Callable[[], tf.Variable] = lambda: lent[0]  # a closure hides it from TensorFlow's tracking

    @tf.function(input_signature=[tf.TensorSpec((), tf.float32)])
    def __call__(self, x: tf.Tensor) -> tf.Tensor:
        return x * self._lent()


def test_a_variable_that_is_not_the_modules_own_is_refused() -> None:
    with pytest.raises(GraphError, match="not part of the model"):
        capture(Borrower([tf.Variable(1.0)]))


def test_large_captured_tensors_are_refused_with_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("paramsync.graphs.sources.traces.CONSTANTS_LIMIT", 1000)
    table = tf.random.normal((30, 10))
    function = tf.function(lambda x: tf.gather(table, x), input_signature=[tf.TensorSpec((), tf.int32)])
    with pytest.raises(GraphError, match=r"1200 bytes or more .* the like variables"):
        capture(function)


def test_an_unknown_source_is_refused_with_those_that_are_known() -> None:
    with pytest.raises(GraphError, match=r"ndarray cannot be captured; expected a Keras model, a tf\.Module"):
        capture(np.ones(3))


def test_a_meta_graph_needs_the_names_of_what_goes_in_and_out() -> None:
    with pytest.raises(GraphError, match='inputs=\\["x:0"\\]'):
        capture(tf.compat.v1.MetaGraphDef())


def test_v1_tensors_and_the_meta_file_of_their_graph_give_one_graph(tmp_path: Path) -> None:
    v1 = tf.compat.v1
    with tf.Graph().as_default() as source:
        x = v1.placeholder(tf.float32, (None, 4), name="x")
        y = tf.matmul(x, v1.get_variable("weights", (4, 2)), name="y")
        v1.train.Saver().export_meta_graph(str(tmp_path / "model.meta"))
        captures = [
            capture(([x], [y])),
            capture(tmp_path / "model.meta", inputs=["x:0"], outputs=["y:0"]),
            capture(v1.train.export_meta_graph(graph=source), inputs=["x"], outputs=["y"]),
        ]
    assert len({one.graph.digest for one in captures}) == 1
    assert [one.name for one in captures[0].graph.parameters] == ["weights"]


def test_one_name_where_a_list_belongs_is_refused(tmp_path: Path) -> None:
    mistaken: list[dict[str, Any]] = [{"outputs": "y"}, {"signatures": "score"}]
    for arguments in mistaken:
        with pytest.raises(GraphError, match=r"expected names in a list, found '(y|score)'"):
            capture(tmp_path, **arguments)
