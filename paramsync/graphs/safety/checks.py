"""What a graph that somebody else made may hold: only safe ops, and no more of anything than memory can bear.

A graph is code, and building it costs memory, so that this looks at the definition alone, before TensorFlow does.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from typing import Any

from paramsync import dtypes
from paramsync.errors import InputError, UnsafeGraphError
from paramsync.graphdef.allowed_ops import NODES, SAFE
from paramsync.graphdef.reading import called, functions_of
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
    check_size(graph_def)
    check_ops(graph_def, allowed=allowed)


def check_signatures(message: graph_pb2.Graph, graph_def: Any) -> None:
    """Each signature of a graph file is built on its own, and takes all parameters. Raises UnsafeGraphError."""
    arguments = len(message.parameters) + len(message.tables)
    ends = sum(len(one.inputs) + len(one.outputs) for one in message.signatures.values())
    _check_at_most("parameters, tables, inputs and outputs", arguments + ends, ENDS)
    built = arguments + sum(len(nodes) for _, nodes in _bodies(graph_def))
    _check_at_most("nodes and parameters, counted for each signature", built * len(message.signatures), BUILT)


def check_ops(graph_def: Any, *, allowed: Collection[str] = ()) -> None:
    """Every op must be a safe one, one of `allowed`, or a function of the graph. Raises UnsafeGraphError."""
    known = SAFE.union(allowed)
    functions = {function.signature.name for function in graph_def.library.function}
    disguised = sorted(functions & known)
    if disguised:
        raise UnsafeGraphError(f"the graph is not safe: expected functions with names of their own, found {disguised}")
    unsafe: dict[str, str] = {}
    for _, nodes in _bodies(graph_def):
        for node in nodes:
            if node.op not in known and node.op not in functions:
                unsafe.setdefault(node.op, node.name)
            for name in (one.name for one in functions_of(node.attr)):
                if name and name not in functions:
                    raise UnsafeGraphError(
                        f"the graph is not safe: node {shown(node.name)} calls {shown(name)},"
                        " which is not a function of this graph"
                    )
    if unsafe:
        listed = ", ".join(f"{shown(op)} (node {shown(node)})" for op, node in sorted(unsafe.items())[:8])
        raise UnsafeGraphError(
            f"the graph is not safe: {len(unsafe)} of its ops are not on the list of those that only compute: {listed};"
            " if you trust who made it, allow each by its name (inferencer: --allow-op NAME)"
        )


def check_size(graph_def: Any) -> None:
    """No recursion, no more nodes than can be built, no constants that unfold in memory. Raises UnsafeGraphError."""
    sizes: dict[str, int] = {}
    calls: dict[str, list[str]] = {}
    left, tensors = REPEATED, 0
    for body, nodes in _bodies(graph_def):
        if body in sizes:
            raise UnsafeGraphError(f"the graph is not safe: expected one function {shown(body)}, found several")
        sizes[body] = len(nodes)
        _check_at_most("nodes", sum(sizes.values()), NODES)
        names = {node.name for node in nodes}
        if len(names) != len(nodes):
            twice = next(name for name, count in Counter(node.name for node in nodes).items() if count > 1)
            raise UnsafeGraphError(f"the graph is not safe: expected one node {shown(twice)}, found several")
        _check_merges(nodes)
        calls[body] = [name for node in nodes for name in called(node)]
        for node in nodes:
            tensors += _tensors(node)
            _check_at_most("tensors that nodes take and give", tensors, TENSORS)
            for tensor in _constants(node):
                left -= _unfolding(node, tensor)
                _check_at_most("bytes of constants that are not in the file", REPEATED - left, REPEATED)
    calls = {body: [name for name in names if name in sizes] for body, names in calls.items()}
    _check_calls(sizes, calls)


def _check_merges(nodes: Any) -> None:
    """A loop begins where one tensor from outside meets those of the next round; TensorFlow aborts where two do."""
    back = {node.name for node in nodes if node.op in ("NextIteration", "RefNextIteration")}
    for node in nodes:
        if back and node.op in ("Merge", "RefMerge"):
            data = [one.partition(":")[0] for one in node.input if not one.startswith("^")]
            outside = [one for one in data if one not in back]
            if 1 < len(outside) < len(data):
                raise UnsafeGraphError(
                    f"the graph is not safe: expected one tensor that enters the loop at {shown(node.name)},"
                    f" found {len(outside)}"
                )


def _check_calls(sizes: dict[str, int], calls: dict[str, list[str]]) -> None:
    """Follows calls depth first, each function once; not recursive, for a hostile graph is deep."""
    expanded: dict[str, int] = {}
    depth: dict[str, int] = {}
    entered: set[str] = set()
    waiting = list(sizes)
    while waiting:
        body = waiting[-1]
        left = [one for one in calls[body] if one not in expanded]
        if body in expanded:
            waiting.pop()
        elif left:
            entered.add(body)
            looped = next((one for one in left if one in entered), None)
            if looped is not None:
                raise UnsafeGraphError(f"the graph is not safe: function {shown(looped)} calls itself")
            waiting += dict.fromkeys(left)
        else:
            expanded[body] = sizes[body] + sum(expanded[one] for one in calls[body])
            depth[body] = 1 + max((depth[one] for one in calls[body]), default=0)
            _check_at_most("nodes, counted where functions are called", expanded[body], EXPANDED)
            _check_at_most("functions that call one another in a row", depth[body], DEPTH)
            waiting.pop()


def _check_at_most(what: str, found: int, limit: int) -> None:
    if found > limit:
        raise UnsafeGraphError(f"the graph is not safe: expected at most {limit} {what}, found {found}")


def _bodies(graph_def: Any) -> Iterator[tuple[str, Any]]:
    """The nodes of the graph, under no name, and those of each function."""
    yield "", graph_def.node
    for function in graph_def.library.function:
        yield function.signature.name, function.node_def


def _tensors(node: Any) -> int:
    """How many it says that it takes and gives. Raises UnsafeGraphError for a number that no tensor has."""
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
    said = node.attr.get("dtype")
    if node.op == "Const" and (said is None or said.type != tensor.dtype):  # TensorFlow relies on it, and aborts
        expected, found = dtypes.name(0 if said is None else said.type), dtypes.name(tensor.dtype)
        raise UnsafeGraphError(
            f"the graph is not safe: constant {shown(node.name)}: expected {expected}, found {found}"
        )
    size = head.count * (_STRING if tensor.dtype == dtypes.STRING else head.dtype.itemsize)
    return max(0, size - int(tensor.ByteSize()))
