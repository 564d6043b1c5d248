"""Functions are captured as signatures, whatever they take and give; ragged and sparse tensors as several."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from paramsync.errors import GraphError
from paramsync.graphs.capturing import capture
from paramsync.graphs.graph import Graph
from paramsync.graphs.specs import DEFAULT_SIGNATURE
from tests.support.captured import Encoder, answers


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
