"""Functions and modules are captured with the names that people and checkpoints use, and print no more."""

from __future__ import annotations

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
from paramsync.graphs.graph import Graph
from paramsync.graphs.specs import DEFAULT_SIGNATURE
from paramsync.tensorbundle.index import OBJECT_GRAPH
from tests.support.captured import Encoder, Scaler, answers, mlp
from tests.support.v1_drafts import control_flow


def convolution() -> keras.Model:
    layers = keras.layers
    return keras.Sequential(
        [keras.Input((6, 6, 2)), layers.Conv2D(4, 3), layers.BatchNormalization(), layers.Flatten(), layers.Dense(2)]
    )


def two_in_two_out() -> keras.Model:
    left, right = keras.Input((4,), name="left"), keras.Input((4,), name="right")
    return keras.Model(
        [left, right], [keras.layers.Dense(2, name="sum")(left + right), keras.layers.Dense(1, name="one")(left)]
    )


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


class Borrower(tf.Module):
    def __init__(self, lent: list[tf.Variable]) -> None:
        super().__init__()
        self._lent: Callable[[], tf.Variable] = lambda: lent[0]  # a closure hides it from TensorFlow's tracking

    @tf.function(input_signature=[tf.TensorSpec((), tf.float32)])
    def __call__(self, x: tf.Tensor) -> tf.Tensor:
        return x * self._lent()


def test_large_captured_tensors_are_refused_with_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("paramsync.graphs.sources.traces.CONSTANTS_LIMIT", 1000)
    table = tf.random.normal((30, 10))
    function = tf.function(lambda x: tf.gather(table, x), input_signature=[tf.TensorSpec((), tf.int32)])
    with pytest.raises(GraphError, match=r"1200 bytes or more .* the like variables"):
        capture(function)


@pytest.mark.parametrize(
    ("source", "arguments", "says"),
    [
        (tf.Module(), {}, r"must be a tf\.function with an input_signature"),
        (Borrower([tf.Variable(1.0)]), {}, "not part of the model"),
        (np.ones(3), {}, r"ndarray cannot be captured; expected a Keras model, a tf\.Module"),
        (tf.compat.v1.MetaGraphDef(), {}, r'inputs=\["x:0"\]'),
        ("saved", {"outputs": "y"}, "expected names in a list, found 'y'"),
        ("saved", {"signatures": "score"}, "expected names in a list, found 'score'"),
    ],
)
def test_what_cannot_be_captured_is_refused_with_what_to_do(source: Any, arguments: Any, says: str) -> None:
    with pytest.raises(GraphError, match=says):
        capture(source, **arguments)


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


def test_the_functions_of_a_module_are_signatures_over_one_set_of_parameters() -> None:
    module = Encoder()
    captured = capture(module, signatures={"encode": module.encode, "serving_default": module.score})
    assert [one.name.split("/")[0] for one in captured.graph.parameters] == ["scale", "weights"]
    values = [variable.read_value() for variable in captured.variables]
    graph = Graph.from_bytes(captured.graph.to_bytes())
    x = tf.random.normal((5, 4))
    np.testing.assert_array_equal(graph(values, {"x": x}, signature="encode")["code"], module.encode(x)["code"])
    np.testing.assert_array_equal(graph(values, {"given": x})["outputs"], module.score(x))


def test_a_function_alone_has_the_names_of_its_variables_or_the_keys_of_a_root() -> None:
    module = Encoder()
    plain = capture(module.score)
    rooted = capture(module.score, root=tf.train.Checkpoint(net=module))
    assert [one.name for one in plain.graph.parameters] == ["scale", "weights"]
    assert plain.object_graph == b""
    assert {one.name for one in rooted.graph.parameters} == {
        f"net/{name}/.ATTRIBUTES/VARIABLE_VALUE" for name in ("scale", "weights")
    }
    assert [one.name for one in rooted.variables] == [f"{one.name.split('/')[1]}:0" for one in rooted.graph.parameters]


