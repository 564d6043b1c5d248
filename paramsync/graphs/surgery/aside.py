"""Makes the nodes of a copy of operations.

Imports them into an empty graph first, so that a failure leaves the target graph unchanged.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from paramsync.errors import GraphError
from paramsync.graphdef.reading import full, node_of
from paramsync.graphs.lifting.lift import lift
from paramsync.graphs.nodes import VARIABLES, prefix_frame
from paramsync.graphs.surgery.contexts import inside
from paramsync.graphs.surgery.functions import library_of, make_own, rename_gradients
from paramsync.graphs.surgery.replacing import Replacements, as_kept
from paramsync.graphs.surgery.selection import Selection

_COLOCATED = b"loc:@"


@dataclass(frozen=True, slots=True)
class Names:
    """Translates names of tensors and operations from the source to the target.

    Returns None for a node that is not copied, replaced or kept. A *kept* operation is shared: the copy reads it.
    """

    source: tf.Graph
    scope: str
    replaced: Mapping[str, str]
    copied: frozenset[str]
    kept: frozenset[str]

    def __call__(self, name: str) -> str | None:
        return self.replaced[name] if name in self.replaced else self.own(name)

    def own(self, name: str) -> str | None:
        """Translate a name as `__call__` does, but ignore replacements."""
        operation = node_of(name)
        if operation in self.copied:
            return f"{self.scope}/{name}"
        return name if operation in self.kept else None


@dataclass(frozen=True, slots=True)
class Aside:
    """The nodes of a copy, ready to be imported under `scope`, and the arguments that they were made from."""

    selection: Selection
    replacements: Replacements
    scope: str
    graph_def: Any
    gradients: Mapping[str, str]  # names of user-written gradients, by operation
    device: str | None
    keep_seeds: bool

    def add(
        self, graph: tf.Graph, made: Mapping[str, tf.Tensor], kept: Mapping[str, tf.Operation]
    ) -> tuple[Names, dict[str, tf.Variable]]:
        """Import the nodes into the default graph. They read the replacements (`made`) and the `kept` operations.

        A GraphDef lacks declared shapes, Variable objects, and the contexts of loops and branches. These are restored
        after the import.
        """
        tensors = {**made} | {tensor.name: tensor for operation in kept.values() for tensor in operation.outputs}
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
            replaced={name: tensor.name for name, tensor in made.items()},
            copied=frozenset(operations) - self.replacements.valued,
            kept=frozenset(kept),
        )
        if self.replacements.refine(made):
            for name in names.copied:
                for tensor in operations[name].outputs:
                    copy = graph.get_tensor_by_name(f"{self.scope}/{tensor.name}")
                    if copy.dtype == tensor.dtype:  # the dtypes differ if a value replaced a handle
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
    """Make the nodes of a copy, and rehearse the import. Raises GraphError if TensorFlow cannot build the copy."""
    operations = selection.operations
    with tf.Graph().as_default() as rehearsal:
        kept = as_kept({name: operation.node_def for name, operation in selection.kept.items()})
        with tf.device(device):
            made = replacements.make(scope, operations, stand_ins=True)
    values = {name: made[f"{name}:0"] for name in replacements.valued}
    graph_def = _nodes_of_copy(selection, values, kept, scope=scope, device=device)
    within = inside(selection.contexts)
    handles = {name.removesuffix(":0"): tensor.op.node_def for name, tensor in made.items()}
    handles |= {name: operation.node_def for name, operation in kept.items()}
    make_own(graph_def, scope, handles=handles, whole=within, device=device, keep_seeds=keep_seeds)
    gradients = rename_gradients(graph_def.node, operations.keys() - within)
    aside = Aside(selection, replacements, scope, graph_def, gradients, device, keep_seeds)
    try:
        with rehearsal.as_default():
            aside.add(rehearsal, made, kept)
    except (ValueError, TypeError, KeyError, tf.errors.OpError) as error:
        raise GraphError(f"{replacements.misfits(made) or 'the copy cannot be built'}: {error}") from error
    return aside


def _nodes_of_copy(
    selection: Selection,
    values: Mapping[str, tf.Tensor],
    kept: Mapping[str, tf.Operation],
    *,
    scope: str,
    device: str | None,
) -> Any:
    """Return a GraphDef of the selected operations, to be imported under `scope`.

    `values` maps the operation of a variable to the value that replaces the variable. Copied nodes may read the `kept`
    operations, which are not copied.
    """
    operations = selection.operations.values()
    graph_def = tf.compat.v1.GraphDef()
    graph_def.node.extend(operation.node_def for operation in operations)
    graph_def.library.function.extend(library_of(selection.graph, operations))
    if values:
        graph_def = _lifted(graph_def, values)
    names = frozenset(node.name for node in graph_def.node)
    for node in graph_def.node:  # control inputs from nodes that are not copied are left out
        node.input[:] = [tensor for tensor in node.input if not tensor.startswith("^") or tensor[1:] in names]
        prefix_frame(node, f"{scope}/")
        if node.op in VARIABLES and node.attr["shared_name"].s:  # variables with equal names would share their value
            node.attr["shared_name"].s = f"{scope}/".encode() + node.attr["shared_name"].s
        # TemporaryVariables with equal names would share their value, too
        if "var_name" in node.attr and node.attr["var_name"].s:
            node.attr["var_name"].s = f"{scope}/".encode() + node.attr["var_name"].s
        if "_class" in node.attr:
            beside = [place.removeprefix(_COLOCATED).decode() for place in node.attr["_class"].list.s]
            for name in beside:
                if device is None and name in kept:  # a node can be colocated only with nodes of the same import
                    node.device = kept[name].device
            node.attr["_class"].list.s[:] = [_COLOCATED + name.encode() for name in beside if name in names]
            if not node.attr["_class"].list.s:
                del node.attr["_class"]
    return graph_def


def _lifted(graph_def: Any, values: Mapping[str, tf.Tensor]) -> Any:
    """Replace every use of these variables by a use of their value, and remove the nodes of the variables."""
    lifted = lift(graph_def, {name: tf.TensorSpec(value.shape, value.dtype) for name, value in values.items()})
    places = {node.name: node for node in graph_def.node}
    nodes = [node for node in lifted.node if node.name not in values]
    for node in nodes:  # lifting removes devices and colocations
        if node.name in places:
            node.device = places[node.name].device
            if "_class" in places[node.name].attr:
                node.attr["_class"].CopyFrom(places[node.name].attr["_class"])
    return tf.compat.v1.GraphDef(node=nodes, library=lifted.library)


def free_scope(graph: tf.Graph, scope: str) -> str:
    """Return the name of an empty scope: `scope` itself, or `scope` and a number."""
    used = [f"{operation.name.lower()}/" for operation in graph.get_operations()]
    free, number = scope, 0
    with graph.as_default(), tf.compat.v1.name_scope(None):
        while graph.unique_name(free, mark_as_used=False) != free or any(
            name.startswith(f"{free.lower()}/") for name in used
        ):
            number += 1
            free = f"{scope}_{number}"
    return free
