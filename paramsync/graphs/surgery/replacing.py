"""What takes the place of what in a copy: placeholders for its inputs, the caller's tensors and variables."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from paramsync.errors import GraphError
from paramsync.graphs.surgery.library import library_of
from paramsync.graphs.surgery.naming import element
from paramsync.graphs.surgery.variables import is_handle, is_variable, value_of
from paramsync.host.files import shown

_INPUT = object()


class Replacements:
    """By the name of a tensor of the source. A variable that another variable does not simply take the place of is
    among `values`, by its operation: all that it is used for has to be computed from a value then.

    The copy is made aside first. There, `tensors` and `values` are stand-ins and what was made there; `brought` gives
    those of the target.
    """

    def __init__(self, source: tf.Graph, target: tf.Graph, inputs: Iterable[Any], replace: Mapping[Any, Any]) -> None:
        """Raises GraphError where something is unknown or does not fit. Adds nothing to a graph."""
        self._target = target
        self.inputs = [_meant(source, one, "inputs") for one in inputs]
        self._wanted: dict[str, Any] = {one.name: _INPUT for one in self.inputs}
        self._replaced = {one.name: one for one in self.inputs}
        for key, value in replace.items():
            tensor = _meant(source, key, "replace")
            if tensor.name in self._wanted:
                also = "is among the inputs too" if self._wanted[tensor.name] is _INPUT else "has two replacements"
                raise GraphError(f"replace: {tensor.name!r} {also}: say which is meant")
            self._wanted[tensor.name] = _checked(tensor, value, target)
            self._replaced[tensor.name] = tensor
        self.tensors: dict[str, tf.Tensor] = {}
        self.values: dict[str, tf.Tensor] = {}
        self.made: list[tf.Operation] = []
        self._standing: dict[str, Any] = {}

    @property
    def given(self) -> set[str]:
        """The tensors at which the copy begins."""
        return {name for name, tensor in self._replaced.items() if not self._needs_value(tensor)}

    @property
    def valued(self) -> set[str]:
        """The variables, by operation, that a value takes the place of."""
        return {tensor.op.name for tensor in self._replaced.values() if self._needs_value(tensor)}

    def mean_variables(self, unread: Iterable[str]) -> bool:
        """Take each of these tensors that only reads a variable for the variable; whether there were any."""
        found = False
        for name in unread:
            tensor = self._replaced.get(name)
            variable = None if tensor is None else _read_variable(tensor)
            if variable is not None and variable.name not in self._replaced:
                self._replaced.pop(name)
                self._replaced[variable.name] = variable
                self._wanted[variable.name] = self._wanted.pop(name)
                self.inputs = [variable if one is tensor else one for one in self.inputs]
                found = True
        return found

    def make(self, scope: str, taken: Iterable[str]) -> None:
        """Make the placeholders, constants and stand-ins, under `scope`, in the default graph, which is nobody's."""
        given = tf.compat.v1.get_default_graph()
        taken = {one.lower() for one in taken}
        for name, value in sorted(self._wanted.items(), key=lambda one: one[0]):  # what has others under it first
            tensor = self._replaced[name]
            if isinstance(value, (tf.Tensor, tf.Variable)):
                variable = _variable_for(tensor, value)
                made = stand_in(value if variable is None else variable, f"{scope}/{_free('stands_for', taken)}")
                self._standing[made.name] = value if variable is None else variable
            elif value is _INPUT:
                label = _free(tensor.op.name, taken)
                made = tf.compat.v1.placeholder(*_value_of(tensor), name=f"{scope}/{label}")
                self.made.append(made.op)
            else:
                before = len(given.get_operations())
                made = _converted(tensor, value, f"{scope}/{_free('given', taken)}")
                self.made += given.get_operations()[before:]
            if self._needs_value(tensor):
                self.values[tensor.op.name] = made
            else:
                self.tensors[name] = made

    def brought(self) -> dict[str, tf.Tensor]:
        """By the names of stand-ins, what they stand for."""
        return {name: value_of(one) for name, one in self._standing.items()}

    def misfits(self) -> str:
        """What is said of replacements of another shape, where the copy cannot be built: that they do not fit."""
        found = [
            _misfit(self._replaced[name], made)
            for name, made in self.tensors.items()
            if made.dtype != tf.resource and not made.shape.is_compatible_with(_value_of(self._replaced[name])[1])
        ]
        return "; ".join(found)

    def refine(self) -> bool:
        """Whether whatever held for the shapes of the tensors replaced holds for those in their place."""
        return all(
            _refines(made.shape, _value_of(self._replaced[name])[1])
            for name, made in [*self.tensors.items(), *((f"{name}:0", made) for name, made in self.values.items())]
            if made.dtype != tf.resource
        )

    def _needs_value(self, tensor: tf.Tensor) -> bool:
        return is_variable(tensor.op) and _variable_for(tensor, self._wanted[tensor.name]) is None