def test_a_function_without_a_signature_takes_the_inputs_that_are_said() -> None:
    @tf.function
    def add(x: tf.Tensor, more: dict[str, tf.Tensor]) -> tuple[tf.Tensor, tf.Tensor]:
        return x + more["a"], more["b"][0]

    spec = tf.TensorSpec((None,), tf.float32)
    for inputs in ([spec, {"a": spec, "b": [spec]}], {"x": spec, "more": {"a": spec, "b": [spec]}}):
        captured = capture(add, inputs=inputs)
        x = tf.constant([1.0, 2.0])
        found = answers(captured, {"x": x, "more_a": x * 10, "more_b_0": x * 100})
        np.testing.assert_array_equal(found["outputs_0"], [11, 22])
        np.testing.assert_array_equal(found["outputs_1"], [100, 200])
    with pytest.raises(GraphError, match="inputs= must say what it takes"):
        capture(add)


def test_a_concrete_function_is_captured_as_it_was_traced() -> None:
    @tf.function
    def power(x: tf.Tensor, exponent: int, *, offset: tf.Tensor) -> tf.Tensor:
        return x**exponent + offset

    scalar = tf.TensorSpec((), tf.float32)
    captured = capture(power.get_concrete_function(scalar, 3, offset=scalar))
    np.testing.assert_array_equal(answers(captured, {"x": tf.constant(2.0), "offset": tf.constant(1.0)})["outputs"], 9)
    with pytest.raises(GraphError, match="leave inputs= out"):
        capture(power.get_concrete_function(scalar, 3, offset=scalar), inputs=[scalar])


def test_variables_of_one_name_need_a_root() -> None:
    twins = [tf.Variable(1.0, name="twin"), tf.Variable(2.0, name="twin")]
    function = tf.function(lambda x: x * twins[0] + twins[1], input_signature=[tf.TensorSpec((), tf.float32)])
    with pytest.raises(GraphError, match="several variables are called 'twin': say root="):
        capture(function)


@tf.function(
    input_signature=[
        tf.RaggedTensorSpec((None, None), tf.float32, 1),
        tf.RaggedTensorSpec((None, None, None), tf.int32, 2),
        tf.SparseTensorSpec((None, 4), tf.float32),
    ]
)
def composite(rows: tf.RaggedTensor, deep: tf.RaggedTensor, bag: tf.SparseTensor) -> dict[str, Any]:
    return {"sums": tf.reduce_sum(rows, 1), "double": rows * 2.0, "deep": deep.values, "dense": tf.sparse.to_dense(bag)}


def test_ragged_and_sparse_tensors_are_the_tensors_they_consist_of() -> None:
    captured = capture(composite)
    rows, deep = tf.ragged.constant([[1.0, 2.0], [], [3.0]]), tf.ragged.constant([[[1, 2], []], [[3]]])
    bag = tf.sparse.from_dense([[0.0, 0.0, 7.0, 0.0]])
    inputs = {
        "rows_values": rows.values,
        "rows_row_splits": rows.row_splits,
        "deep_values": deep.flat_values,
        "deep_row_splits_0": deep.row_splits,
        "deep_row_splits_1": deep.values.row_splits,
        "bag_indices": bag.indices,
        "bag_values": bag.values,
        "bag_dense_shape": bag.dense_shape,
    }
    assert captured.graph.signatures[DEFAULT_SIGNATURE].inputs.keys() == inputs.keys()
    found, expected = answers(captured, inputs), composite(rows, deep, bag)
    np.testing.assert_array_equal(found["sums"], expected["sums"])
    np.testing.assert_array_equal(found["double_values"], expected["double"].values)
    np.testing.assert_array_equal(found["double_row_splits"], rows.row_splits)
    np.testing.assert_array_equal(found["deep_values"], deep.flat_values)
    np.testing.assert_array_equal(found["dense"], expected["dense"])


