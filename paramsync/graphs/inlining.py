"""Inlines the plain calls of a graph, for analysis only: the result has no control dependencies, and must not run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import tensorflow as tf

from paramsync.graphdef.reading import data_inputs, full, functions_called
from paramsync.graphs.nodes import PLAIN_CALLS, port_of

MOST = 50_000
"""Nodes of a graph that does not take too long to analyse."""

_DEPTH = 100  # functions that call one another in a row


class TooManyError(ValueError):
    """The inlined graph would be too large to analyse."""


@dataclass
class Inlined:
    graph_def: Any
    _results: dict[str, str] = field(default_factory=dict)  # of inlined calls

    def tensor(self, name: str) -> str:
        """The name of a tensor of the graph after inlining."""
        name = full(name)
        for _ in range(len(self._results) + 1):
            if name not in self._results:
                return name
            name = self._results[name]
        raise ValueError(f"{name!r} is itself")


def inlined(graph_def: Any, *, most: int = MOST) -> Inlined:
    """Inline the plain calls of a graph, except those of functions with attributes of the call.

    Raises TooManyError for more than `most` nodes, LookupError and ValueError for a graph that contradicts itself.
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
                raise TooManyError(f"more than {most} operations")
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
            raise TooManyError(f"more than {most} operations")
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
    """True if the call sets attributes of the function's nodes."""
    return bool(function.signature.attr) or any(
        value.WhichOneof("value") == "placeholder" for node in function.node_def for value in node.attr.values()
    )
