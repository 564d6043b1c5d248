"""Nodes of GraphDefs: finds the nodes that a tensor needs, counts tensors, rewrites nodes, and inlines calls."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import tensorflow as tf

from paramsync.errors import GraphError
from paramsync.graphdef.reading import data_inputs, full, functions_called, node_of, reach

PLACEHOLDERS = frozenset({"Placeholder", "PlaceholderV2"})
"""Placeholders without a default value."""

REFERENCES = frozenset({"Variable", "VariableV2"})
"""Ops of TensorFlow 1's reference variables. Ops take the output of such a variable directly, without a reading op."""

VARIABLES = REFERENCES | {"VarHandleOp"}

PLAIN_CALLS = frozenset({"PartitionedCall", "StatefulPartitionedCall"})
"""Ops that only call one function."""


def leading_to(nodes: Mapping[str, Any], tensors: Iterable[str], *, fed: Collection[str] = ()) -> list[Any]:
    """Return the nodes that these tensors ("x", "x:0", "^x") need, in the order of `nodes`.

    Leaves out nodes that only the tensors in `fed` ("x:0") need. Raises GraphError for an unknown node.
    """

    def names_of(tensors: Iterable[str]) -> Iterator[str]:
        for tensor in tensors:
            if full(tensor) not in fed:
                if node_of(tensor) not in nodes:
                    name = node_of(tensor)
                    raise GraphError(f"the graph has no node {name!r}, which the node of {tensor!r} should be")
                yield node_of(tensor)

    reached = reach(names_of(tensors), lambda name: names_of(nodes[name].input))
    return [node for name, node in nodes.items() if name in reached]


def with_functions(graph_def: Any, nodes: Iterable[Any]) -> Any:
    """Return a new GraphDef with these nodes of `graph_def` and the functions that they call."""
    result = tf.compat.v1.GraphDef(versions=graph_def.versions)
    result.node.extend(nodes)
    result.library.function.extend(functions_called(graph_def.library.function, result.node))
    return result


def definition(op: str) -> Any:
    """Return TensorFlow's OpDef of an op; None for an unknown op."""
    try:
        return _known_ops().op_def_for_type(op)
    except RuntimeError:
        return None


@cache
def _known_ops() -> tf.Graph:
    return tf.Graph()  # an empty graph knows all ops


def argument_counts(node: Any, arguments: Iterable[Any]) -> Iterator[tuple[Any, int]]:
    """Yield each argument of an op (its `input_arg` or `output_arg`) with the number of its tensors in this node."""
    for argument in arguments:
        if argument.number_attr:
            yield argument, node.attr[argument.number_attr].i
        else:
            yield argument, len(node.attr[argument.type_list_attr].list.type) if argument.type_list_attr else 1


def argument_at(node: Any, arguments: Iterable[Any], place: int) -> tuple[Any, int] | None:
    """For tensor number `place` of a node, return its argument, and its place within the argument."""
    for argument, count in argument_counts(node, arguments):
        if place < count:
            return argument, place
        place -= count
    return None


def port_of(node: Any, result: str, functions: Mapping[str, Any]) -> int:
    """Return the output number of a node's tensor that a function names "result:position". Raises LookupError."""
    name, _, position = result.partition(":")
    op = functions[node.op].signature if node.op in functions else definition(node.op)
    port = int(position or 0)
    for argument, count in argument_counts(node, () if op is None else op.output_arg):
        if argument.name == name:
            return port
        port += count
    raise KeyError(f"{node.name}:{result}")


def become(node: Any, op: str, inputs: Iterable[str] = ()) -> Any:
    """Replace the op and the inputs of a node. Keeps the node's name and clears its attributes."""
    kept = list(inputs)
    name = node.name
    node.Clear()
    node.name, node.op = name, op
    node.input.extend(kept)
    return node


def become_constant(node: Any, value: object, dtype: tf.DType | None = None, control: Iterable[str] = ()) -> Any:
    """Turn a node into a constant, by default of the value's dtype."""
    become(node, "Const", control)
    node.attr["value"].tensor.CopyFrom(tf.make_tensor_proto(value, dtype))
    node.attr["dtype"].type = node.attr["value"].tensor.dtype
    return node


