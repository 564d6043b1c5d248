"""What takes the place of what in a copy: placeholders for its inputs, the caller's tensors and variables."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import tensorflow as tf

from paramsync.errors import GraphError
from paramsync.graphs.surgery.naming import element
from paramsync.graphs.surgery.variables import is_handle, is_variable

_INPUT = object()


class Replacements:
    """By the name of a tensor of the source. A variable that another variable does not simply take the place of is
    among `values`, by its operation: all that it is used for has to be computed from a value then.
    """

    def __init__(self, source: tf.Graph, target: tf.Graph, inputs: Iterable[Any], replace: Mapping[Any, Any]) -> None:
        """Raises GraphError where something is unknown or does not fit. Adds nothing to a graph."""
        self._target = target
        self.inputs = [_meant(source, one) for one in inputs]
        self._wanted: dict[str, Any] = {one.name: _INPUT for one in self.inputs}
        self._replaced = {one.name: one for one in self.inputs}
        for key, value in replace.items():
            tensor = _meant(source, key)
            _check(tensor, value, target)
            self._wanted[tensor.name] = value
            self._replaced[tensor.name] = tensor
        self.tensors: dict[str, tf.Tensor] = {}
        self.values: dict[str, tf.Tensor] = {}

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
        """Make the placeholders and turn values into tensors, under `scope`, in the default graph."""
        taken = frozenset(taken)
        for name, value in sorted(self._wanted.items(), key=lambda one: one[1] is _INPUT):  # these cannot fail
            tensor = self._replaced[name]
            made = _variable_for(tensor, value)
            if made is None and value is _INPUT:
                label = tensor.op.name + ("_input" if tensor.op.name in taken else "")
                made = tf.compat.v1.placeholder(*_value_of(tensor), name=f"{scope}/{label}")
            elif made is None:
                made = self._converted(tensor, value, scope)
            if self._needs_value(tensor):
                self.values[tensor.op.name] = made
            else:
                self.tensors[name] = made

    def refine(self) -> bool:
        """Whether whatever held for the shapes of the tensors replaced holds for those in their place."""
        return all(
            _refines(made.shape, _value_of(self._replaced[name])[1])
            for name, made in [*self.tensors.items(), *((f"{name}:0", made) for name, made in self.values.items())]
            if made.dtype != tf.resource
        )

    def _needs_value(self, tensor: tf.Tensor) -> bool:
        return is_variable(tensor.op) and _variable_for(tensor, self._wanted[tensor.name]) is None

    def _converted(self, tensor: tf.Tensor, value: Any, scope: str) -> tf.Tensor:
        if isinstance(value, tf.Tensor) and getattr(value, "graph", None) is self._target:
            return value
        dtype = _value_of(tensor)[0]
        try:
            with tf.compat.v1.name_scope(f"{scope}/"):
                made = tf.convert_to_tensor(value, dtype=dtype, name="given")
        except (TypeError, ValueError) as error:
            raise GraphError(f"the replacement for {tensor.name!r} is no {dtype.name} tensor: {error}") from error
        _check(tensor, made, self._target)
        return made


def _meant(source: tf.Graph, one: Any) -> tf.Tensor:
    found = element(source, one)
    if isinstance(found, tf.Operation):
        raise GraphError(f"{found.name!r} is an operation: only tensors and variables can be replaced")
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


def check_fit(tensor: tf.Tensor, value: tf.Tensor | tf.Variable) -> None:
    """Raise GraphError where `value` is not of the dtype or shape of what it is to replace, but for a batch's size."""
    dtype, shape = _value_of(tensor)
    same_rows = is_variable(tensor.op)
    found = value.shape if same_rows else _without_rows(value.shape)
    if value.dtype.base_dtype != dtype or not (shape if same_rows else _without_rows(shape)).is_compatible_with(found):
        raise GraphError(
            f"the replacement for {tensor.name!r} does not fit: expected {dtype.name} {shape},"
            f" found {value.dtype.base_dtype.name} {value.shape}"
        )


def _check(tensor: tf.Tensor, value: Any, target: tf.Graph) -> None:
    if not isinstance(value, (tf.Tensor, tf.Variable)):
        return
    graph = getattr(value, "graph", None)
    if graph is not None and graph is not target:
        raise GraphError(f"the replacement for {tensor.name!r}, {value.name!r}, is not of the graph the copy goes to")
    check_fit(tensor, value)


def _without_rows(shape: tf.TensorShape) -> tf.TensorShape:
    """A batch may have another size than the one replaced."""
    return tf.TensorShape([None, *shape[1:]]) if shape.rank else shape


def _refines(found: tf.TensorShape, known: tf.TensorShape) -> bool:
    if known.rank is None:
        return True
    return found.rank == known.rank and all(
        theirs is None or mine == theirs for mine, theirs in zip(found, known, strict=True)
    )
