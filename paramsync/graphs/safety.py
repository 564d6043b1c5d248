"""Checks an untrusted graph before TensorFlow builds it. Accepts only ops that compute, and limits the graph's memory.

A graph is code, and building it costs memory. So the checks read its bytes and its definition before TensorFlow does.
TensorFlow aborts the process for some values of tensors; `guard` adds checks of these values to the graph.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from typing import Any

import tensorflow as tf
from google.protobuf.message import DecodeError

from paramsync import dtypes
from paramsync.errors import InputError, UnsafeGraphError
from paramsync.graphdef.allowed_ops import NODES, SAFE
from paramsync.graphdef.reading import bodies, called, callees_first, data_inputs, every_node, fresh, node_of
from paramsync.graphs.nodes import become_constant
from paramsync.host.files import shown
from paramsync.rpc import tensor_proto
from paramsync.rpc.wire_fields import Fields
from paramsync.v1 import graph_pb2

# Limits for a graph. Real graphs stay below a tenth of each limit.
EXPANDED = 1_000_000  # nodes once all calls are inlined, as TensorFlow inlines them
BUILT = 2_000_000  # nodes and parameters of all signatures together: each signature counts all nodes and parameters
ENDS = 1 << 18  # parameters, tables, inputs and outputs: a checkpoint has the same limit for tensors
DEPTH = 100  # nested calls of functions
REPEATED = 256 << 20  # bytes that constants take in memory in addition to their bytes in the file
TENSORS = 1_000_000  # inputs and outputs of nodes, counted only if an attribute sets their number
SMALL = 32 << 20  # bytes of a message that is parsed without an estimate of its memory
STRUCTURE = 128 << 20  # estimated bytes of a parsed message, without its constants' values

# The attributes of safe ops that set how many tensors they take or give.
_COUNTS = """
    N Ncontext_dense Ncontext_sparse Ndense Nfeature_list_dense Nfeature_list_sparse Nsparse OUTPUT_RAGGED_RANK
    PARAMS_RAGGED_RANK RAGGED_RANK num num_params num_params_biases num_params_weights num_partitions
    num_row_partition_tensors num_sparse num_split output_ragged_rank top_paths
