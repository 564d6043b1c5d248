"""Graphs of strangers: unsafe ops are refused by name, high costs by number, and no file ends the process."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import tensorflow as tf
from tensorflow.core.protobuf import saved_model_pb2

from paramsync.errors import GraphError, UnsafeGraphError
from paramsync.graphdef.allowed_ops import SAFE, STOCHASTIC
from paramsync.graphs import safety
from paramsync.graphs.capturing import capture
from paramsync.graphs.graph import Graph
from paramsync.graphs.safety import check
from paramsync.graphs.sources.meta_graphs import read_meta
from paramsync.graphs.sources.saved_models import parsed_saved_model
from paramsync.v1 import graph_pb2
from tests.graphs.test_digest import nested

MALICIOUS = (
    "ReadFile WriteFile MatchingFiles WholeFileReaderV2 ImmutableConst RecordInput TFRecordDatasetV2 "
    "LoadAndRemapMatrix InitializeTableFromTextFileV2 FixedUnigramCandidateSampler GenerateVocabRemapping "
    "FileSystemSetConfiguration Save SaveV2 Restore RestoreV2 MergeV2Checkpoints PyFunc PyFuncStateless "
    "EagerPyFunc PrintV2 Print Send Recv _Send _Recv _HostSend _HostRecv RemoteCall CollectiveReduceV2 "
    "NcclAllReduce DebugIdentityV3 WriteSummary CreateSummaryFileWriter SqlDataset DataServiceDatasetV4 "
    "DecodeProtoV2 EncodeProto VarHandleOp VariableV2 AssignVariableOp ReadVariableOp HashTableV2 "
    "MutableHashTableV2 LookupTableInsertV2 LookupTableImportV2 QueueDequeueV2 IteratorGetNext ParseTensor "
    "InplaceUpdate InplaceAdd Empty Abort Batch SymbolicGradient XlaLaunch TPUCompile TensorRTEngineOp "
    "TRTEngineOp SomebodysOwnOp Add>On "
)


def of(*ops: str) -> Any:
    """A graph of these ops, without inputs."""
    graph_def = tf.compat.v1.GraphDef()
    for at, op in enumerate(ops):
        graph_def.node.add(name=f"n{at}", op=op)
    return graph_def


class Line(tf.Module):
    def __init__(self) -> None:
        super().__init__()
        self.slope = tf.Variable(2.0)

    @tf.function(input_signature=[tf.TensorSpec((), tf.float32, name="x")])
    def __call__(self, x: tf.Tensor) -> tf.Tensor:
        return x * self.slope


@pytest.mark.parametrize("op", MALICIOUS.split())
def test_what_does_more_than_compute_is_refused_by_its_name(op: str) -> None:
    with pytest.raises(UnsafeGraphError, match=rf"1 of its ops .*: '{op}' \(node 'n1'\); .*--allow-op NAME"):
        check(of("NoOp", op))
    check(of("NoOp", op), allowed=[op])


def test_each_unsafe_op_is_named_once_and_functions_are_looked_into() -> None:
    graph_def = nested(3, innermost="ReadFile")
    graph_def.node.add(name="w", op="WriteFile")
    with pytest.raises(
        UnsafeGraphError, match=r"2 of its ops .*: 'ReadFile' \(node 'one'\), 'WriteFile' \(node 'w'\);"
    ):
        check(graph_def)
    with pytest.raises(UnsafeGraphError, match=r"1 of its ops .*: 'WriteFile'"):
        check(graph_def, allowed=["ReadFile"])


def test_every_safe_op_is_one_that_tensorflow_has() -> None:
    assert [op for op in SAFE if not hasattr(tf.raw_ops, op)] == []
    assert SAFE > STOCHASTIC


def test_calls_that_go_round_are_refused() -> None:
    for calls in ({"f0": "f0"}, {"f0": "f2"}):
        graph_def = nested(3)
        for function in graph_def.library.function:
            name = calls.get(function.signature.name)
            if name:
                function.node_def[0].op = "PartitionedCall"
                function.node_def[0].attr["f"].func.name = name
        with pytest.raises(UnsafeGraphError, match="calls itself"):
            check(graph_def)


def test_calls_that_multiply_or_pile_up_are_refused() -> None:
    check(nested(10))
    with pytest.raises(UnsafeGraphError, match="at most 1000000 nodes, counted where functions are called, found"):
        check(nested(60))
    graph_def = nested(300)
    for function in graph_def.library.function:
        del function.node_def[1:]
    with pytest.raises(UnsafeGraphError, match="at most 100 functions that call one another in a row"):
        check(graph_def)


def test_a_file_is_checked_and_a_live_model_of_ones_own_is_not(tmp_path: Path) -> None:
    class Reads(Line):
        @tf.function(input_signature=[tf.TensorSpec((), tf.string, name="path")])
        def __call__(self, path: tf.Tensor) -> tf.Tensor:
            return tf.io.read_file(path)

    graph = capture(Reads()).graph
    with pytest.raises(UnsafeGraphError, match="'ReadFile'"):
        Graph.from_bytes(graph.to_bytes())
    (tmp_path / "secret").write_text("s")
    allowed = Graph.from_bytes(graph.to_bytes(), allowed=["ReadFile"])
    assert allowed([], {"path": tf.constant(str(tmp_path / "secret"))})["outputs"].numpy() == b"s"


@pytest.mark.slow
def test_files_that_were_tampered_with_are_refused_or_served_and_end_nothing(whole: bool) -> None:
    command = [sys.executable, "-m", "tests.hostile.fuzz.graph_files", "0", str(5000 if whole else 200)]
    environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"}
    done = subprocess.run(command, check=False, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, f"{done.stdout.split()[-1:]}: {done.stderr[-2000:]}"


# Costs ----------------------------------------------------------------------------------------------------------------


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


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Limits of a few kilobytes on the structure of a graph."""
    monkeypatch.setattr(safety, "SMALL", 1 << 10)
    monkeypatch.setattr(safety, "STRUCTURE", 1 << 16)


