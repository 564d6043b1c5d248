"""Inlines plain calls of a graph, for analysis: it computes the same.

Control dependencies are dropped, so that such a graph must not be run.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import tensorflow as tf

from paramsync.graphdef.reading import full, functions_called

_CALLS = frozenset(("PartitionedCall", "StatefulPartitionedCall"))
_MOST = 50_000  # nodes: a larger graph takes too long to analyse


class TooManyError(ValueError):
    """The inlined graph would be too large to analyse."""


@dataclass
class Inlined:
    graph_def: Any
    _others: dict[str, str] = field(default_factory=dict)

    def tensor(self, name: str) -> str:
        """The name here of a tensor of the graph."""
        name = full(name)
        while name in self._others:
            name = self._others[name]
        return name


def inlined(graph_def: Any) -> Inlined:
    """Raises TooManyError. A call that cannot be replaced stays one."""
    functions = {function.signature.name: function for function in graph_def.library.function}
    whole = Inlined(tf.compat.v1.GraphDef(versions=graph_def.versions))
    nodes = whole.graph_def.node
    taken = {node.name for node in graph_def.node}
    # each scope has nodes, and how their inputs are called in the whole
    waiting: list[tuple[Any, _Scope]] = [(node, _Scope()) for node in reversed(graph_def.node)]
    while waiting:
        node, scope = waiting.pop()
        inputs = [scope.tensor(name) for name in node.input if not name.startswith("^")]
        name = scope.prefix + node.name
        function = functions.get(node.attr["f"].func.name if node.op in _CALLS else node.op)
        if function is None or _is_open(function):
            if len(nodes) >= _MOST:
                raise TooManyError(f"more than {_MOST} nodes")
            made = nodes.add()
            made.CopyFrom(node)
            made.name = name
            made.input[:] = inputs
            made.attr.pop("_output_shapes", None)
            made.attr.pop("_class", None)
            continue
        prefix = f"{name}/"
        while any(f"{prefix}{inner_node.name}" in taken for inner_node in function.node_def):
            prefix += "_/"
        taken.update(f"{prefix}{inner_node.name}" for inner_node in function.node_def)
        if len(taken) >= _MOST:
            raise TooManyError(f"more than {_MOST} nodes")
        arguments = dict(zip((argument.name for argument in function.signature.input_arg), inputs, strict=True))
        inner = _Scope(prefix, arguments, {inner_node.name: inner_node for inner_node in function.node_def}, functions)
        for at, result in enumerate(function.signature.output_arg):
            whole._others[f"{name}:{at}"] = inner.tensor(function.ret[result.name])
        waiting += [(inner_node, inner) for inner_node in reversed(function.node_def)]
    for node in nodes:
        node.input[:] = [whole.tensor(name) for name in node.input]
    whole.graph_def.library.function.extend(functions_called(graph_def.library.function, nodes))
    return whole


@dataclass(frozen=True, slots=True)
class _Scope:
    """The names of tensors within a function, or in the graph itself."""

    prefix: str = ""
    arguments: Mapping[str, str] = field(default_factory=dict)
    nodes: Mapping[str, Any] | None = None
    functions: Mapping[str, Any] = field(default_factory=dict)

    def tensor(self, name: str) -> str:
        if self.nodes is None:
            return full(name)
        node, _, rest = name.partition(":")
        if not rest or node not in self.nodes:
            return self.arguments[node]
        result, _, at = rest.partition(":")
        return f"{self.prefix}{node}:{self._first(self.nodes[node], result) + int(at or 0)}"

    def _first(self, node: Any, result: str) -> int:
        """The place at which a node's result of that name begins."""
        at = 0
        for name, count in self._results(node):
            if name == result:
                return at
            at += count
        raise KeyError(result)

    def _results(self, node: Any) -> Iterator[tuple[str, int]]:
        if node.op in self.functions:
            yield from ((result.name, 1) for result in self.functions[node.op].signature.output_arg)
            return
        for result in _known_ops().op_def_for_type(node.op).output_arg:
            if result.number_attr:
                yield result.name, node.attr[result.number_attr].i
            elif result.type_list_attr:
                yield result.name, len(node.attr[result.type_list_attr].list.type)
            else:
                yield result.name, 1


@cache
def _known_ops() -> tf.Graph:
    return tf.Graph()  # which knows them all, and holds none


def _is_open(function: Any) -> bool:
    """Whether attributes of its nodes are set by the call."""
    return bool(function.signature.attr) or any(
        value.WhichOneof("value") == "placeholder" for node in function.node_def for value in node.attr.values()
    )
