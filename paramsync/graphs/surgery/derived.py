"""Adds a copy to its target. Copies user-written gradients (tf.custom_gradient) when the copy is differentiated.

The gradient of the original is first built in the source, with placeholders for the incoming gradients. Then it is
copied to the target, where it reads the copy's tensors in place of the original's.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import tensorflow as tf

from paramsync.errors import GraphError
from paramsync.graphdef.reading import node_of
from paramsync.graphs.surgery.aside import Aside, Names, make_aside
from paramsync.graphs.surgery.contexts import inside
from paramsync.graphs.surgery.functions import has_seed, library_of, refuse_gradient
from paramsync.graphs.surgery.replacing import Replacements
from paramsync.graphs.surgery.selection import Selection
from paramsync.graphs.surgery.variables import is_variable, known


@dataclass(frozen=True)
class _Brought:
    """A copy that was added to its target."""

    aside: Aside
    target: tf.Graph
    names: Names
    variables: Mapping[str, tf.Variable]

    @cached_property
    def read(self) -> frozenset[str]:
        """The tensors of the source that have a counterpart in the copy, except tensors in loops and branches."""
        source = self.names.source
        copied = self.names.copied - inside(self.aside.selection.contexts)
        tensors = {output.name for name in copied for output in source.get_operation_by_name(name).outputs}
        valued = {f"{name}:0" for name in self.aside.replacements.valued}
        return frozenset(tensors | self.names.replaced.keys()) - valued

    def counterpart(self, name: str) -> Any:
        """Return the copy's tensor for a tensor of the source, or the copy's variable for a handle or reference."""
        operation = node_of(name)
        if operation in self.variables:
            return self.variables[operation]
        tensor = self.target.get_tensor_by_name(self.names(name))
        return known(self.target)[tensor.op.name] if is_variable(tensor.op) else tensor

    def more(self, ends: list[tf.Tensor], given: Mapping[str, tf.Tensor], scope: str) -> list[tf.Tensor]:
        """Copy more tensors of the source. The copies read the existing copy, and the tensors in `given`, by name."""
        source = self.names.source
        valued = self.aside.replacements.valued
        available = self.read | given.keys()
        selection = Selection(
            source,
            available,
            values=valued,
            own_variables=self.aside.selection.own,
            same_graph=self.target is source,
        )
        missing = [tensor for tensor in ends if tensor.name not in available]
        selection.walk(missing)
        self._check(selection)
        read = {tensor.name for operation in selection.operations.values() for tensor in operation.inputs}
        read = (read | {tensor.name for tensor in ends}) & available
        read |= {f"{name}:0" for name in valued & selection.operations.keys()}
        replace = {name: given[name] if name in given else self.counterpart(name) for name in read}
        with source.as_default():
            replacements = Replacements(source, self.target, (), replace)
        aside = make_aside(selection, replacements, scope=scope, device=self.aside.device, keep_seeds=True)
        names = bring(aside, self.target)[0]
        return [self.target.get_tensor_by_name(names(tensor.name)) for tensor in ends]

    def _check(self, selection: Selection) -> None:
        for name, operation in selection.operations.items():
            if is_variable(operation) and name not in self.aside.replacements.valued:
                raise GraphError(f"it reads variable {name!r}, which is no part of the copy: share it, or replace it")
        operations = selection.operations.values()
        functions = library_of(selection.graph, operations)
        nodes = [
            *(operation.node_def for operation in operations),
            *(node for body in functions for node in body.node_def),
        ]
        if not self.aside.keep_seeds and any(map(has_seed, nodes)):
            raise GraphError("it draws random numbers again, by the seeds of the original: copy with keep_seeds=True")


def bring(aside: Aside, target: tf.Graph) -> tuple[Names, dict[str, tf.Variable]]:
    """Add a copy to its target, and register the user-written gradients of its nodes.

    Returns the names of the copied nodes, and the copy's variables by the names of the originals.
    """
    with target.as_default(), tf.compat.v1.name_scope(None), target.control_dependencies(None), target.device(None):
        target.unique_name(aside.scope)
        with tf.device(aside.device):
            made = aside.replacements.make(aside.scope, aside.selection.operations)
        names, variables = aside.add(target, made, aside.selection.kept)
    brought = _Brought(aside, target, names, variables)
    for operation, gradient in aside.gradients.items():
        _register(gradient, aside.selection.operations[operation], brought)
    return names, variables


def _register(name: str, original: tf.Operation, brought: _Brought) -> None:
    copy = f"{brought.names.scope}/{original.name}"

    @tf.RegisterGradient(name)
    def gradient(operation: tf.Operation, *incoming: Any) -> Any:
        if operation.graph is not brought.target or operation.name != copy:
            return refuse_gradient(operation)  # the node was imported again, under another name or in another graph
        try:
            return _of_original(original, incoming, brought)
        except (GraphError, LookupError) as error:  # LookupError: the source itself was imported, without gradients
            raise GraphError(
                f"the gradient of {copy!r}, which somebody wrote (tf.custom_gradient), cannot be copied: {error}"
            ) from error


def _of_original(original: tf.Operation, incoming: tuple[Any, ...], brought: _Brought) -> list[Any]:
    source = original.graph
    if source.finalized:
        raise GraphError("the graph of the original is finalised, and its gradient is made there")
    ends = [
        (end, tf.convert_to_tensor(value))
        for end, value in zip(original.outputs, incoming, strict=True)
        if value is not None
    ]
    inputs = list({value.name: value for value in original.inputs}.values())
    with source.as_default(), tf.compat.v1.name_scope(None), source.control_dependencies(None), source.device(None):
        with tf.compat.v1.name_scope(f"gradient_of_{original.name.replace('/', '_')}"):
            slots = [tf.compat.v1.placeholder(value.dtype, end.shape) for end, value in ends]
        derivatives = tf.gradients([end for end, _ in ends], inputs, slots, stop_gradients=inputs)
    gradients = {
        value.name: gradient for value, gradient in zip(inputs, derivatives, strict=True) if gradient is not None
    }
    parts = tf.nest.flatten(gradients, expand_composites=True)
    values = {slot.name: value for slot, (_, value) in zip(slots, ends, strict=True)}
    with brought.target.as_default(), tf.compat.v1.name_scope(None):
        scope = brought.target.unique_name(f"{brought.names.scope}/copied_gradient", mark_as_used=False)
    copied = brought.more(parts, values, scope)
    whole = tf.nest.pack_sequence_as(gradients, copied, expand_composites=True)
    # `pop` removes the gradient, because an input may appear twice
    return [whole.pop(value.name, None) for value in original.inputs]
