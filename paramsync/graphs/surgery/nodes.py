"""The nodes of a copy: those of the source, under the copy's scope, on the copy's device, reading what it is given."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import tensorflow as tf

from paramsync.graphs.lifting.lift import lift

# Attributes that name what a node stands for at run time: two nodes with one name would be one.
_NAMES = {
    "VarHandleOp": "shared_name",
    "Variable": "shared_name",
    "VariableV2": "shared_name",
    "AutoReloadVariable": "shared_name",
    "TemporaryVariable": "var_name",
    "DestroyTemporaryVariable": "var_name",
    "Enter": "frame_name",
    "RefEnter": "frame_name",
}
_COLOCATED = b"loc:@"


class Nodes:
    """Nodes to import under no further scope. `input_map` has the existing tensors that they read, by name."""

    def __init__(
        self,
        operations: Iterable[tf.Operation],
        *,
        scope: str,
        device: str | None,
        replaced: Mapping[str, tf.Tensor],
        values: Mapping[str, tf.Tensor],
        kept: Mapping[str, tf.Operation],
        library: Iterable[Any],
    ) -> None:
        """The copies of `operations`.

        `replaced` gives the tensors, by name, that others take the place of; `values` the variables, by operation, that
        a value takes the place of, whatever they are used for; `kept` the operations that are read where they are.
        """
        self._scope, self._device, self._kept = scope, device, kept
        self._replaced = {**replaced, **{f"{name}:0": value for name, value in values.items()}}
        self.input_map: dict[str, tf.Tensor] = {}
        found = tf.compat.v1.GraphDef()
        for operation in operations:
            found.node.add().CopyFrom(operation.node_def)
        found.library.function.extend(library)
        if values:
            found = _lifted(found, values)
        self._names = frozenset(node.name for node in found.node) - values.keys()
        self.graph_def = tf.compat.v1.GraphDef(library=found.library)
        for node in found.node:
            if node.name in self._names:
                self._add(node)

    def _add(self, found: Any) -> None:
        node = self.graph_def.node.add()
        node.CopyFrom(found)
        node.name = f"{self._scope}/{found.name}"
        node.input[:] = [spelled for spelled in map(self._input, found.input) if spelled]
        attribute = _NAMES.get(node.op)
        if attribute and node.attr[attribute].s:
            node.attr[attribute].s = f"{self._scope}/".encode() + node.attr[attribute].s
        self._colocate(node)

    def _input(self, name: str) -> str:
        """How a node of the copy spells this input; nothing where it does not have it."""
        if name.startswith("^"):  # what is replaced or kept has no effects to wait for
            return f"^{self._scope}/{name[1:]}" if name[1:] in self._names else ""
        operation, _, port = name.partition(":")
        tensor = self._replaced.get(f"{operation}:{port or 0}")
        if tensor is None and operation in self._kept:
            tensor = self._kept[operation].outputs[int(port or 0)]
        if tensor is None:
            return f"{self._scope}/{name}"
        self.input_map[tensor.name] = tensor
        return str(tensor.name)

    def _colocate(self, node: Any) -> None:
        if "_class" not in node.attr:
            return
        classes = []
        for one in node.attr["_class"].list.s:
            name = one.removeprefix(_COLOCATED).decode()
            if name in self._names:
                classes.append(_COLOCATED + f"{self._scope}/{name}".encode())
            elif self._device is None and name in self._kept:  # an import knows no other place to be at
                node.device = self._kept[name].device
        if classes:
            node.attr["_class"].list.s[:] = classes
        else:
            del node.attr["_class"]


def _lifted(graph_def: Any, values: Mapping[str, tf.Tensor]) -> Any:
    lifted = lift(graph_def, {name: tf.TensorSpec(value.shape, value.dtype) for name, value in values.items()})
    places = {node.name: node for node in graph_def.node}
    for node in lifted.node:  # lifting forgets where nodes run
        if node.name in places:
            node.device = places[node.name].device
            if "_class" in places[node.name].attr:
                node.attr["_class"].CopyFrom(places[node.name].attr["_class"])
    return lifted
