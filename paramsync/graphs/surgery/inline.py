"""Calls of functions make way for the functions' own nodes.

TensorFlow knows the gradient of a call from the Python object that made it. For a call that was imported it falls back
on gradients of its own for whole functions, which lack many ops and are silently zero for a loop. A copy is there to be
trained, so it has no calls: what a function did, its nodes do, and an IdentityN of the call's name gives its results.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from typing import Any

import tensorflow as tf

from paramsync.graphs.lifting.roles import CALLS, functions, set_functions

_PLAIN = frozenset({"PartitionedCall", "StatefulPartitionedCall"})
_WHOLE = ("_XlaMustCompile", "_noinline")  # functions that are more than their nodes

Spelling = Callable[[Any, str, str], str]
"""How a tensor is written where a function's nodes go: from its node, the node's name there, and `result:position`."""


def inline(graph_def: Any, suffix: str, *, whole: Collection[str]) -> None:
    """Inline all calls in `graph_def` and in the functions of its loops and branches, which get names with `suffix`.

    The nodes named in `whole` stay as they are.
    """
    if any(node.op in CALLS for node in graph_def.node):
        inliner = _Inliner(graph_def, suffix)
        nodes = inliner.inlined(graph_def.node, inliner.in_graph, whole)
        del graph_def.node[:]
        graph_def.node.extend(nodes)


class _Inliner:
    def __init__(self, graph_def: Any, suffix: str) -> None:
        self._library = graph_def.library
        self._functions = {one.signature.name: one for one in graph_def.library.function}
        self._suffix = suffix
        self._made: dict[str, str] = {}
        used = tf.compat.v1.train.export_meta_graph(graph_def=graph_def, graph=tf.Graph(), collection_list=[])
        self._results = {one.name: one.output_arg for one in used.meta_info_def.stripped_op_list.op}

    def inlined(self, nodes: Iterable[Any], spelling: Spelling, whole: Collection[str] = ()) -> list[Any]:
        """The nodes, and those of the functions they call in place of the calls."""
        found = []
        for node in nodes:
            call = CALLS.get(node.op)
            if call is None:
                found.append(node)
                continue
            names = [self._flat(name) for name in functions(node, call)]
            function = self._functions.get(names[0])
            if node.op in _PLAIN and node.name not in whole and function is not None and not _is_whole(node, function):
                found += _body(node, function, spelling)
            else:
                set_functions(node, call, names)
                found.append(node)
        return found

    def in_graph(self, node: Any, name: str, result: str) -> str:
        """A tensor's name by its position among all that the node gives."""
        wanted, _, position = result.partition(":")
        port = int(position)
        for one in self._results.get(node.op, ()):  # an IdentityN of ours gives but one result
            if one.name == wanted:
                break
            port += _count(node, one)
        return f"{name}:{port}" if port else name

    def _flat(self, name: str) -> str:
        """The name of the function without calls."""
        if name in self._made or name not in self._functions:
            return self._made.get(name, name)
        self._made[name] = name  # for one that calls itself
        function = type(self._functions[name])()
        function.CopyFrom(self._functions[name])
        nodes = self.inlined(function.node_def, _in_function)
        if nodes != list(self._functions[name].node_def):
            del function.node_def[:]
            function.node_def.extend(nodes)
            function.signature.name = self._made[name] = f"{name}__{self._suffix}_flat"
            self._library.function.add().CopyFrom(function)
            self._functions[function.signature.name] = function
        return self._made[name]


def _in_function(node: Any, name: str, result: str) -> str:
    return f"{name}:{result}"


def _is_whole(node: Any, function: Any) -> bool:
    return any(attr[one].b for attr in (node.attr, function.attr) for one in _WHOLE if one in attr)


def _body(call: Any, function: Any, spelling: Spelling) -> list[Any]:
    """The nodes of a function for one call of it; the last one takes the call's name."""
    data = [one for one in call.input if not one.startswith("^")]
    before = [one for one in call.input if one.startswith("^")]
    given = dict(zip((one.name for one in function.signature.input_arg), data, strict=True))
    own = {node.name: node for node in function.node_def}

    def spelled(tensor: str) -> str:
        name, _, result = tensor.removeprefix("^").partition(":")
        if name in given:
            return str(given[name])
        inner = f"{call.name}/{name}"
        return f"^{inner}" if tensor.startswith("^") else spelling(own[name], inner, result)

    found = []
    for inner in function.node_def:
        node = type(inner)()
        node.CopyFrom(inner)
        node.name = f"{call.name}/{inner.name}"
        node.device = inner.device or call.device
        node.attr.pop("_class", None)
        inputs = [spelled(one) for one in inner.input if not (one.startswith("^") and one[1:] in given)]
        node.input[:] = [*inputs, *(one for one in before if one not in inputs)]
        found.append(node)
    results = [spelled(function.ret[one.name]) for one in function.signature.output_arg]
    effects = [spelled(f"^{one}") for one in function.control_ret.values()]
    end = type(call)(name=call.name, op="IdentityN" if results else "NoOp", device=call.device)
    end.input[:] = [*results, *sorted({*effects, *before})]
    if results:
        end.attr["T"].list.type[:] = call.attr["Tout"].list.type
    return [*found, end]


def _count(node: Any, result: Any) -> int:
    """How many tensors one result of an op is."""
    if result.number_attr:
        return int(node.attr[result.number_attr].i)
    return len(node.attr[result.type_list_attr].list.type) if result.type_list_attr else 1