def stand_in(value: tf.Tensor | tf.Variable, name: str) -> tf.Tensor:
    """What in the default graph has the dtype, the shape and what else is known of a tensor of another graph."""
    if isinstance(value, tf.Tensor) and is_variable(value.op):
        node = tf.compat.v1.NodeDef()
        node.CopyFrom(value.op.node_def)
        return as_kept(node, tf.compat.v1.get_default_graph().unique_name(name)).outputs[0]
    if isinstance(value, tf.Tensor) and value.dtype.is_integer:  # a shape, say, on which the shapes of others depend
        return _with_ancestors(value, name)
    return tf.compat.v1.placeholder(value.dtype.base_dtype, value.shape, name=name)


def _with_ancestors(tensor: tf.Tensor, name: str) -> tf.Tensor:
    """A tensor with all that leads to it, once more in the default graph."""
    found: dict[str, tf.Operation] = {}
    waiting = [tensor.op]
    while waiting:
        operation = waiting.pop()
        if operation.name not in found:
            found[operation.name] = operation
            waiting += [*(one.op for one in operation.inputs), *operation.control_inputs]
    graph_def = tf.compat.v1.GraphDef()
    graph_def.node.extend(one.node_def for one in found.values())
    graph_def.library.function.extend(library_of(tensor.graph, found.values()))
    for node in graph_def.node:
        node.attr.pop("_class", None)
    (made,) = tf.graph_util.import_graph_def(graph_def, return_elements=[tensor.name], name=name)
    return made


def as_kept(node: Any, name: str) -> tf.Operation:
    """The operation of a node that reads nothing, once more in the default graph."""
    graph_def = tf.compat.v1.GraphDef()
    graph_def.node.add().CopyFrom(node)
    graph_def.node[0].name = name
    del graph_def.node[0].input[:]
    graph_def.node[0].attr.pop("_class", None)
    tf.graph_util.import_graph_def(graph_def, name="")
    return tf.compat.v1.get_default_graph().get_operation_by_name(name)


def _free(label: str, taken: set[str]) -> str:
    """The label, or one like it that is not taken; it is from now on."""
    while label.lower() in taken:
        label += "_input"
    taken.add(label.lower())
    return label


def _converted(tensor: tf.Tensor, value: Any, name: str) -> tf.Tensor:
    dtype = _value_of(tensor)[0]
    try:
        made = tf.convert_to_tensor(value, dtype=dtype, name=name)
    except (TypeError, ValueError, AttributeError, RuntimeError, tf.errors.OpError) as error:
        raise GraphError(
            f"replace: the replacement for {tensor.name!r} is no {dtype.name} tensor, array or variable: {shown(value)}"
        ) from error
    _check_fit(tensor, made)
    return made


def _meant(source: tf.Graph, one: Any, what: str) -> tf.Tensor:
    found = element(source, one, what)
    if isinstance(found, tf.Operation):
        raise GraphError(f"{what}: {found.name!r} is an operation: only tensors and variables can be replaced")
    return found.op.outputs[0] if isinstance(found, tf.Variable) else found


def _value_of(tensor: tf.Tensor) -> tuple[tf.DType, tf.TensorShape]:
    """What a tensor is, a variable's value for its handle or reference."""
    if is_handle(tensor.op):
        return tf.as_dtype(tensor.op.get_attr("dtype")), tf.TensorShape(tensor.op.get_attr("shape"))
    return tensor.dtype.base_dtype, tensor.shape