v1 = tf.compat.v1
X = np.arange(8, dtype=np.float32).reshape(2, 4)


def printed(x: tf.Tensor) -> tf.Tensor:
    return v1.Print(x * 2, [x, tf.shape(x)], "told by Print: ")


def printed_beside(x: tf.Tensor) -> tf.Tensor:
    with tf.control_dependencies([tf.print("told by tf.print:", x, tf.shape(x))]):
        return x * 2


def printed_in_a_loop(x: tf.Tensor) -> tf.Tensor:
    return tf.while_loop(lambda at, _: at < 1, lambda at, one: (at + 1, printed(printed_beside(one) / 2)), [0, x])[1]


def printed_in_a_function(x: tf.Tensor) -> tf.Tensor:
    return tf.function(lambda one: printed(printed_beside(one) / 2))(x)


@pytest.mark.parametrize("version", ["v1", "v2"])
@pytest.mark.parametrize("build", [printed_in_a_loop, printed_in_a_function])
def test_what_is_printed_passes_through_in_silence(
    build: Callable[[tf.Tensor], tf.Tensor], version: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    with tf.Graph().as_default(), control_flow(version):
        x = v1.placeholder(tf.float32, [None, 4], name="x")
        y = build(x)
        with v1.Session() as session:
            np.testing.assert_array_equal(session.run(y, {x: X}), X * 2)
        assert "told by" in capfd.readouterr().err
        captured = capture(([x], {"y": y})).graph
    captured.save(tmp_path / "graph.pb")
    for graph in (captured, Graph.load(tmp_path / "graph.pb")):
        np.testing.assert_array_equal(graph([], {"x": tf.constant(X)})["y"], X * 2)
    assert "told by" not in capfd.readouterr().err


def test_graphs_of_others_are_served_in_silence_too(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    with tf.Graph().as_default(), v1.Session() as session:
        x = v1.placeholder(tf.float32, [None, 4], name="x")
        y = tf.identity(printed(printed_beside(x) / 2), name="y")
        v1.train.export_meta_graph(str(tmp_path / "model.meta"))
        v1.saved_model.simple_save(session, str(tmp_path / "v1"), {"x": x}, {"y": y})
    module = tf.Module()
    module.double = tf.function(
        lambda x: {"y": printed_beside(x)}, input_signature=[tf.TensorSpec([None, 4], name="x")]
    )
    tf.saved_model.save(module, str(tmp_path / "v2"))
    for graph in (
        capture(tmp_path / "model.meta", inputs=["x:0"], outputs=["y:0"]).graph,
        capture(tmp_path / "v1").graph,
        capture(tmp_path / "v2").graph,
    ):
        (signature,) = graph.signatures.values()
        (name,), (end,) = signature.inputs, signature.outputs
        np.testing.assert_array_equal(graph([], {name: tf.constant(X)})[end], X * 2)
    assert "told by" not in capfd.readouterr().err


def test_a_function_of_today_prints_nothing_once_it_is_captured(capfd: pytest.CaptureFixture[str]) -> None:
    @tf.function(input_signature=[tf.TensorSpec([None], name="x")])
    def double(x: tf.Tensor) -> tf.Tensor:
        tf.print("told by", x)
        tf.debugging.assert_non_negative(x, "below zero")
        return tf.debugging.check_numerics(x * 2, "not a number")

    (name,) = (graph := capture(double).graph).signatures["serving_default"].outputs
    assert graph([], {"x": tf.constant([1.0])})[name].numpy().tolist() == [2.0]
    assert "told by" not in capfd.readouterr().err
    with pytest.raises(tf.errors.InvalidArgumentError, match="below zero"):
        graph([], {"x": tf.constant([-1.0])})
    with pytest.raises(tf.errors.InvalidArgumentError, match="not a number"):
        graph([], {"x": tf.constant([np.inf])})