@pytest.mark.usefixtures("small")
def test_large_constants_are_no_reason_to_refuse_a_graph() -> None:
    graph_def = of(*["NoOp"] * 100)
    node = graph_def.node.add(name="large", op="Const")
    node.attr["value"].tensor.tensor_content = bytes(1 << 17)
    safety.check_weight(graph_def.SerializeToString(), safety.GRAPH_DEF)
    node.attr["value"].tensor.tensor_content = b""
    node.attr["value"].tensor.string_val.extend([b""] * (1 << 13))
    with pytest.raises(UnsafeGraphError, match="expected at most 65536 bytes beside its constants"):
        safety.check_weight(graph_def.SerializeToString(), safety.GRAPH_DEF)


@pytest.mark.usefixtures("small")
def test_a_file_of_nothing_but_nodes_or_parameters_is_refused_before_it_is_parsed(tmp_path: Path) -> None:
    nodes = b"\n\x00" * (1 << 12)  # each two bytes would be a node
    parameters = b"\x12\x00" * (1 << 12)
    for content in (graph_pb2.Graph(graph_def=nodes).SerializeToString(), parameters):
        with pytest.raises(UnsafeGraphError, match="beside its constants"):
            Graph.from_bytes(content)
    meta = tf.compat.v1.MetaGraphDef(graph_def=tf.compat.v1.GraphDef.FromString(nodes))
    (tmp_path / "model.meta").write_bytes(meta.SerializeToString())
    with pytest.raises(UnsafeGraphError, match="beside its constants"):
        read_meta(tmp_path / "model.meta")
    saved = saved_model_pb2.SavedModel(meta_graphs=[meta])
    (tmp_path / "saved_model.pb").write_bytes(saved.SerializeToString())
    with pytest.raises(UnsafeGraphError, match="beside its constants"):
        parsed_saved_model(tmp_path)
    with pytest.raises(GraphError, match="not readable"):  # no message at all is left to the parser
        Graph.from_bytes(b"\xff" * (1 << 12))


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


@pytest.mark.parametrize("inside", [False, True])
@pytest.mark.parametrize(("batches", "sound"), [(1, True), (2, False), (8, False)])
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
    """A gather in batches, in a nested function if `inside`."""

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


def with_number(op: str, attribute: str, number: int) -> Any:
    graph_def = of(op)
    graph_def.node[0].attr[attribute].i = number
    return graph_def


def named_as_an_op() -> Any:
    graph_def = of("MatMul")
    graph_def.library.function.add().signature.name = "MatMul"
    return graph_def


def calling_another_graphs_function() -> Any:
    graph_def = nested(1)
    graph_def.node[1].attr["f"].func.name = "__inference_of_somebody_else_7"
    return graph_def


def of_one_name_twice() -> Any:
    graph_def = of("NoOp", "NoOp")
    graph_def.node[1].name = "n0"
    return graph_def


def with_a_function_twice() -> Any:
    graph_def = nested(1)
    graph_def.library.function[1].signature.name = "f0"
    return graph_def


def of_another_dtype() -> Any:
    graph_def = constant([])
    graph_def.node[0].attr["dtype"].type = tf.int32.as_datatype_enum
    return graph_def


_TENSORS = "at most 1000000 tensors that nodes take and give, found"
_KINDS = "a dtype of numbers, booleans or strings, found"


@pytest.mark.parametrize(
    ("graph_def", "says"),
    [
        (named_as_an_op(), r"functions with names of their own, found \['MatMul'\]"),
        (calling_another_graphs_function(), "calls '__inference_of_somebody_else_7', which is not a function of"),
        (of_one_name_twice(), "one node 'n0', found several"),
        (with_a_function_twice(), "one function 'f0', found several"),
        (of("\x1b[2J"), r"^[^\x1b]*$"),  # would clear the terminal that shows it
        (of_another_dtype(), "constant 'n0': expected int32, found float32"),
        (constant([1 << 40, 1 << 40]), "expected fewer elements"),
        (constant([-2]), "dimensions of 0 or more"),
        (constant([1] * 300), "at most 32 dimensions"),
        (constant([], tf.resource), f"{_KINDS} resource"),
        (constant([], tf.variant), f"{_KINDS} variant"),
        (with_number("Pack", "N", (1 << 31) - 1), f"{_TENSORS} {(1 << 31) - 1}"),
        (with_number("Split", "num_split", 1 << 40), f"{_TENSORS} {1 << 40}"),
        (with_number("NoOp", "batch_dims", 1000), "node 'n0': expected at most 8 batch_dims, found 1000"),
        (with_number("NoOp", "batch_dims", -(1 << 62)), "node 'n0': expected at most 8 batch_dims, found -"),
        (with_number("NoOp", "parallel_iterations", 1 << 40), "expected at most 100000 parallel_iterations, found"),
    ],
)
def test_a_graph_that_tensorflow_would_trust_too_much_is_refused(graph_def: Any, says: str) -> None:
    with pytest.raises(UnsafeGraphError, match=says):
        check(graph_def)
