"""Copies the contexts of control flow v1. TensorFlow needs a context to differentiate a loop or branch.

A graph keeps contexts in two collections. A serialised context lists the names of its nodes. The context of the copy
is made by renaming these nodes. It lists only copied nodes, so that unused loop variables are left out. A loop variable
that the loop itself needs keeps its exit, because TensorFlow's gradient enters a loop through all exits.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from paramsync.graphdef.reading import node_of

_KEYS = (tf.compat.v1.GraphKeys.WHILE_CONTEXT, tf.compat.v1.GraphKeys.COND_CONTEXT)
# The fields of a context with the names of tensors that it needs.
_NEEDED = ("pred_name", "pivot_name", "pivot_for_pred_name", "pivot_for_body_name", "maximum_iterations_name")
_SWITCHES, _EXITS = frozenset({"Switch", "RefSwitch"}), frozenset({"Exit", "RefExit"})

Rename = Callable[[str], str | None]
"""Returns a tensor's name in the copy, or None if the tensor was not copied."""


@dataclass(frozen=True, slots=True)
class Context:
    """The context of an outermost loop or branch: its collection, class and serialised form."""

    key: str
    kind: Any
    proto: Any

    def copy_to(self, graph: tf.Graph, read: Rename, own: Rename, scope: str) -> None:
        """Add the context to `graph`, if any of its nodes were copied.

        `own` translates the names of copied tensors. `read` also translates the names of replaced tensors.
        """
        if not _is_copied(self.proto, own):
            return
        proto = type(self.proto)()
        proto.CopyFrom(self.proto)
        _rewrite(proto, read, own, scope)
        with graph.as_default(), graph.control_dependencies(None):
            graph.add_to_collection(self.key, self.kind.from_proto(proto))


def contexts_of(graph: tf.Graph) -> list[Context]:
    return [Context(key, type(context), context.to_proto()) for key in _KEYS for context in graph.get_collection(key)]


def inside(contexts: Iterable[Context]) -> frozenset[str]:
    """Return all nodes in a loop or branch, except the exits of outermost loops."""
    return frozenset(
        node
        for context in contexts
        for proto in _with_nested(context.proto)
        for node in _nodes(proto) - set(map(node_of, getattr(proto, "loop_exit_names", ())))
    )


def needed(contexts: Iterable[Context], taken: Collection[str]) -> list[str]:
    """Return the tensors that the contexts of the nodes in `taken` need."""
    return [
        tensor
        for context in contexts
        for proto in _with_nested(context.proto)
        if not _nodes(proto).isdisjoint(taken)
        for tensor in (getattr(proto, field, "") for field in _NEEDED)
        if tensor
    ]


def exits(operation: tf.Operation) -> list[tf.Operation]:
    """Return the Exits of a loop variable, if this operation is its Switch; otherwise an empty list."""
    if operation.type not in _SWITCHES:
        return []
    return [reader for reader in operation.outputs[0].consumers() if reader.type in _EXITS]


def _with_nested(proto: Any) -> list[Any]:
    protos = [proto]
    for nested in proto.nested_contexts:
        protos += _with_nested(getattr(nested, nested.WhichOneof("ctxt")))
    return protos


def _nodes(proto: Any) -> set[str]:
    return set(map(node_of, set(proto.values_def.values) - set(proto.values_def.external_values)))


def _rewrite(proto: Any, read: Rename, own: Rename, scope: str) -> None:
    proto.context_name = f"{scope}/{proto.context_name}"
    for field in _NEEDED:
        if getattr(proto, field, ""):
            setattr(proto, field, read(getattr(proto, field)))
    for field in ("loop_exit_names", "loop_enter_names"):
        if hasattr(proto, field):
            names = getattr(proto, field)
            names[:] = [renamed for renamed in map(own, names) if renamed]
    _rewrite_values(proto.values_def, read, own)
    for at in reversed(range(len(proto.nested_contexts))):
        nested = getattr(proto.nested_contexts[at], proto.nested_contexts[at].WhichOneof("ctxt"))
        if _is_copied(nested, own):
            _rewrite(nested, read, own, scope)
        else:
            del proto.nested_contexts[at]


def _is_copied(proto: Any, own: Rename) -> bool:
    external = proto.values_def.external_values
    return any(own(name) for name in proto.values_def.values if name not in external)


def _rewrite_values(values: Any, read: Rename, own: Rename) -> None:
    external = {}
    for outer, inner in values.external_values.items():
        outer_renamed, inner_renamed = read(outer), own(inner)
        if outer_renamed and inner_renamed:
            external[outer_renamed] = inner_renamed
    inner_names = [own(name) for name in values.values if name not in values.external_values]
    values.values[:] = [*(name for name in inner_names if name), *external]
    values.external_values.clear()
    values.external_values.update(external)