"""
_COUNTED = frozenset(_COUNTS.split())

# Attributes that TensorFlow uses without a check, and the largest value that is accepted.
_MOST = {"batch_dims": 8, "parallel_iterations": 100_000, "_parallel_iterations": 100_000}

_STRING = 24  # bytes of memory for each string, however short
_FIELD = 64  # roughly the fewest bytes of memory for a parsed field
_DEEP = 4096  # bytes: the fields of a larger inner message are weighed one by one

# The fields that lead to the values of constants, by number. None marks a field that contains nothing but values.
_TENSOR: dict[int, Any] = {4: None}
_NODE = {5: {2: {8: _TENSOR}}}
GRAPH_DEF = {1: _NODE, 2: {1: {3: _NODE}}}
GRAPH_FILE = {1: GRAPH_DEF, 5: {2: None, 3: None}}
META_GRAPH = {2: GRAPH_DEF}
SAVED_MODEL = {2: META_GRAPH}


def _unsafe(reason: str) -> UnsafeGraphError:
    return UnsafeGraphError(f"the graph is not safe: {reason}")


def check_weight(content: bytes, kind: dict[int, Any]) -> None:
    """Raise UnsafeGraphError for a message that would take too much memory once parsed.

    Two bytes of a file can become a whole node in memory. The values of constants do not count. A malformed message
    raises nothing here, because its parser rejects it later.
    """
    if len(content) > SMALL:
        with suppress(DecodeError):
            _weigh(Fields(content, STRUCTURE // _FIELD), 0, len(content), kind, 0)


def _weigh(fields: Fields, at: int, end: int, inner: dict[int, Any], weight: int) -> int:
    """Return `weight` plus the estimated memory of one message. `inner` has the kinds of the messages in its fields."""
    while at < end:
        number, body, at = fields.field(at, end)
        size = at - body if fields.sized else 0
        weight += _FIELD
        within = inner.get(number, {})
        if within and size > _DEEP:
            weight = _weigh(fields, body, at, within, weight)
        elif within is not None:
            weight += size
        if weight > STRUCTURE:
            raise _unsafe(f"expected at most {STRUCTURE} bytes beside its constants")
    return weight


def check(graph_def: Any, *, allowed: Collection[str] = ()) -> None:
    """Raise UnsafeGraphError if the graph is too large, or has an op that is neither known as safe nor `allowed`."""
    _check_size(graph_def)
    _check_ops(graph_def, allowed)


def check_signatures(message: graph_pb2.Graph, graph_def: Any) -> None:
    """Raise UnsafeGraphError for too many arguments and outputs, or too many nodes in all signatures together."""
    arguments = len(message.parameters) + len(message.tables)
    ends = sum(len(signature.inputs) + len(signature.outputs) for signature in message.signatures.values())
    _check_at_most("parameters, tables, inputs and outputs", arguments + ends, ENDS)
    built = arguments + sum(len(nodes) for _, nodes in bodies(graph_def))
    _check_at_most("nodes and parameters, counted for each signature", built * len(message.signatures), BUILT)


def _check_ops(graph_def: Any, allowed: Collection[str]) -> None:
    known = SAFE.union(allowed)
    functions = {function.signature.name for function in graph_def.library.function}
    if disguised := sorted(functions & known):
        raise _unsafe(f"expected functions with names of their own, found {disguised}")
    unsafe: dict[str, str] = {}
    for node in every_node(graph_def):
        if node.op not in known and node.op not in functions:
            unsafe.setdefault(node.op, node.name)
        for name in called(node)[1:]:
            if name not in functions:
                raise _unsafe(f"node {shown(node.name)} calls {shown(name)}, which is not a function of this graph")
    if unsafe:
        listed = ", ".join(f"{shown(op)} (node {shown(node)})" for op, node in sorted(unsafe.items())[:8])
        raise _unsafe(
            f"{len(unsafe)} of its ops are not on the list of those that only compute: {listed};"
            " if you trust who made it, allow each by its name (inferencer, trainer: --allow-op NAME;"
            " publisher: allow_ops=[NAME])"
        )


def _check_size(graph_def: Any) -> None:
    """Refuse a graph that would take too much memory, or on which TensorFlow would abort or recurse without end.

    Checks the numbers of nodes and tensors, the constants' sizes in memory, repeated names, merges, and nested calls.
    """
    sizes: dict[str, int] = {}
    calls: dict[str, list[str]] = {}
    repeated, tensors = 0, 0
    for body, nodes in bodies(graph_def):
        if body in sizes:
            raise _unsafe(f"expected one function {shown(body)}, found several")
        sizes[body] = len(nodes)
        _check_at_most("nodes", sum(sizes.values()), NODES)
        name, count = Counter(node.name for node in nodes).most_common(1)[0] if nodes else ("", 1)
        if count > 1:
            raise _unsafe(f"expected one node {shown(name)}, found several")
        _check_merges(nodes)
        calls[body] = [name for node in nodes for name in called(node)]
        for node in nodes:
            tensors += _tensors(node)
            _check_at_most("tensors that nodes take and give", tensors, TENSORS)
            for tensor in _constants(node):
                repeated += _unfolding(node, tensor)
                _check_at_most("bytes of constants that are not in the file", repeated, REPEATED)
    _check_calls(sizes, {body: [name for name in names if name in sizes] for body, names in calls.items()})


def _check_merges(nodes: Any) -> None:
    """Refuse a loop in which two tensors enter one Merge, because TensorFlow aborts on it."""
    back = {node.name for node in nodes if node.op in ("NextIteration", "RefNextIteration")}
    for node in nodes:
        if back and node.op in ("Merge", "RefMerge"):
            data = [node_of(tensor) for tensor in data_inputs(node)]
            outside = [name for name in data if name not in back]
            if 1 < len(outside) < len(data):
                raise _unsafe(f"expected one tensor that enters the loop at {shown(node.name)}, found {len(outside)}")


def _check_calls(sizes: Mapping[str, int], calls: Mapping[str, Collection[str]]) -> None:
    """Refuse recursion, calls nested too deep, and too many nodes after inlining."""
    expanded: dict[str, int] = {}
    depth: dict[str, int] = {}
    try:
        for body in callees_first(calls):
            expanded[body] = sizes[body] + sum(expanded[name] for name in calls[body])
            depth[body] = 1 + max((depth[name] for name in calls[body]), default=0)
            _check_at_most("nodes, counted where functions are called", expanded[body], EXPANDED)
            _check_at_most("functions that call one another in a row", depth[body], DEPTH)
    except RecursionError as error:
        raise _unsafe(f"function {shown(str(error))} calls itself") from error


def _check_at_most(what: str, found: int, limit: int) -> None:
    if found > limit:
        raise _unsafe(f"expected at most {limit} {what}, found {found}")


def _tensors(node: Any) -> int:
    """Return how many inputs and outputs a node's attributes give it. Raises UnsafeGraphError for absurd attributes."""
    numbers = {name: value.i for name, value in node.attr.items() if value.WhichOneof("value") == "i"}
    for name, most in _MOST.items():
        if abs(numbers.get(name, 0)) > most:
            raise _unsafe(f"node {shown(node.name)}: expected at most {most} {name}, found {numbers[name]}")
    return sum(max(0, number) for name, number in numbers.items() if name in _COUNTED)