def become_placeholder(node: Any, spec: tf.TensorSpec) -> Any:
    """Turn a node into a placeholder of this spec."""
    become(node, "Placeholder")
    node.attr["dtype"].type = spec.dtype.as_datatype_enum
    node.attr["shape"].shape.CopyFrom(spec.shape.as_proto())
    return node


def prefix_frame(node: Any, prefix: str) -> None:
    """Put a prefix before the name of the loop that a node enters: two loops with the same name would run as one."""
    if "frame_name" in node.attr:
        node.attr["frame_name"].s = prefix.encode() + node.attr["frame_name"].s


# Inlining -------------------------------------------------------------------------------------------------------------

MOST = 50_000
"""The most nodes of a graph for which an analysis stays fast."""

_DEPTH = 100  # the most nested calls that are inlined; deeper calls stay


@dataclass
class Inlined:
    graph_def: Any
    # the tensors that replace the results of inlined calls, by result
    _results: dict[str, str] = field(default_factory=dict)

    def tensor(self, name: str) -> str:
        """Return the name that a tensor of the original graph has after inlining."""
        name = full(name)
        for _ in range(len(self._results) + 1):
            if name not in self._results:
                return name
            name = self._results[name]
        raise ValueError(f"{name!r} is itself")


def inline(graph_def: Any, *, most: int = MOST) -> Inlined:
    """Inline the function calls of a graph. Calls whose functions take attributes from the call stay.

    The result is for analysis only: it has no control dependencies, and must not run.

    Raises ValueError for more than `most` nodes, LookupError or ValueError for a graph that contradicts itself.
    """
    functions = {function.signature.name: function for function in graph_def.library.function}
    whole = Inlined(tf.compat.v1.GraphDef(versions=graph_def.versions))
    nodes = whole.graph_def.node
    taken = {node.name for node in graph_def.node}
    waiting: list[tuple[Any, _Scope]] = [(node, _Scope()) for node in reversed(graph_def.node)]
    while waiting:
        node, scope = waiting.pop()
        inputs = [scope.tensor(tensor) for tensor in data_inputs(node)]
        name = scope.prefix + node.name
        function = functions.get(node.attr["f"].func.name if node.op in PLAIN_CALLS else node.op)
        if function is None or scope.depth == _DEPTH or _is_open(function):
            if len(nodes) >= most:
                raise ValueError(f"more than {most} operations")
            copy = nodes.add()
            copy.CopyFrom(node)
            copy.name = name
            copy.input[:] = inputs
            copy.attr.pop("_output_shapes", None)
            copy.attr.pop("_class", None)
            continue
        prefix = f"{name}/"
        while any(f"{prefix}{inner.name}" in taken for inner in function.node_def):
            prefix += "_/"
        taken.update(f"{prefix}{inner.name}" for inner in function.node_def)
        if len(taken) >= most:
            raise ValueError(f"more than {most} operations")
        arguments = dict(zip((argument.name for argument in function.signature.input_arg), inputs, strict=True))
        within = _Scope(
            prefix, arguments, {inner.name: inner for inner in function.node_def}, functions, scope.depth + 1
        )
        for at, result in enumerate(function.signature.output_arg):
            whole._results[f"{name}:{at}"] = within.tensor(function.ret[result.name])
        waiting += [(inner, within) for inner in reversed(function.node_def)]
    for node in nodes:
        node.input[:] = map(whole.tensor, node.input)
    whole.graph_def.library.function.extend(functions_called(graph_def.library.function, nodes))
    return whole


@dataclass(frozen=True, slots=True)
class _Scope:
    """Translates names of tensors in a function, or in the graph itself, to names in the inlined graph."""

    prefix: str = ""
    arguments: Mapping[str, str] = field(default_factory=dict)
    nodes: Mapping[str, Any] | None = None
    functions: Mapping[str, Any] = field(default_factory=dict)
    depth: int = 0

    def tensor(self, name: str) -> str:
        if self.nodes is None:
            return full(name)
        node, _, result = name.partition(":")
        if not result or node not in self.nodes:
            return self.arguments[node]
        return f"{self.prefix}{node}:{port_of(self.nodes[node], result, self.functions)}"


def _is_open(function: Any) -> bool:
    """Return whether nodes of the function take attributes from the call."""
    return bool(function.signature.attr) or any(
        value.WhichOneof("value") == "placeholder" for node in function.node_def for value in node.attr.values()
    )
