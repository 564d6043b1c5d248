"""A Graph checks its inputs and refuses a damaged file; two Graphs can be joined."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import keras
import numpy as np
import numpy.typing as npt
import pytest
import tensorflow as tf

from paramsync.errors import GraphError, InputError, UnknownSignatureError
from paramsync.graphs import graph as graph_module
from paramsync.graphs.capturing import Capture, capture
from paramsync.graphs.draft import finish
from paramsync.graphs.graph import Graph
from paramsync.graphs.joining import join
from paramsync.graphs.parameters import arrange
from paramsync.graphs.specs import DEFAULT_SIGNATURE
from paramsync.graphs.tables import Contents
from paramsync.v1 import graph_pb2, serving_pb2
from tests.support.tables import find, table_graph
from tests.support.v1_drafts import control_flow, draft_of


class Line(tf.Module):
    def __init__(self) -> None:
        super().__init__()
        self.slope = tf.Variable([[2.0], [3.0]])

    @tf.function(input_signature=[tf.TensorSpec((None, 2), tf.float32)])
    def __call__(self, x: tf.Tensor) -> dict[str, tf.Tensor]:
        return {"y": x @ self.slope, "rows": tf.shape(x)[0]}


@pytest.fixture(scope="module")
def graph() -> Graph:
    return capture(Line()).graph


def test_many_threads_with_different_parameters_never_mix(graph: Graph) -> None:
    def answers(value: float) -> set[float]:
        slope = tf.fill((2, 1), value)
        return {float(graph([slope], {"x": tf.ones((1, 2))})["y"][0, 0]) for _ in range(200)}

    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(answers, [1.0, 2.0, 3.0, 4.0])) == [{2.0}, {4.0}, {6.0}, {8.0}]


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ({}, "inputs: expected 'x', found none"),
        ({"z": np.ones((1, 2), np.float32)}, "inputs: expected 'x', found 'z'"),
        (
            {"x": np.ones((1, 2))},
            r"input 'x': expected float32 \[\?, 2\], found float64 \[1, 2\]: pass astype\('float32'\)$",
        ),
        ({"x": np.ones((1, 3), np.float32)}, r"expected float32 \[\?, 2\], found float32 \[1, 3\]"),
        ({"x": np.ones(2, np.float32)}, r"found float32 \[2\]"),
        ({"x": np.array([[b"a", b"b"]], object)}, r"found string \[1, 2\]$"),
    ],
)
def test_inputs_that_do_not_fit_are_refused_with_both_sides(
    graph: Graph, inputs: dict[str, npt.NDArray[Any]], message: str
) -> None:
    with pytest.raises(InputError, match=message):
        graph.check_inputs(DEFAULT_SIGNATURE, inputs)


def test_a_call_with_other_names_says_which_were_expected(graph: Graph) -> None:
    for inputs in ({"z": tf.ones((1, 2))}, {"x": tf.ones((1, 2)), "z": tf.ones((1, 2))}):
        with pytest.raises(InputError, match="inputs: expected 'x', found"):
            graph([tf.ones((2, 1))], inputs)
    with pytest.raises(UnknownSignatureError, match="'other' does not exist; there are: 'serving_default'"):
        graph([tf.ones((2, 1))], {"x": tf.ones((1, 2))}, signature="other")
    with pytest.raises(InputError, match="expected some of 'rows', 'y', found 'z'"):
        graph([tf.ones((2, 1))], {"x": tf.ones((1, 2))}, outputs=["z"])


def test_a_graph_is_kept_as_one_file_that_is_there_when_it_is_whole(graph: Graph, tmp_path: Path) -> None:
    graph.save(tmp_path / "graph.pb")
    assert [one.name for one in tmp_path.iterdir()] == ["graph.pb"]
    assert Graph.load(tmp_path / "graph.pb").digest == graph.digest
    (tmp_path / "graph.pb").write_bytes(b"\xff")
    with pytest.raises(GraphError, match=r"graph\.pb: the graph file is not readable"):
        Graph.load(tmp_path / "graph.pb")
    with pytest.raises(GraphError, match="expected a signature or more, found none"):
        Graph.from_bytes(b"")


def test_devices_are_for_the_caller_to_say(graph: Graph) -> None:
    message = graph.message()
    definition = tf.compat.v1.GraphDef.FromString(message.graph_def)
    for node in definition.node:
        node.device = "/job:elsewhere/task:7/device:GPU:3"
        node.attr["_class"].list.s.append(b"loc:@nowhere")
    message.graph_def = definition.SerializeToString()
    placeless = Graph.from_bytes(message.SerializeToString())
    assert placeless([tf.ones((2, 1))], {"x": tf.ones((1, 2))})["y"].numpy().tolist() == [[2.0]]
    assert b"elsewhere" not in placeless.to_bytes()


FLOAT64, RESOURCE = tf.float64.as_datatype_enum, tf.resource.as_datatype_enum


def wrong_constant(message: graph_pb2.Graph, inputs: Any, outputs: Any) -> None:
    definition = tf.compat.v1.GraphDef.FromString(message.graph_def)
    next(node for node in definition.node if node.op == "Const").attr["value"].tensor.int_val[:] = [7]
    message.graph_def = definition.SerializeToString()


def handle_as_input(message: graph_pb2.Graph, inputs: Any, outputs: Any) -> None:
    definition = tf.compat.v1.GraphDef.FromString(message.graph_def)
    next(node for node in definition.node if node.name == inputs.tensor[:-2]).attr["dtype"].type = RESOURCE
    message.graph_def = definition.SerializeToString()
    inputs.dtype, message.digest = RESOURCE, ""


def another_output_dtype_without_a_digest(message: graph_pb2.Graph, inputs: Any, outputs: Any) -> None:
    outputs.dtype, message.digest = FLOAT64, ""


DAMAGES: dict[str, tuple[Callable[[graph_pb2.Graph, Any, Any], Any], str]] = {
    "an output of no node": (lambda message, x, y: setattr(y, "tensor", "nowhere:0"), "cannot be built"),
    "a parameter of no node": (
        lambda message, x, y: setattr(message.parameters[0], "node", "nowhere"),
        "cannot be built",
    ),
    "another dtype of an input": (lambda message, x, y: setattr(x, "dtype", FLOAT64), "cannot be built: .*float"),
    "another dtype of an output": (lambda message, x, y: setattr(y, "dtype", FLOAT64), "is not the one it says"),
    "another dtype of an output, and no digest": (
        another_output_dtype_without_a_digest,
        "cannot be built: output .* expected float64",
    ),
    "an input that is a parameter": (
        lambda message, x, y: setattr(message.parameters[0], "node", x.tensor.removesuffix(":0")),
        "expected a placeholder for each argument, found shared",
    ),
    "an input of any size": (lambda message, x, y: setattr(x.shape.dim[1], "size", -1), "does not take all shapes"),
    "an input that nobody can give": (handle_as_input, "nobody can give 'x', a resource"),
    "another constant": (wrong_constant, "is not the one it says it is"),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_file_that_contradicts_itself_is_refused(graph: Graph, damage: str) -> None:
    change, says = DAMAGES[damage]
    message = graph_pb2.Graph.FromString(graph.to_bytes())
    signature = message.signatures[DEFAULT_SIGNATURE]
    change(message, signature.inputs[0], signature.outputs[0])
    with pytest.raises(GraphError, match=says):
        Graph.from_bytes(message.SerializeToString())


# Lookup tables --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("keys", "values", "otherwise", "found"),
    [
        ([1, 5], ["one", "five"], "none", [b"five", b"one"]),
        (["x", "y"], [[1.0, 2.0], [3.0, 4.0]], [0.0, 0.0], [[3.0, 4.0], [1.0, 2.0]]),
        (["x", "y"], [True, False], False, [False, True]),
        (["", "y\0z"], [0.5, 1.5], 0.0, [1.5, 0.5]),
    ],
)
def test_tables_of_many_kinds_are_served(keys: object, values: object, otherwise: object, found: object) -> None:
    tensor = tf.constant(keys, tf.int64 if keys == [1, 5] else tf.string)
    graph = Graph.from_bytes(find(tensor, tf.constant(values), otherwise=otherwise).to_bytes())
    assert graph([], {"x": tensor[::-1]})["y"].numpy().tolist() == found


def test_the_digest_covers_what_a_table_holds_and_not_in_which_order_it_was_read() -> None:
    assert table_graph({"a": 1, "b": 2}).digest == table_graph({"b": 2, "a": 1}).digest
    assert len({table_graph(one).digest for one in ({"a": 1}, {"a": 2}, {"b": 1}, {})}) == 4


def of(keys: serving_pb2.Tensor, values: serving_pb2.Tensor) -> graph_pb2.Table:
    return graph_pb2.Table(node="t", keys=keys.SerializeToString(), values=values.SerializeToString())


def tensor(dtype: int, size: int, **values: object) -> serving_pb2.Tensor:
    found = serving_pb2.Tensor(dtype=dtype, **values)  # type: ignore[arg-type]
    found.tensor_shape.dim.add(size=size)
    return found


@pytest.mark.parametrize(
    ("table", "message"),
    [
        (graph_pb2.Table(node="t", keys=b"\xff", values=b""), "'t' is not readable"),
        (of(tensor(9, 2, int64_val=[1, 2]), tensor(9, 1, int64_val=[1])), "a value for each key"),
        (
            of(tensor(9, 1 << 40, int64_val=[1]), tensor(9, 1 << 40, int64_val=[1])),
            "at most .* bytes of repeated values",
        ),
        (of(tensor(20, 1), tensor(9, 1, int64_val=[1])), "a dtype of numbers, booleans or strings, found resource"),
    ],
)
def test_a_table_that_cannot_be_one_is_refused(table: graph_pb2.Table, message: str) -> None:
    with pytest.raises(GraphError, match=message):
        Contents(table)


@pytest.mark.parametrize(
    ("keys", "values"), [(tensor(7, 2, string_val=[b"a", b"a"]), [1, 2]), (tensor(1, 1, float_val=[0.5]), [1])]
)
def test_a_table_that_tensorflow_cannot_make_is_refused(keys: serving_pb2.Tensor, values: list[int]) -> None:
    with pytest.raises(GraphError, match="'t' cannot be made"):
        Contents(of(keys, tensor(9, len(values), int64_val=values))).fill()


def test_a_file_with_tables_beyond_all_measure_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(graph_module, "TABLE_BYTES", 8)
    with pytest.raises(GraphError, match="expected at most 8 bytes of tables"):
        Graph.from_bytes(table_graph({"a": 1, "b": 2}).to_bytes())


X = np.random.default_rng(7).standard_normal((7, 4)).astype(np.float32)


def dense(name: str, *, into: int = 3) -> keras.Model:
    inputs = keras.Input((4,), name="x")
    return keras.Model(inputs, {"features": keras.layers.Dense(into, "relu", name=name)(inputs)})


def head_model() -> keras.Model:
    inputs, scale = keras.Input((3,), name="x"), keras.Input((1,), name="scale")
    return keras.Model([inputs, scale], {"y": keras.layers.Dense(2, name="last")(inputs) * scale})


def named(prefix: str, captured: Capture) -> dict[str, tf.Variable]:
    pairs = zip(captured.graph.parameters, captured.variables, strict=True)
    return {f"{prefix}/{spec.name}": variable for spec, variable in pairs}


def test_an_encoder_and_a_head_compute_what_they_compute_one_after_the_other() -> None:
    encoder, head = dense("first"), head_model()
    of_encoder, of_head = capture(encoder), capture(head)
    whole = join(of_encoder.graph, of_head.graph, {"x": "features"}, prefixes=("encoder", "head"))
    signature = whole.signatures["serving_default"]
    assert (list(signature.inputs), list(signature.outputs)) == (["x", "scale"], ["y"])
    values = named("encoder", of_encoder) | named("head", of_head)
    assert [spec.name for spec in whole.parameters] == sorted(values)
    scale = np.full((len(X), 1), 3.0, np.float32)
    expected = head([encoder(X)["features"], tf.constant(scale)])["y"]
    given = {"x": tf.constant(X), "scale": tf.constant(scale)}
    assert np.array_equal(whole(arrange(whole, values), given)["y"], expected)
    again = Graph.from_bytes(whole.to_bytes())
    assert (again.digest, np.array_equal(again(arrange(again, values), given)["y"], expected)) == (whole.digest, True)


def test_a_graph_connected_with_itself_has_two_sets_of_parameters() -> None:
    model, other = dense("one", into=4), dense("one", into=4)
    one, two = capture(model), capture(other)
    assert one.graph.digest == two.graph.digest
    whole = join(one.graph, one.graph, {"x": "features"}, prefixes=("a", "b"), outputs=["features"])
    values = named("a", one) | named("b", two)
    found = whole(arrange(whole, values), {"x": tf.constant(X)})
    first = model(X)["features"]
    assert np.array_equal(found["a/features"], first)
    assert np.array_equal(found["b/features"], other(first)["features"])


def test_functions_with_written_gradients_are_joined() -> None:
    @tf.function(input_signature=[tf.TensorSpec([None], tf.float32, name="x")])
    def swish(x: tf.Tensor) -> dict[str, tf.Tensor]:
        return {"y": tf.while_loop(lambda at, _: at < 2, lambda at, y: (at + 1, tf.nn.swish(y)), [0, x])[1]}

    x = tf.constant([0.5, 2.0])
    graph = capture(swish).graph
    np.testing.assert_array_equal(join(graph, graph, {"x": "y"})([], {"x": x})["y"], swish(swish(x)["y"])["y"])


def test_old_loops_of_both_stay_apart() -> None:
    rounds = old_loop()
    whole = join(rounds, rounds, {"x": "y"}, outputs=["y"])
    found = whole([], {"x": tf.constant(1.0)})
    assert (float(found["first/y"]), float(found["second/y"])) == (128.0, 128.0 * 128.0)


@control_flow("v1")
def old_loop() -> Graph:
    """x times two to the seventh, in a loop of TensorFlow 1."""
    with tf.Graph().as_default() as graph:
        x = tf.compat.v1.placeholder(tf.float32, [], name="x")
        _, y = tf.while_loop(lambda at, _: at < 7, lambda at, y: (at + 1, y * 2.0), [0, x])
        return finish(draft_of(graph, {"x": x}, {"y": y}))


def test_lookup_tables_of_both_are_kept() -> None:
    whole = join(table_graph({"a": 1, "b": 2}), numbers(), {"x": "y"}, outputs=["y"])
    found = whole([], {"x": tf.constant(["b", "a", "?"])})
    assert found["first/y"].numpy().tolist() == [2, 1, -1]
    assert found["second/y"].numpy().tolist() == [b"two", b"one", b"none"]


def numbers() -> Graph:
    return find(tf.constant([1, 2], tf.int64), tf.constant(["one", "two"]), otherwise="none")


@pytest.mark.parametrize(
    ("inputs", "outputs", "message"),
    [
        ({"z": "features"}, [], "inputs of head: expected some of scale, x, found z"),
        ({"x": "z"}, [], "outputs of encoder: expected some of features, found z"),
        ({"x": "features"}, ["z"], "outputs of encoder: expected some of features, found z"),
        ({}, [], "expected inputs .x, scale. by outputs .features., found none"),
        (
            {"scale": "features"},
            [],
            r"'features' of encoder for 'scale': expected float32 \[\?, 1\], found .* \[\?, 3\]",
        ),
    ],
)
def test_what_cannot_be_connected_is_refused_with_both_sides(
    inputs: dict[str, str], outputs: list[str], message: str
) -> None:
    encoder, head = capture(dense("first")).graph, capture(head_model()).graph
    with pytest.raises(GraphError, match=message):
        join(encoder, head, inputs, prefixes=("encoder", "head"), outputs=outputs)


def test_other_dtypes_signatures_and_prefixes_are_refused() -> None:
    encoder, table = capture(dense("first")).graph, table_graph({"a": 1})
    with pytest.raises(GraphError, match=r"expected string \[\?\], found float32"):
        join(encoder, table, {"x": "features"})
    with pytest.raises(UnknownSignatureError, match="'other' does not exist"):
        join(encoder, encoder, {"x": "features"}, signatures=("other", "serving_default"))
    for prefixes in (("a", "a"), ("", "b"), ("a/b", "a")):
        with pytest.raises(GraphError, match="expected two different words"):
            join(encoder, encoder, {"x": "features"}, prefixes=prefixes)
