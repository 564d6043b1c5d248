"""Selects the operations to copy: walks from the outputs back to the inputs, then adds initialisers of variables."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from typing import Any

import tensorflow as tf

from paramsync.errors import GraphError
from paramsync.graphdef.reading import node_of, reach
from paramsync.graphs.nodes import PLACEHOLDERS
from paramsync.graphs.surgery.arguments import operation_of
from paramsync.graphs.surgery.contexts import contexts_of, exits, inside, needed
from paramsync.graphs.surgery.variables import Found, find, is_variable, known

_KEYS = tf.compat.v1.GraphKeys
_PIPELINES = ("IteratorGetNext", "OneShotIterator", "QueueDequeue", "Queue", "Reader")
_FILLED_LATER = ("MutableHashTable", "MutableDenseHashTable")
# No output depends on the members of these collections, but training a copy needs them.
_BESIDE = (_KEYS.REGULARIZATION_LOSSES, _KEYS.LOSSES, _KEYS.UPDATE_OPS)


class Selection:
    """Operations of one graph, found by walking back from the outputs as far as the tensors in `given`."""

    def __init__(
        self,
        graph: tf.Graph,
        given: Collection[str],
        *,
        values: Collection[str] = (),
        own_variables: bool = True,
        same_graph: bool = True,
    ) -> None:
        """`given` are names of tensors; `values` are the operations of variables that a value replaces.

        Without `own_variables`, variables are *kept*: the copy reads the originals. With `same_graph`, the copy goes
        into the source's graph, and lookup tables are kept, too.
        """
        self.graph = graph
        self.contexts = contexts_of(graph)
        self.operations: dict[str, tf.Operation] = {}
        self.kept: dict[str, tf.Operation] = {}
        self.variables: dict[str, Found] = {}
        self._given = frozenset(given)
        self._given_operations = frozenset(map(node_of, given))
        self._values = frozenset(values)
        self.own, self._same = own_variables, same_graph
        self._known = known(graph)

    def walk(self, outputs: Collection[Any], at_placeholder: Callable[[tf.Operation], Any] | None = None) -> None:
        """Select the operations that lead to the outputs.

        Calls `at_placeholder` for each placeholder. Raises GraphError for an input pipeline, for an output or given
        tensor within a loop or branch, and, without `at_placeholder`, for a placeholder.
        """
        within = inside(self.contexts)
        for name in [*self._given, *(output.name for output in outputs)]:
            if node_of(name) in within:
                raise GraphError(
                    f"{name!r} lies within a loop or branch, which is copied whole: name a tensor before or after it"
                )
        self._walk(
            [operation_of(output) for output in outputs if output.name not in self._given], at_placeholder or _refuse
        )

    def check_read(self, outputs: Collection[Any]) -> None:
        """Raise GraphError for a tensor in `given`, or a variable in `values`, on which no output depends."""
        read = {tensor.name for operation in self.operations.values() for tensor in operation.inputs}
        read |= {output.name for output in outputs}
        unread = sorted((self._given - read) | {f"{name}:0" for name in self._values - self.operations.keys()})
        if unread:
            ends = ", ".join(output.name for output in outputs)
            raise GraphError(f"no output depends on {', '.join(map(repr, unread))}; the outputs: {ends}")

    def add_initialisers(self) -> None:
        """Select the initialisers of copied variables and tables, and of all variables that the initialisers need."""
        done: set[str] = set(self._values)
        while left := [name for name in self.operations if name not in done]:
            done.update(left)
            for name in left:
                operation = self.operations[name]
                if is_variable(operation):
                    self.variables[name] = find(self._known, operation)
                    self._walk(self.variables[name].operations(self.graph), self._keep)
                elif _is_resource(operation):
                    initialisers = _initialisers(operation)
                    if not initialisers and operation.type.startswith(_FILLED_LATER):
                        raise GraphError(
                            f"{operation.type} {operation.name!r} is a lookup table that is filled while a program"
                            " runs: a copy in another graph would be empty; copy within its graph, which shares it, put"
                            " what fills it into the collection TABLE_INITIALIZERS, or replace what is looked up"
                        )
                    self._walk(initialisers, self._keep)

    def add_beside(self) -> None:
        """Select the losses and updates that belong to the copy; see `_fits`."""
        for key in _BESIDE:
            for member in self.graph.get_collection(key):
                operation = operation_of(member)
                if operation is not None and self._fits(operation, fresh=key == _KEYS.UPDATE_OPS):
                    self._walk([operation], _refuse)

    def dependent(self) -> set[str]:
        """Return the selected operations whose results depend on a given tensor or a replaced variable."""
        readers: dict[str, list[str]] = {}
        waiting = []
        for name, operation in self.operations.items():
            for tensor in operation.inputs:
                readers.setdefault(tensor.op.name, []).append(name)
                if tensor.name in self._given or tensor.op.name in self._values:
                    waiting.append(name)
        return set(reach(waiting, lambda name: readers.get(name, ())))

    def _walk(self, operations: Iterable[tf.Operation], at_placeholder: Callable[[tf.Operation], Any]) -> None:
        waiting = list(operations)
        while waiting:
            while waiting:
                operation = waiting.pop()
                if operation.name in self.operations or operation.name in self.kept:
                    continue
                if operation.type in PLACEHOLDERS:
                    at_placeholder(operation)
                elif self._is_kept(operation):
                    self.kept[operation.name] = operation
                else:
                    _refuse_pipeline(operation)
                    self.operations[operation.name] = operation
                    waiting += [*self._before(operation), *exits(operation)]
            tensors = (self.graph.get_tensor_by_name(name) for name in needed(self.contexts, self.operations))
            waiting = [
                tensor.op
                for tensor in tensors
                if tensor.name not in self._given and tensor.op.name not in self.operations.keys() | self.kept.keys()
            ]

    def _before(self, operation: tf.Operation) -> list[tf.Operation]:
        data = [tensor.op for tensor in operation.inputs if tensor.name not in self._given]
        return data + [waited for waited in operation.control_inputs if waited.name not in self._given_operations]

    def _is_kept(self, operation: tf.Operation) -> bool:
        if is_variable(operation):
            return not self.own and operation.name not in self._values
        return self._same and _is_resource(operation)

    def _keep(self, operation: tf.Operation) -> None:
        """Handle a placeholder that an initialiser needs: share it within one graph, copy it to another graph."""
        (self.kept if self._same else self.operations)[operation.name] = operation

    def _fits(self, operation: tf.Operation, *, fresh: bool) -> bool:
        """Return whether an operation belongs to the copy: it depends on a given tensor or a selected operation.

        Selected constants do not count. The operation must not need a placeholder, input pipeline or variable that is
        not selected. With `fresh`, it may need such a variable, but must depend on more than selected variables.
        """
        touches = False
        seen: set[str] = set()
        waiting = [operation]
        while waiting:
            operation = waiting.pop()
            if operation.name in self.operations or operation.name in self.kept:
                touches = touches or not (operation.type == "Const" or (fresh and is_variable(operation)))
            elif operation.name not in seen:
                seen.add(operation.name)
                if operation.type in PLACEHOLDERS or operation.type.startswith(_PIPELINES):
                    return False
                if is_variable(operation) and not fresh:
                    return False
                touches = touches or any(tensor.name in self._given for tensor in operation.inputs)
                waiting += self._before(operation)
        return touches


def required(graph: tf.Graph, outputs: Collection[Any], given: Collection[str]) -> tuple[list[Any], dict[str, Any]]:
    """Return the placeholders that the outputs need, and the variables that they need, by name.

    The walk stops at the tensors named in `given`. Raises GraphError as `walk` and `check_read` do.
    """
    selection = Selection(graph, given)
    placeholders: dict[str, tf.Operation] = {}
    selection.walk(outputs, at_placeholder=lambda operation: placeholders.setdefault(operation.name, operation))
    selection.check_read(outputs)
    variables = [operation for operation in selection.operations.values() if is_variable(operation)]
    variables_known = known(graph)
    with graph.as_default():
        return (
            [placeholders[name].outputs[0] for name in sorted(placeholders)],
            {operation.name: find(variables_known, operation).variable for operation in variables},
        )


def _refuse(operation: tf.Operation) -> None:
    raise GraphError(f"placeholder {operation.name!r} is needed for the outputs but not among the inputs")


def _refuse_pipeline(operation: tf.Operation) -> None:
    if operation.type.startswith(_PIPELINES):
        raise GraphError(
            f"{operation.type} {operation.name!r} feeds the outputs from an input pipeline, which is not copied:"
            " name the tensors it gives among the inputs, or replace them"
        )


def _is_resource(operation: tf.Operation) -> bool:
    """Return whether the operation keeps state other than a variable, such as a lookup table."""
    return bool(
        not operation.inputs
        and operation.outputs
        and operation.outputs[0].dtype.base_dtype in (tf.resource, tf.string)
        and operation.op_def.is_stateful
        and not is_variable(operation)
    )


def _initialisers(operation: tf.Operation) -> list[tf.Operation]:
    readers = {initialiser.name for tensor in operation.outputs for initialiser in tensor.consumers()}
    return [
        initialiser
        for initialiser in operation.graph.get_collection(_KEYS.TABLE_INITIALIZERS)
        if initialiser.name in readers
    ]