def _variable_for(tensor: tf.Tensor, value: Any) -> tf.Tensor | None:
    """What stands for the variable `value` in place of a variable of the same kind."""
    if not isinstance(value, tf.Variable) or not is_variable(tensor.op) or not is_variable(value.op):
        return None
    return value.op.outputs[0] if is_handle(tensor.op) == is_handle(value.op) else None


def _read_variable(tensor: tf.Tensor) -> tf.Tensor | None:
    """The variable that a tensor is but the value of."""
    operation = tensor.op
    while operation.type in ("Identity", "ReadVariableOp"):
        operation = operation.inputs[0].op
    return operation.outputs[0] if is_variable(operation) else None


def _checked(tensor: tf.Tensor, value: Any, target: tf.Graph) -> Any:
    """What is to take the place of a tensor. Raises GraphError where that cannot be."""
    if value is None:
        raise GraphError(f"replace: expected a tensor, an array or a variable for {tensor.name!r}, found None")
    value = value.deref() if hasattr(value, "deref") else value
    if tf.is_tensor(value) and hasattr(value, "numpy") and not isinstance(value, tf.Variable):
        return value.numpy()
    if not isinstance(value, (tf.Tensor, tf.Variable)):
        _check_plain(tensor, value)
        return value
    graph = getattr(value, "graph", None)
    if graph is None and isinstance(value, tf.Variable):
        raise GraphError(
            f"replace: {value.name!r} for {tensor.name!r} is a variable of no graph: give one of the graph, or its"
            " value (variable.numpy())"
        )
    if graph is not None and graph is not target:
        raise GraphError(
            f"replace: the replacement for {tensor.name!r}, {value.name!r}, is not of the graph the copy goes to"
        )
    if graph is None:
        raise GraphError(f"replace: {shown(value)} for {tensor.name!r} is of no graph")
    _check_fit(tensor, value)
    return value


def _check_plain(tensor: tf.Tensor, value: Any) -> None:
    """Raise GraphError for what is no value by itself: TensorFlow would add nodes to a graph to make it one."""
    dtype = _value_of(tensor)[0]
    for one in [value] if hasattr(value, "__array__") else tf.nest.flatten(value):
        array = _array(one)
        if array is None:
            raise GraphError(
                f"replace: the replacement for {tensor.name!r} is no {dtype.name} tensor, array or variable:"
                f" {shown(value)}; of several tensors make one (tf.stack, tf.concat, tf.convert_to_tensor)"
            )
        if array.dtype.kind in "fc" and (dtype.is_integer or dtype.is_bool):
            raise GraphError(
                f"replace: the replacement for {tensor.name!r} would be rounded: expected {dtype.name},"
                f" found {array.dtype.name}"
            )


def _array(value: Any) -> Any:
    """A value as an array; None for what is none, as a tensor of a graph."""
    if not isinstance(value, str | bytes | int | float | complex) and not hasattr(value, "__array__"):
        return None
    try:
        return np.asarray(value)
    except (TypeError, ValueError, NotImplementedError):
        return None


def _check_fit(tensor: tf.Tensor, value: tf.Tensor | tf.Variable) -> None:
    """Raise GraphError where `value` cannot replace it: another dtype, another rank, for a variable another shape."""
    dtype, shape = _value_of(tensor)
    known = shape if is_variable(tensor.op) else tf.TensorShape([None] * shape.rank if shape.rank is not None else None)
    if value.dtype.base_dtype != dtype or not known.is_compatible_with(value.shape):
        raise GraphError(_misfit(tensor, value))


def _misfit(tensor: tf.Tensor, value: tf.Tensor | tf.Variable) -> str:
    dtype, shape = _value_of(tensor)
    return (
        f"replace: the replacement for {tensor.name!r} does not fit: expected {dtype.name} {shape},"
        f" found {value.dtype.base_dtype.name} {value.shape}"
    )


def _refines(found: tf.TensorShape, known: tf.TensorShape) -> bool:
    if known.rank is None:
        return True
    return found.rank == known.rank and all(
        theirs is None or mine == theirs for mine, theirs in zip(found, known, strict=True)
    )
