"""Makes a copy in a graph of its own first, then brings it to its target: what fails adds nothing there."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from paramsync.errors import GraphError
from paramsync.graphdef.reading import full, node_of
from paramsync.graphs.lifting.lift import lift
from paramsync.graphs.surgery.contexts import inside
from paramsync.graphs.surgery.custom_gradients import rename
from paramsync.graphs.surgery.functions import library_of, make_own
from paramsync.graphs.surgery.replacing import MadeReplacements, Replacements, as_kept
from paramsync.graphs.surgery.selection import Selection

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


@dataclass(frozen=True, slots=True)
class Names:
    """From names of tensors or operations in the source to those in the copy's graph; None for what is not there."""

    source: tf.Graph
    scope: str
    replaced: Mapping[str, str]
    copied: frozenset[str]
    kept: frozenset[str]

    def __call__(self, name: str) -> str | None:
        return self.replaced[name] if name in self.replaced else self.own(name)

    def own(self, name: str) -> str | None:
        """The same for what reads `name` in the source, or gives it: what is replaced is there under its own name."""
        operation = node_of(name)
        if operation in self.copied:
            return f"{self.scope}/{name}"
        return name if operation in self.kept else None


@dataclass(frozen=True, slots=True)
class Aside:
    """A copy that was made in a graph of its own, where stand-ins are read in place of the target's tensors."""

    selection: Selection
    replacements: Replacements
    scope: str
    graph_def: Any
    gradients: Mapping[str, str]  # their names, by operation, for those that somebody wrote
    device: str | None
    keep_seeds: bool

    def bring(self, target: tf.Graph) -> tuple[Names, dict[str, tf.Variable]]:
        """Add the copy to its target, the default graph. Returns the names of its nodes and its variables."""
        target.unique_name(self.scope)
        with tf.device(self.device):
            made = self.replacements.make(self.scope, self.selection.operations)
        return self.add(target, made, self.selection.kept)

    def add(
        self, graph: tf.Graph, made: MadeReplacements, kept: Mapping[str, tf.Operation]
    ) -> tuple[Names, dict[str, tf.Variable]]:
        """Add the copy to the default graph, in which it reads what was made and is kept.

        Says of its nodes what is in no node: their shapes, their variables, their loops and branches.
        """
        tensors = made.tensors | {tensor.name: tensor for operation in kept.values() for tensor in operation.outputs}
        read = {full(tensor) for node in self.graph_def.node for tensor in node.input}
        tf.graph_util.import_graph_def(
            self.graph_def,
            input_map={name: tensor for name, tensor in tensors.items() if name in read},
            name=f"{self.scope}/",
        )
        operations = self.selection.operations
        names = Names(
            source=self.selection.graph,
            scope=self.scope,
            replaced={name: tensor.name for name, tensor in made.tensors.items()},
            copied=frozenset(operations) - made.values.keys(),
            kept=frozenset(kept),
        )
        if self.replacements.refine(made):
            for name in names.copied:
                for tensor in operations[name].outputs:
                    copy = graph.get_tensor_by_name(f"{self.scope}/{tensor.name}")
                    if copy.dtype == tensor.dtype:  # not where a value took the place of a handle
                        copy.set_shape(tensor.shape)
        variables = {
            name: variable.copy_to(graph, names, self.scope) for name, variable in self.selection.variables.items()
        }
        for context in self.selection.contexts:
            context.copy_to(graph, names, names.own, self.scope)
        return names, variables


def make_aside(
    selection: Selection, replacements: Replacements, *, scope: str, device: str | None, keep_seeds: bool
) -> Aside:
    """Make the copy. Raises GraphError where that cannot be done."""
    operations = selection.operations
    with tf.Graph().as_default() as rehearsal:
        kept = as_kept({name: operation.node_def for name, operation in selection.kept.items()})
        with tf.device(device):
            made = replacements.make(scope, operations, stand_ins=True)
    graph_def = _nodes_of_copy(
        operations.values(),
        scope=scope,
        device=device,
        values=made.values,
        kept=kept,
        library=library_of(selection.graph, operations.values()),
    )
    within = inside(selection.contexts)
    handles = {name.removesuffix(":0"): tensor.op.node_def for name, tensor in made.tensors.items()}
    handles |= {name: operation.node_def for name, operation in kept.items()}
    make_own(graph_def, scope, handles=handles, whole=within, device=device, keep_seeds=keep_seeds)
    gradients = rename(graph_def.node, operations.keys() - within)
    aside = Aside(selection, replacements, scope, graph_def, gradients, device, keep_seeds)
    try:
        with rehearsal.as_default():
            aside.add(rehearsal, made, kept)
    except (ValueError, TypeError, KeyError, tf.errors.OpError) as error:
        raise GraphError(f"{replacements.misfits(made) or 'the copy cannot be built'}: {error}") from error
    return aside


def _nodes_of_copy(
    operations: Iterable[tf.Operation],
    *,
    scope: str,
    device: str | None,
    values: Mapping[str, tf.Tensor],
    kept: Mapping[str, tf.Operation],
    library: Iterable[Any],
) -> Any:
    """A GraphDef of these operations to import under `scope`; other tensors that they read are to be mapped.

    `values` are the variables, by operation, that a value takes the place of, whatever they are used for; `kept` the
    operations that are read where they are.
    """
    graph_def = tf.compat.v1.GraphDef()
    graph_def.node.extend(operation.node_def for operation in operations)
    graph_def.library.function.extend(library)
    if values:
        graph_def = _lifted(graph_def, values)
    names = frozenset(node.name for node in graph_def.node)
    for node in graph_def.node:  # what is replaced or kept has no effects to wait for
        node.input[:] = [tensor for tensor in node.input if not tensor.startswith("^") or tensor[1:] in names]
        attribute = _NAMES.get(node.op)
        if attribute and node.attr[attribute].s:
            node.attr[attribute].s = f"{scope}/".encode() + node.attr[attribute].s
        if "_class" in node.attr:
            beside = [place.removeprefix(_COLOCATED).decode() for place in node.attr["_class"].list.s]
            for name in beside:
                if device is None and name in kept:  # an import knows no other place to be at
                    node.device = kept[name].device
            node.attr["_class"].list.s[:] = [_COLOCATED + name.encode() for name in beside if name in names]
            if not node.attr["_class"].list.s:
                del node.attr["_class"]
    return graph_def


def _lifted(graph_def: Any, values: Mapping[str, tf.Tensor]) -> Any:
    """Lift these variables, and leave their nodes out."""
    lifted = lift(graph_def, {name: tf.TensorSpec(value.shape, value.dtype) for name, value in values.items()})
    places = {node.name: node for node in graph_def.node}
    nodes = [node for node in lifted.node if node.name not in values]
    for node in nodes:  # lifting forgets where nodes run
        if node.name in places:
            node.device = places[node.name].device
            if "_class" in places[node.name].attr:
                node.attr["_class"].CopyFrom(places[node.name].attr["_class"])
    return tf.compat.v1.GraphDef(node=nodes, library=lifted.library)


def free_scope(graph: tf.Graph, scope: str) -> str:
    """This scope, or one with a number behind it, that is still empty."""
    used = [f"{operation.name.lower()}/" for operation in graph.get_operations()]
    free, number = scope, 0
    with graph.as_default(), tf.compat.v1.name_scope(None):
        while graph.unique_name(free, mark_as_used=False) != free or any(
            name.startswith(f"{free.lower()}/") for name in used
        ):
            number += 1
            free = f"{scope}_{number}"
    return free
