"""Graphs of others: what does more than compute is refused by its name, and no file ends the process."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import tensorflow as tf

from paramsync.errors import GraphError, UnsafeGraphError
from paramsync.graphdef.allowed_ops import SAFE, STOCHASTIC
from paramsync.graphs.capturing import capture
from paramsync.graphs.graph import Graph
from paramsync.graphs.safety.checks import check
from tests.graphs.test_digest import nested
from tests.support.graph_defs import of

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


def test_a_name_that_would_harm_a_terminal_is_shown_harmless() -> None:
    with pytest.raises(UnsafeGraphError) as error:
        check(of("\x1b[2J"))
    assert "\x1b" not in str(error.value)


def test_every_safe_op_is_one_that_tensorflow_has() -> None:
    assert [op for op in SAFE if not hasattr(tf.raw_ops, op)] == []
    assert SAFE > STOCHASTIC


def test_a_function_may_not_pass_for_an_op() -> None:
    graph_def = of("MatMul")
    graph_def.library.function.add().signature.name = "MatMul"
    with pytest.raises(UnsafeGraphError, match=r"functions with names of their own, found \['MatMul'\]"):
        check(graph_def)


def test_functions_of_other_graphs_cannot_be_called() -> None:
    graph_def = nested(1)
    graph_def.node[1].attr["f"].func.name = "__inference_of_somebody_else_7"
    with pytest.raises(UnsafeGraphError, match="calls '__inference_of_somebody_else_7', which is not a function of"):
        check(graph_def)


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


def test_names_that_are_there_twice_are_refused() -> None:
    graph_def = of("NoOp", "NoOp")
    graph_def.node[1].name = "n0"
    with pytest.raises(UnsafeGraphError, match="one node 'n0', found several"):
        check(graph_def)
    graph_def = nested(1)
    graph_def.library.function[1].signature.name = "f0"
    with pytest.raises(UnsafeGraphError, match="one function 'f0', found several"):
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


def test_an_op_that_is_allowed_but_unknown_to_tensorflow_is_an_error_like_any_other() -> None:
    message = capture(Line()).graph.message()
    definition = tf.compat.v1.GraphDef.FromString(message.graph_def)
    next(node for node in definition.node if node.op == "Mul").op = "SomebodysOwnOp"
    message.graph_def = definition.SerializeToString()
    message.digest = ""
    with pytest.raises(GraphError, match=r"cannot be built: .*SomebodysOwnOp"):
        Graph.from_bytes(message.SerializeToString(), allowed=["SomebodysOwnOp"])


@pytest.mark.slow
def test_files_that_were_tampered_with_are_refused_or_served_and_end_nothing() -> None:
    assert tampered_with(range(300)) == ""


@pytest.mark.slow
def test_thousands_of_files_that_were_tampered_with_end_nothing() -> None:
    assert tampered_with(range(1000, 6000)) == ""


def tampered_with(numbers: range) -> str:
    """The number of the file that ended the process, and how; nothing where none did."""
    command = [sys.executable, "-m", "tests.hostile.fuzz.graph_files", str(numbers.start), str(len(numbers))]
    environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"}
    done = subprocess.run(command, check=False, capture_output=True, text=True, env=environment, timeout=580)
    return "" if done.returncode == 0 else f"{done.stdout.split()[-1:]}: {done.returncode} {done.stderr[-2000:]}"
