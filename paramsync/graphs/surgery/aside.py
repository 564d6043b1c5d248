"""A copy is made in a graph of its own first, then brought to its target at once: what fails adds nothing there."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from paramsync.errors import GraphError
from paramsync.graphs.surgery.contexts import inside
from paramsync.graphs.surgery.custom_gradients import rename
from paramsync.graphs.surgery.handles import describe
from paramsync.graphs.surgery.inline import inline
from paramsync.graphs.surgery.library import library_of, set_apart
from paramsync.graphs.surgery.names import Names
from paramsync.graphs.surgery.nodes import Nodes
from paramsync.graphs.surgery.replacing import Replacements, as_kept
from paramsync.graphs.surgery.seeds import identifier, refresh
from paramsync.graphs.surgery.selection import Selection


@dataclass(frozen=True, slots=True)
class Aside:
    """A copy that was made in a graph of its own, where stand-ins are read in place of the target's tensors."""

    selection: Selection
    replacements: Replacements
    scope: str
    graph_def: Any
    kept: frozenset[str]
    gradients: Mapping[str, str]  # their names, by operation, for those that somebody wrote
    device: str | None
    keep_seeds: bool

    def bring(self, target: tf.Graph) -> tuple[Names, dict[str, tf.Variable]]:
        """Add the copy to its target, the default graph: what its nodes are called there, and its variables."""
        target.unique_name(self.scope)
        read = self.replacements.brought()
        read |= {name: target.get_tensor_by_name(name) for name in self.kept}
        tf.graph_util.import_graph_def(self.graph_def, input_map=read, name="")
        made = {name: read[one.name].name if one.name in read else one.name for name, one in self._made().items()}
        return self._named(target, made)

    def rehearse(self, given: tf.Graph) -> None:
        """Do the same in a graph of its own, beside the stand-ins, which are all that is `given`."""
        whole = given.as_graph_def()
        whole.node.extend(self.graph_def.node)
        whole.library.function.extend(self.graph_def.library.function)
        with tf.Graph().as_default() as aside:
            tf.graph_util.import_graph_def(whole, name="")
            self._named(aside, {name: one.name for name, one in self._made().items()})

    def _made(self) -> dict[str, tf.Tensor]:
        values = {f"{name}:0": value for name, value in self.replacements.values.items()}
        return {**self.replacements.tensors, **values}

    def _named(self, graph: tf.Graph, replaced: Mapping[str, str]) -> tuple[Names, dict[str, tf.Variable]]:
        """Say of the copy's nodes what is in no node: their shapes, their variables, their loops and branches."""
        operations = self.selection.operations
        names = Names(
            source=self.selection.graph,
            scope=self.scope,
            replaced=replaced,
            copied=frozenset(operations) - self.replacements.values.keys(),
            kept=frozenset(self.selection.kept),
        )
        if self.replacements.refine():
            for name in names.copied:
                for tensor in operations[name].outputs:
                    copy = graph.get_tensor_by_name(f"{self.scope}/{tensor.name}")
                    if copy.dtype == tensor.dtype:  # not where a value took the place of a handle
                        copy.set_shape(tensor.shape)
        found = self.selection.variables.items()
        variables = {name: one.copy_to(graph, names, self.scope) for name, one in found}
        for context in self.selection.contexts:
            context.copy_to(graph, names, names.own, self.scope)
        return names, variables


def make_aside(
    selection: Selection, replacements: Replacements, *, scope: str, device: str | None, keep_seeds: bool
) -> Aside:
    """Make the copy. Raises GraphError where that cannot be done."""
    operations = selection.operations
    with tf.Graph().as_default() as given:
        kept = {name: as_kept(one.node_def, name) for name, one in selection.kept.items()}
        with tf.device(device):
            replacements.make(scope, operations)
    nodes = Nodes(
        operations.values(),
        scope=scope,
        device=device,
        replaced=replacements.tensors,
        values=replacements.values,
        kept=kept,
        library=library_of(selection.graph, operations.values()),
    )
    suffix = identifier(scope)
    inline(nodes.graph_def, suffix, whole={f"{scope}/{name}" for name in inside(selection.contexts)})
    describe(nodes.graph_def, nodes.input_map, suffix)
    if not keep_seeds:
        refresh(nodes.graph_def, scope)
    set_apart(nodes.graph_def, device=device)
    gradients = rename(nodes.graph_def.node, operations.keys() - inside(selection.contexts), scope)
    read = {one.name for operation in kept.values() for one in operation.outputs} & nodes.input_map.keys()
    made = Aside(selection, replacements, scope, nodes.graph_def, frozenset(read), gradients, device, keep_seeds)
    try:
        made.rehearse(given)
    except (ValueError, TypeError, KeyError, tf.errors.OpError) as error:
        raise GraphError(f"{replacements.misfits() or 'the copy cannot be built'}: {error}") from error
    nodes.graph_def.node.extend(one.node_def for one in replacements.made)
    return made


def free_scope(graph: tf.Graph, scope: str) -> str:
    """The scope, with a number behind it where there is anything in it already."""
    used = [one.name.lower() for one in graph.get_operations()]
    found, number = scope, 0
    with graph.as_default(), tf.compat.v1.name_scope(None):
        while graph.unique_name(found, mark_as_used=False) != found or _is_used(used, found.lower()):
            number += 1
            found = f"{scope}_{number}"
    return found


def _is_used(names: Iterable[str], scope: str) -> bool:
    return any(one.startswith(scope) and one[len(scope) :][:1] in ("", "/") for one in names)
