"""What a graph that somebody else made may hold: only safe ops, and no more of anything than memory can bear.

A graph is code, and building it costs memory, so that this looks at the definition alone, before TensorFlow does. Where
TensorFlow itself would end the process, `guard` puts checks into the graph.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from typing import Any

import tensorflow as tf

from paramsync import dtypes
from paramsync.errors import InputError, UnsafeGraphError
from paramsync.graphdef.allowed_ops import NODES, SAFE
from paramsync.graphdef.reading import bodies, called, callees_first, data_inputs, every_node, fresh, node_of
from paramsync.graphs.nodes import become_constant
from paramsync.host.files import shown
from paramsync.rpc import tensor_proto
from paramsync.v1 import graph_pb2

EXPANDED = 1_000_000
"""What it may hold once each call of a function is replaced by what it calls, which TensorFlow does."""

BUILT = 2_000_000
"""What its signatures may be made of together, each counted with all nodes and parameters."""

ENDS = 1 << 18
"""What it may have of parameters, tables, inputs and outputs: as many as a checkpoint may have tensors."""

DEPTH = 100
"""How deep calls of functions may be nested."""

REPEATED = 256 << 20
"""Bytes that constants may take in memory beyond those that are in the file."""

TENSORS = 1_000_000
"""What its nodes may take and give where a number of the node says how many."""

_COUNTS = """
    N Ncontext_dense Ncontext_sparse Ndense Nfeature_list_dense Nfeature_list_sparse Nsparse OUTPUT_RAGGED_RANK
    PARAMS_RAGGED_RANK RAGGED_RANK num num_params num_params_biases num_params_weights num_partitions
    num_row_partition_tensors num_sparse num_split output_ragged_rank top_paths
