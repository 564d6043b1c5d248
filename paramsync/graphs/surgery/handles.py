"""What the variables hold whose handles are passed to loops and branches of control flow v2.

TensorFlow notes it on the loop it builds, not in the functions of a graph, and without it a copied loop with a branch
inside has no gradients. So the functions that a copy calls say it themselves.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import tensorflow as tf
from tensorflow.core.framework import resource_handle_pb2

from paramsync.graphs.lifting.roles import CALLS, functions, set_functions

_PLAIN_CALLS = frozenset({"PartitionedCall", "StatefulPartitionedCall"})  # have gradients of their own

_Held = resource_handle_pb2.ResourceHandleProto.DtypeAndShape


def describe(graph_def: Any, given: Mapping[str, tf.Tensor], suffix: str) -> None:
    """Let the functions that loops and branches call say what the handles they take are of.

    These are handles of nodes of the graph and those `given` to it by name. The functions get names with `suffix`.
    """
    nodes = {one.name: one for one in graph_def.node} | {name: one.op.node_def for name, one in given.items()}
    held = {
        name: _Held(dtype=node.attr["dtype"].type, shape=node.attr["shape"].shape)
        for name, node in nodes.items()
        if node.op == "VarHandleOp"
    }
    library = _Library(graph_def.library, suffix)
    library.rename([one for one in graph_def.node if one.op not in _PLAIN_CALLS], held)


class _Library:
    def __init__(self, library: Any, suffix: str) -> None:
        self._library = library
        self._functions = {one.signature.name: one for one in library.function}
        self._suffix = suffix
        self._made: dict[tuple[Any, ...], str] = {}

    def rename(self, nodes: Iterable[Any], held: Mapping[str, Any]) -> None:
        """Let the nodes call functions that say what the handles passed to them are of."""
        for node in nodes:
            call = CALLS.get(node.op)
            if call is None:
                continue
            passed = [held.get(name) for name in node.input[call.first :] if not name.startswith("^")]
            if any(passed):
                set_functions(node, call, [self._described(name, passed) for name in functions(node, call)])

    def _described(self, name: str, passed: list[Any]) -> str:
        key = (name, *(one.SerializeToString() if one else b"" for one in passed))
        if name not in self._functions:
            return name
        if key not in self._made:
            self._made[key] = f"{name}__{self._suffix}_{len(self._made)}"
            function = self._library.function.add()
            function.CopyFrom(self._functions[name])
            function.signature.name = self._made[key]
            held = {}
            for argument, one in zip(function.signature.input_arg, passed, strict=True):
                if one:
                    del argument.handle_data[:]
                    argument.handle_data.add().CopyFrom(one)
                    held[argument.name] = one
            self.rename(function.node_def, held)
        return self._made[key]
