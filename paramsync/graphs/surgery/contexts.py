"""The contexts of control flow v1, which know a loop or branch as a whole: without them, it has no gradients.

A graph keeps them in two collections. Serialised, a context names its nodes; written again with other names for them,
it is the context of a copy. It covers no more than was copied: a loop's variables that nobody needs are left out. Those
that the loop itself needs have their exits all the same: TensorFlow's gradient goes back through a loop by all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

_KEYS = (tf.compat.v1.GraphKeys.WHILE_CONTEXT, tf.compat.v1.GraphKeys.COND_CONTEXT)
# What a context calls the tensors without which it is none
_NEEDED = ("pred_name", "pivot_name", "pivot_for_pred_name", "pivot_for_body_name", "maximum_iterations_name")
_SWITCHES, _EXITS = frozenset({"Switch", "RefSwitch"}), frozenset({"Exit", "RefExit"})

Rename = Callable[[str], str | None]
"""A tensor's name in the copy; None for what is not there."""


@dataclass(frozen=True, slots=True)
class Context:
    """A loop or branch that lies in no other: its collection, its kind and what it says of itself."""

    key: str
    kind: Any
    proto: Any

    def parts(self) -> list[tuple[set[str], list[str]]]:
        """For this context and each one inside: its nodes, and the tensors without which it is none."""
        return [(_nodes(one), _needed(one)) for one in _with_nested(self.proto)]

    def copy_to(self, graph: tf.Graph, read: Rename, own: Rename, scope: str) -> None:
        """Add the context of the copied nodes, if there are any, to `graph`.

        `own` names what was copied, `read` also what others take the place of for those who read it.
        """
        if not _is_copied(self.proto, own):
            return
        proto = type(self.proto)()
        proto.CopyFrom(self.proto)
        _rewrite(proto, read, own, scope)
        with graph.as_default(), graph.control_dependencies(None):
            graph.add_to_collection(self.key, self.kind.from_proto(proto))


def contexts_of(graph: tf.Graph) -> list[Context]:
    return [Context(key, type(one), one.to_proto()) for key in _KEYS for one in graph.get_collection(key)]


def inside(contexts: Iterable[Context]) -> frozenset[str]:
    """All nodes that lie in a loop or branch, unlike the exits from those that lie in no other."""
    return frozenset(node for context in contexts for one in _with_nested(context.proto) for node in _body(one))


def needed(contexts: Iterable[Context], taken: Collection[str]) -> list[str]:
    """The tensors that the contexts of these nodes cannot do without."""
    return [
        tensor
        for context in contexts
        for nodes, tensors in context.parts()
        if not nodes.isdisjoint(taken)
        for tensor in tensors
    ]


def exits(operation: tf.Operation) -> list[tf.Operation]:
    """The way out of the loop for the variable whose value this operation, if it is a loop's switch, lets out."""
    if operation.type not in _SWITCHES:
        return []
    return [one for one in operation.outputs[0].consumers() if one.type in _EXITS]


def _with_nested(proto: Any) -> list[Any]:
    found = [proto]
    for one in proto.nested_contexts:
        found += _with_nested(getattr(one, one.WhichOneof("ctxt")))
    return found


def _nodes(proto: Any) -> set[str]:
    own = set(proto.values_def.values) - set(proto.values_def.external_values)
    return {name.partition(":")[0] for name in own}


def _body(proto: Any) -> set[str]:
    return _nodes(proto) - {name.partition(":")[0] for name in getattr(proto, "loop_exit_names", ())}


def _needed(proto: Any) -> list[str]:
    return [name for name in (getattr(proto, field, "") for field in _NEEDED) if name]


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