def _constants(node: Any) -> Iterable[Any]:
    for value in node.attr.values():
        kind = value.WhichOneof("value")
        if kind == "tensor":
            yield value.tensor
        elif kind == "list":
            yield from value.list.tensor


def _unfolding(node: Any, tensor: Any) -> int:
    """Return how many more bytes a constant takes in memory than in its definition. Raises UnsafeGraphError."""
    try:
        head = tensor_proto.header(tensor, f"constant {shown(node.name)}")
    except InputError as error:
        raise _unsafe(str(error)) from error
    declared = node.attr["dtype"].type if "dtype" in node.attr else 0
    if node.op == "Const" and declared != tensor.dtype:  # TensorFlow relies on equal dtypes, and aborts
        expected, found = dtypes.name(declared), dtypes.name(tensor.dtype)
        raise _unsafe(f"constant {shown(node.name)}: expected {expected}, found {found}")
    size = head.count * (_STRING if tensor.dtype == dtypes.STRING else head.dtype.itemsize)
    return max(0, size - int(tensor.ByteSize()))


def guard(graph_def: Any) -> None:
    """Make a batched gather raise an error, instead of ending the process, for tensors with too few dimensions.

    To compute the rank of the result, TensorFlow subtracts `batch_dims`. It aborts on a negative rank, even while the
    graph is built. So each gather waits for an added ExpandDims, which raises an error for the same tensors and costs
    nothing.
    """
    for body, nodes in bodies(graph_def):
        names = {node.name for node in nodes}
        for node in [node for node in nodes if node.op == "GatherV2" and "batch_dims" in node.attr]:
            batches = int(node.attr["batch_dims"].i)
            arguments = (("Tparams", batches + 1), ("Tindices", batches)) if batches > 0 else ()
            for at, (tensor, (kind, dimension)) in enumerate(zip(data_inputs(node), arguments, strict=False)):
                name = fresh(f"{node.name}/guard_{at}", names)
                names |= {name, f"{name}/dimension"}
                constant = nodes.add(name=f"{name}/dimension")
                # the constant waits for the tensor, to be in the same loop or branch
                become_constant(constant, dimension, tf.int32, [f"^{node_of(tensor)}"])
                spelled = f"{constant.name}:output:0" if body else constant.name
                check = nodes.add(name=name, op="ExpandDims", input=[tensor, spelled])
                check.attr["T"].CopyFrom(node.attr[kind])
                check.attr["Tdim"].type = tf.int32.as_datatype_enum
                node.input.append(f"^{name}")
