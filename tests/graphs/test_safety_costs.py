"""Graphs of others: what would cost too much is refused by number, before it is built or even parsed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import tensorflow as tf

from paramsync.errors import GraphError, UnsafeGraphError
from paramsync.graphs.capturing import capture
from paramsync.graphs.graph import Graph
from paramsync.graphs.safety import checks as safety
from paramsync.graphs.safety.checks import check
from paramsync.graphs.safety.weight import GRAPH_DEF, check_weight
from paramsync.graphs.sources.meta_graphs import read_meta
from paramsync.graphs.sources.saved_models import parsed_saved_model
from paramsync.v1 import graph_pb2
from tests.support.graph_defs import of


@pytest.mark.parametrize("limit", ["NODES", "EXPANDED"])
def test_more_nodes_than_can_be_built_are_refused(monkeypatch: pytest.MonkeyPatch, limit: str) -> None:
    monkeypatch.setattr(safety, limit, 5)
    check(of(*["NoOp"] * 5))
    with pytest.raises(UnsafeGraphError, match=r"expected at most 5 nodes.*, found 6"):
        check(of(*["NoOp"] * 6))


def constant(shape: list[int], dtype: tf.DType = tf.float32, **values: object) -> Any:
    graph_def = of("Const")
    graph_def.node[0].attr["dtype"].type = dtype.as_datatype_enum
    tensor = graph_def.node[0].attr["value"].tensor
    tensor.dtype = dtype.as_datatype_enum
    for size in shape:
        tensor.tensor_shape.dim.add(size=size)
    for name, value in values.items():
        getattr(tensor, name).append(value)
    return graph_def


def test_constants_that_unfold_in_memory_are_refused_and_small_ones_are_not() -> None:
    check(constant([1024, 1024], float_val=1.0))
    for graph_def in (constant([1 << 27], float_val=1.0), constant([1 << 24], tf.string, string_val=b"")):
        with pytest.raises(UnsafeGraphError, match="at most 268435456 bytes of constants that are not in the file"):
            check(graph_def)
    many = constant([1 << 24], float_val=1.0)
    for at in range(5):
        node = many.library.function.add()
        node.signature.name = f"f{at}"
        node.node_def.add().CopyFrom(many.node[0])
    with pytest.raises(UnsafeGraphError, match="bytes of constants that are not in the file"):
        check(many)


@pytest.mark.parametrize(
    ("graph_def", "message"),
    [
        (constant([1 << 40, 1 << 40]), "expected fewer elements"),
        (constant([-2]), "dimensions of 0 or more"),
        (constant([1] * 300), "at most 32 dimensions"),
        (constant([], tf.resource), "a dtype of numbers, booleans or strings, found resource"),
        (constant([], tf.variant), "a dtype of numbers, booleans or strings, found variant"),
    ],
)
def test_constants_that_are_none_or_stand_for_what_is_elsewhere_are_refused(graph_def: Any, message: str) -> None:
    with pytest.raises(UnsafeGraphError, match=message):
        check(graph_def)


def test_a_constant_of_another_dtype_than_it_says_is_refused() -> None:
    graph_def = constant([])
    graph_def.node[0].attr["dtype"].type = tf.int32.as_datatype_enum
    with pytest.raises(UnsafeGraphError, match="constant 'n0': expected int32, found float32"):
        check(graph_def)


@pytest.mark.slow
def test_a_graph_of_two_bytes_a_node_is_refused_before_it_is_parsed() -> None:
    for graph_def in (b"\n\0" * (17 << 20), b"\x12\x88\x80\x80\x10" + b"\n\0" * (17 << 20)):
        with pytest.raises(UnsafeGraphError, match="expected at most 134217728 bytes beside its constants"):
            Graph.from_bytes(graph_pb2.Graph(graph_def=graph_def).SerializeToString())


def test_large_constants_are_no_reason_to_refuse_a_graph() -> None:
    graph_def = of(*["NoOp"] * 1000)
    node = graph_def.node.add(name="large", op="Const")
    node.attr["value"].tensor.tensor_content = bytes(200 << 20)
    check_weight(graph_def.SerializeToString(), GRAPH_DEF)
    node.attr["value"].tensor.tensor_content = b""
    node.attr["value"].tensor.string_val.extend([b""] * (17 << 20))
    with pytest.raises(UnsafeGraphError, match="beside its constants"):
        check_weight(graph_def.SerializeToString(), GRAPH_DEF)


def test_a_meta_graph_or_saved_model_of_nothing_but_nodes_is_refused_before_it_is_parsed(tmp_path: Path) -> None:
    files = {"saved_model.pb": parsed_saved_model, "model.meta": read_meta}
    content = b"\n\x00" * (17 << 20)  # of each two bytes a node would be made
    for name, read in reversed(files.items()):
        content = b"\x12" + _varint(len(content)) + content
        (tmp_path / name).write_bytes(content)
        with pytest.raises(UnsafeGraphError, match="beside its constants"):
            read(tmp_path if name == "saved_model.pb" else tmp_path / name)


def graph_file(*, parameters: int = 0, signatures: int = 1, outputs: int = 1) -> graph_pb2.Graph:
    graph_def = of("Placeholder", *["NoOp"] * 9)
    message = graph_pb2.Graph(graph_def=graph_def.SerializeToString())
    for _ in range(parameters):
        message.parameters.add()
    for at in range(signatures):
        for _ in range(outputs):
            message.signatures[f"s{at}"].outputs.add(tensor="n0:0")
    return message


def test_more_parameters_signatures_or_ends_than_can_be_built_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(safety, "ENDS", 20)
    monkeypatch.setattr(safety, "BUILT", 100)
    for message, found in (
        (graph_file(parameters=20), "20 parameters, tables, inputs and outputs, found 21"),
        (graph_file(outputs=21), "20 parameters, tables, inputs and outputs, found 21"),
        (graph_file(signatures=11), "100 nodes and parameters, counted for each signature, found 110"),
    ):
        with pytest.raises(UnsafeGraphError, match=f"expected at most {found}"):
            Graph.from_bytes(message.SerializeToString())
    with pytest.raises(GraphError, match="cannot be built"):  # which is looked at later
        Graph.from_bytes(graph_file(signatures=10).SerializeToString())


def test_a_file_of_nothing_but_parameters_is_refused_before_it_is_parsed() -> None:
    with pytest.raises(UnsafeGraphError, match="beside its constants"):
        Graph.from_bytes(b"\x12\x00" * (17 << 20))


def _varint(number: int) -> bytes:
    more, last = [], number
    while last > 0x7F:
        more.append(last & 0x7F | 0x80)
        last >>= 7
    return bytes([*more, last])


@pytest.mark.parametrize("content", [b"\xff" * (33 << 20), b"\x0b" * (33 << 20), b"\n\xff\xff\xff\xff\x7f" * (6 << 20)])
def test_what_is_no_message_is_weighed_in_no_time_and_refused_by_the_parser(content: bytes) -> None:
    with pytest.raises(GraphError):
        Graph.from_bytes(graph_pb2.Graph(graph_def=content).SerializeToString())


@pytest.mark.parametrize("inside", [False, True])
@pytest.mark.parametrize(("batches", "sound"), [(1, True), (2, False), (3, False), (8, False)])
def test_batches_beyond_the_rank_fail_as_they_should_also_in_functions(inside: bool, batches: int, sound: bool) -> None:
    message = capture(Gathers(inside)).graph.message()
    message.digest = ""
    definition = tf.compat.v1.GraphDef.FromString(message.graph_def)
    bodies = [definition.node, *(function.node_def for function in definition.library.function)]
    gathers = [node for body in bodies for node in body if node.op == "GatherV2"]
    gathers[0].attr["batch_dims"].i = batches
    message.graph_def = definition.SerializeToString()
    given = {"x": tf.constant([[1.0, 2.0], [3.0, 4.0]]), "rows": tf.constant([1, 0])}
    if sound:
        found = Graph.from_bytes(message.SerializeToString())([], given)["outputs"]
        assert found.numpy().tolist() == [2.0, 3.0]
    else:
        with pytest.raises(GraphError, match=r"cannot be built: .*not in the interval"):
            Graph.from_bytes(message.SerializeToString())


class Gathers(tf.Module):
    """Gathers in batches, in a function within where it is told so."""

    def __init__(self, inside: bool) -> None:
        super().__init__()
        self.inside = inside

    @tf.function(
        input_signature=[tf.TensorSpec([2, 2], tf.float32, name="x"), tf.TensorSpec([2], tf.int32, name="rows")]
    )
    def __call__(self, x: tf.Tensor, rows: tf.Tensor) -> tf.Tensor:
        def gathered(x: tf.Tensor, rows: tf.Tensor) -> tf.Tensor:
            return tf.gather(x, rows, batch_dims=1)

        return (tf.function(gathered) if self.inside else gathered)(x, rows)


@pytest.mark.parametrize(
    ("op", "attribute", "number"),
    [("Pack", "N", (1 << 31) - 1), ("Split", "num_split", 1 << 40), ("Unpack", "num", 1 << 21)],
)
def test_more_tensors_than_there_can_be_are_refused(op: str, attribute: str, number: int) -> None:
    graph_def = of(op)
    graph_def.node[0].attr[attribute].i = number
    with pytest.raises(UnsafeGraphError, match=f"at most 1000000 tensors that nodes take and give, found {number}"):
        check(graph_def)


@pytest.mark.parametrize(
    ("attribute", "number", "most"),
    [("batch_dims", 1000, 8), ("batch_dims", -(1 << 62), 8), ("parallel_iterations", 1 << 40, 100_000)],
)
def test_numbers_that_nobody_means_well_are_refused(attribute: str, number: int, most: int) -> None:
    graph_def = of("NoOp")
    graph_def.node[0].attr[attribute].i = number
    with pytest.raises(UnsafeGraphError, match=f"node 'n0': expected at most {most} {attribute}, found {number}"):
        check(graph_def)