"""  # what the ops of the list call that number
_COUNTED = frozenset(_COUNTS.split())

# Numbers of nodes that TensorFlow believes, and what none exceeds that is meant well.
_MOST = {"batch_dims": 8, "parallel_iterations": 100_000, "_parallel_iterations": 100_000}

_STRING = 24  # bytes that TensorFlow takes for a string, however short


def check(graph_def: Any, *, allowed: Collection[str] = ()) -> None:
    """Raises UnsafeGraphError. `allowed` names ops beyond those that are known to be safe."""
    _check_size(graph_def)
    _check_ops(graph_def, allowed=allowed)


def check_signatures(message: graph_pb2.Graph, graph_def: Any) -> None:
    """Each signature of a graph file is built on its own, and takes all parameters. Raises UnsafeGraphError."""
    arguments = len(message.parameters) + len(message.tables)
    ends = sum(len(signature.inputs) + len(signature.outputs) for signature in message.signatures.values())
    _check_at_most("parameters, tables, inputs and outputs", arguments + ends, ENDS)
    built = arguments + sum(len(nodes) for _, nodes in bodies(graph_def))
    _check_at_most("nodes and parameters, counted for each signature", built * len(message.signatures), BUILT)


def _check_ops(graph_def: Any, *, allowed: Collection[str] = ()) -> None:
    """Every op must be a safe one, one of `allowed`, or a function of the graph. Raises UnsafeGraphError."""
    known = SAFE.union(allowed)
    functions = {function.signature.name for function in graph_def.library.function}
    disguised = sorted(functions & known)
    if disguised:
        raise UnsafeGraphError(f"the graph is not safe: expected functions with names of their own, found {disguised}")
    unsafe: dict[str, str] = {}
    for node in every_node(graph_def):
        if node.op not in known and node.op not in functions:
            unsafe.setdefault(node.op, node.name)
        for name in called(node)[1:]:
            if name not in functions:
                raise UnsafeGraphError(
                    f"the graph is not safe: node {shown(node.name)} calls {shown(name)},"
                    " which is not a function of this graph"
                )
    if unsafe:
        listed = ", ".join(f"{shown(op)} (node {shown(node)})" for op, node in sorted(unsafe.items())[:8])
        raise UnsafeGraphError(
            f"the graph is not safe: {len(unsafe)} of its ops are not on the list of those that only compute: {listed};"
            " if you trust who made it, allow each by its name (inferencer, trainer: --allow-op NAME;"
            " publisher: allow_ops=[NAME])"
        )


def _check_size(graph_def: Any) -> None:
    """Refuse recursion, more nodes than can be built, and constants that unfold in memory. Raises UnsafeGraphError."""
    sizes: dict[str, int] = {}
    calls: dict[str, list[str]] = {}
    repeated, tensors = 0, 0
    for body, nodes in bodies(graph_def):
        if body in sizes:
            raise UnsafeGraphError(f"the graph is not safe: expected one function {shown(body)}, found several")
        sizes[body] = len(nodes)
        _check_at_most("nodes", sum(sizes.values()), NODES)
        name, count = Counter(node.name for node in nodes).most_common(1)[0] if nodes else ("", 1)
        if count > 1:
            raise UnsafeGraphError(f"the graph is not safe: expected one node {shown(name)}, found several")
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
    """A loop begins where one tensor from outside meets those of the next round; TensorFlow aborts where two do."""
    back = {node.name for node in nodes if node.op in ("NextIteration", "RefNextIteration")}
    for node in nodes:
        if back and node.op in ("Merge", "RefMerge"):
            data = [node_of(tensor) for tensor in data_inputs(node)]
            outside = [name for name in data if name not in back]
            if 1 < len(outside) < len(data):
                raise UnsafeGraphError(
                    f"the graph is not safe: expected one tensor that enters the loop at {shown(node.name)},"
                    f" found {len(outside)}"
                )


def _check_calls(sizes: Mapping[str, int], calls: Mapping[str, Collection[str]]) -> None:
    """Refuse functions that call themselves or are nested too deep, and too many nodes once calls are inlined."""
    expanded: dict[str, int] = {}
    depth: dict[str, int] = {}
    try:
        for body in callees_first(calls):
            expanded[body] = sizes[body] + sum(expanded[name] for name in calls[body])
            depth[body] = 1 + max((depth[name] for name in calls[body]), default=0)
            _check_at_most("nodes, counted where functions are called", expanded[body], EXPANDED)
            _check_at_most("functions that call one another in a row", depth[body], DEPTH)
    except RecursionError as error:
        raise UnsafeGraphError(f"the graph is not safe: function {shown(str(error))} calls itself") from error


def _check_at_most(what: str, found: int, limit: int) -> None:
    if found > limit:
        raise UnsafeGraphError(f"the graph is not safe: expected at most {limit} {what}, found {found}")


def _tensors(node: Any) -> int:
    """How many tensors a node says that it takes and gives. Raises UnsafeGraphError for impossible numbers."""
    numbers = {name: value.i for name, value in node.attr.items() if value.WhichOneof("value") == "i"}
    for name, most in _MOST.items():
        if abs(numbers.get(name, 0)) > most:
            raise UnsafeGraphError(
                f"the graph is not safe: node {shown(node.name)}: expected at most {most} {name}, found {numbers[name]}"
            )
    return sum(max(0, number) for name, number in numbers.items() if name in _COUNTED)


def _constants(node: Any) -> Iterable[Any]:
    for value in node.attr.values():
        kind = value.WhichOneof("value")
        if kind == "tensor":
            yield value.tensor
        elif kind == "list":
            yield from value.list.tensor


def _unfolding(node: Any, tensor: Any) -> int:
    """The bytes that a constant takes in memory beyond those of its definition. Raises UnsafeGraphError."""
    try:
        head = tensor_proto.header(tensor, f"constant {shown(node.name)}")
    except InputError as error:
        raise UnsafeGraphError(f"the graph is not safe: {error}") from error
    declared = node.attr.get("dtype")
    if node.op == "Const" and (
        declared is None or declared.type != tensor.dtype
    ):  # TensorFlow relies on it, and aborts
        expected, found = dtypes.name(0 if declared is None else declared.type), dtypes.name(tensor.dtype)
        raise UnsafeGraphError(
            f"the graph is not safe: constant {shown(node.name)}: expected {expected}, found {found}"
        )
    size = head.count * (_STRING if tensor.dtype == dtypes.STRING else head.dtype.itemsize)
    return max(0, size - int(tensor.ByteSize()))


def guard(graph_def: Any) -> None:
    """Have what is gathered in batches fail like any other node where a tensor has fewer dimensions than batches.

    TensorFlow takes the difference for the rank of the result, and aborts where that is negative, while it only builds
    the graph. ExpandDims, which a gather is made to wait for, refuses the same tensors, and costs nothing.
    """
    for body, nodes in bodies(graph_def):
        names = {node.name for node in nodes}
        for node in [node for node in nodes if node.op == "GatherV2" and "batch_dims" in node.attr]:
            batches = int(node.attr["batch_dims"].i)
            arguments = (("Tparams", batches + 1), ("Tindices", batches)) if batches > 0 else ()
            for at, (tensor, (kind, dimension)) in enumerate(zip(data_inputs(node), arguments, strict=False)):
                name = fresh(f"{node.name}/guard_{at}", names)
                names |= {name, f"{name}/dimension"}
                # it waits for the tensor, so that it is where the tensor is: in a loop, or behind a condition
                constant = nodes.add(name=f"{name}/dimension")
                become_constant(constant, dimension, tf.int32, [f"^{node_of(tensor)}"])
                spelled = f"{constant.name}:output:0" if body else constant.name
                check = nodes.add(name=name, op="ExpandDims", input=[tensor, spelled])
                check.attr["T"].CopyFrom(node.attr[kind])
                check.attr["Tdim"].type = tf.int32.as_datatype_enum
                node.input.append(f"^{name}")
