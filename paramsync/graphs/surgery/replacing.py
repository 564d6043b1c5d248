"""Replacements in a copy: placeholders for its inputs, the caller's tensors, arrays and variables."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any

import numpy as np
import tensorflow as tf

from paramsync.errors import GraphError
from paramsync.graphdef.reading import reach
from paramsync.graphs.surgery.arguments import element, plain
from paramsync.graphs.surgery.functions import library_of
from paramsync.graphs.surgery.variables import is_handle, is_variable, value_of
from paramsync.host.files import shown

_INPUT = object()


@dataclass(frozen=True, slots=True)
class MadeReplacements:
    """What takes the place of tensors of the source in one graph: by the names of the tensors, and, again, those that
    are values for variables by the names of the variables' operations."""

    tensors: dict[str, tf.Tensor]
    values: dict[str, tf.Tensor]


class Replacements:
    """By the name of a tensor of the source. A variable that another variable does not simply take the place of needs a
    value: all that it is used for has to be computed from that then."""

    def __init__(self, source: tf.Graph, target: tf.Graph, inputs: Iterable[Any], replace: Mapping[Any, Any]) -> None:
        """Raises GraphError where something is unknown or does not fit. Adds nothing to a graph."""
        self.inputs = [_meant(source, tensor, "inputs") for tensor in inputs]
        self._replaced: dict[str, tuple[tf.Tensor, Any]] = {tensor.name: (tensor, _INPUT) for tensor in self.inputs}
        for key, value in replace.items():
            tensor = _meant(source, key, "replace")
            if tensor.name in self._replaced:
                also = "is among the inputs too" if self._replaced[tensor.name][1] is _INPUT else "has two replacements"
                raise GraphError(f"replace: {tensor.name!r} {also}: say which is meant")
            self._replaced[tensor.name] = tensor, _checked(tensor, value, target)

    @property
    def given(self) -> set[str]:
        """The tensors at which the copy begins."""
        return {name for name, replaced in self._replaced.items() if not _needs_value(*replaced)}

    @property
    def valued(self) -> set[str]:
        """The variables, by operation, that a value takes the place of."""
        return {tensor.op.name for tensor, value in self._replaced.values() if _needs_value(tensor, value)}

    def mean_variables(self, unread: Iterable[str]) -> bool:
        """Take each of these tensors that only reads a variable for the variable; whether there were any."""
        any_meant = False
        for name in unread:
            tensor, value = self._replaced.get(name, (None, None))
            variable = None if tensor is None else _read_variable(tensor)
            if variable is not None and variable.name not in self._replaced:
                del self._replaced[name]
                self._replaced[variable.name] = variable, value
                self.inputs = [variable if taken is tensor else taken for taken in self.inputs]
                any_meant = True
        return any_meant

    def make(self, scope: str, taken: Iterable[str], *, stand_ins: bool = False) -> MadeReplacements:
        """Make the placeholders and constants under `scope` in the default graph.

        That is the target, or, with `stand_ins` for the target's tensors, a graph that is nobody's.
        """
        taken = {name.lower() for name in taken}
        made = MadeReplacements({}, {})
        # what has others under it first
        for name, (tensor, value) in sorted(self._replaced.items(), key=lambda item: item[0]):
            if isinstance(value, (tf.Tensor, tf.Variable)):
                handle = _variable_for(tensor, value)
                replacement = value if handle is None else handle
                label = _free("stands_for", taken)
                made.tensors[name] = stand_in(replacement, f"{scope}/{label}") if stand_ins else value_of(replacement)
            elif value is _INPUT:
                label = _free(tensor.op.name, taken)
                made.tensors[name] = tf.compat.v1.placeholder(*_value_of(tensor), name=f"{scope}/{label}")
            else:
                label = _free("given", taken)
                made.tensors[name] = tf.constant(value, _value_of(tensor)[0], name=f"{scope}/{label}")
            if _needs_value(tensor, value):
                made.values[tensor.op.name] = made.tensors[name]
        return made

    def misfits(self, made: MadeReplacements) -> str:
        """The message for a copy that cannot be built: which replacements have another shape."""
        return "; ".join(
            _misfit(self._replaced[name][0], tensor)
            for name, tensor in made.tensors.items()
            if tensor.dtype != tf.resource
            and not tensor.shape.is_compatible_with(_value_of(self._replaced[name][0])[1])
        )

    def refine(self, made: MadeReplacements) -> bool:
        """Whether all that was known of the replaced tensors' shapes holds for the replacements."""
        return all(
            _refines(tensor.shape, _value_of(self._replaced[name][0])[1])
            for name, tensor in made.tensors.items()
            if tensor.dtype != tf.resource
        )


def _needs_value(tensor: tf.Tensor, value: Any) -> bool:
    return is_variable(tensor.op) and _variable_for(tensor, value) is None


def stand_in(value: tf.Tensor | tf.Variable, name: str) -> tf.Tensor:
    """A tensor in the default graph with the dtype, shape and known value of one of another graph."""
    if isinstance(value, tf.Tensor) and is_variable(value.op):
        free = tf.compat.v1.get_default_graph().unique_name(name)
        return as_kept({free: value.op.node_def})[free].outputs[0]
    if isinstance(value, tf.Tensor) and value.dtype.is_integer:  # a shape, say, on which the shapes of others depend
        return _with_ancestors(value, name)
    return tf.compat.v1.placeholder(value.dtype.base_dtype, value.shape, name=name)


def _with_ancestors(tensor: tf.Tensor, name: str) -> tf.Tensor:
    """Copy a tensor, with all that leads to it, to the default graph."""

    def before(operation: tf.Operation) -> list[tf.Operation]:
        return [*(read.op for read in operation.inputs), *operation.control_inputs]

    ancestors = reach([tensor.op], before)
    graph_def = tf.compat.v1.GraphDef()
    graph_def.node.extend(operation.node_def for operation in ancestors)
    graph_def.library.function.extend(library_of(tensor.graph, ancestors))
    for node in graph_def.node:
        node.attr.pop("_class", None)
    (made,) = tf.graph_util.import_graph_def(graph_def, return_elements=[tensor.name], name=name)
    return made


def as_kept(nodes: Mapping[str, Any]) -> dict[str, tf.Operation]:
    """Copy nodes, without their inputs, to the default graph, under these names.

    All at once: a graph that has `w/avg` gives no operation the name `w` that comes later.
    """
    graph_def = tf.compat.v1.GraphDef()
    for name, node in nodes.items():
        copy = graph_def.node.add()
        copy.CopyFrom(node)
        copy.name = name
        del copy.input[:]
        copy.attr.pop("_class", None)
    tf.graph_util.import_graph_def(graph_def, name="")
    graph = tf.compat.v1.get_default_graph()
    return {name: graph.get_operation_by_name(name) for name in nodes}


def _free(label: str, taken: set[str]) -> str:
    """Take this label, or one like it that is free, and not below the name of a node: an import would rename that."""
    if any(parent.as_posix().lower() in taken for parent in PurePosixPath(label).parents):
        label = label.replace("/", "_")
    while label.lower() in taken:
        label += "_input"
    taken.add(label.lower())
    return label


def _meant(source: tf.Graph, wanted: Any, what: str) -> tf.Tensor:
    meant = element(source, wanted, what)
    if isinstance(meant, tf.Operation):
        raise GraphError(f"{what}: {meant.name!r} is an operation: only tensors and variables can be replaced")
    return meant.op.outputs[0] if isinstance(meant, tf.Variable) else meant


def _value_of(tensor: tf.Tensor) -> tuple[tf.DType, tf.TensorShape]:
    """The dtype and shape of a tensor; of a variable's handle those of its value."""
    if is_handle(tensor.op):
        return tf.as_dtype(tensor.op.get_attr("dtype")), tf.TensorShape(tensor.op.get_attr("shape"))
    return tensor.dtype.base_dtype, tensor.shape


def _variable_for(tensor: tf.Tensor, value: Any) -> tf.Tensor | None:
    """What stands for the variable `value` in place of a variable of the same kind and shape."""
    if not isinstance(value, tf.Variable) or not is_variable(tensor.op) or not is_variable(value.op):
        return None
    same = is_handle(tensor.op) == is_handle(value.op) and _value_of(tensor)[1].is_compatible_with(value.shape)
    return value.op.outputs[0] if same else None


def _read_variable(tensor: tf.Tensor) -> tf.Tensor | None:
    """The variable whose value a tensor is, if it is one's."""
    operation = tensor.op
    while operation.type in ("Identity", "ReadVariableOp"):
        operation = operation.inputs[0].op
    return operation.outputs[0] if is_variable(operation) else None


def _checked(tensor: tf.Tensor, value: Any, target: tf.Graph) -> Any:
    """What is to take the place of a tensor. Raises GraphError where that cannot be."""
    if value is None:
        raise GraphError(f"replace: expected a tensor, an array or a variable for {tensor.name!r}, found None")
    value = plain(value)
    if tf.is_tensor(value) and hasattr(value, "numpy") and not isinstance(value, tf.Variable):
        if value.dtype == tf.resource:
            raise GraphError(f"replace: {shown(value)} for {tensor.name!r} is the handle of a variable of no graph")
        value = value.numpy()
    if not isinstance(value, (tf.Tensor, tf.Variable)):
        return _array(tensor, value)
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


def _array(tensor: tf.Tensor, value: Any) -> Any:
    """A value as an array of the tensor's dtype, made without a node. Raises GraphError for what is none by itself."""
    dtype, _ = _value_of(tensor)
    try:
        own = np.asarray(value).dtype
        is_rounded = own.kind in "fc" and (dtype.is_integer or dtype.is_bool)
        array = None if is_rounded else tf.make_ndarray(tf.make_tensor_proto(value, dtype))
    except (TypeError, ValueError, AttributeError, RuntimeError, tf.errors.OpError) as error:
        raise GraphError(
            f"replace: the replacement for {tensor.name!r} is no {dtype.name} tensor, array or variable:"
            f" {shown(value)}; of several tensors make one (tf.stack, tf.concat, tf.convert_to_tensor)"
        ) from error
    if array is None:
        raise GraphError(
            f"replace: the replacement for {tensor.name!r} would be rounded: expected {dtype.name}, found {own.name}"
        )
    _check_fit(tensor, tf.TensorSpec(array.shape, dtype))
    return array


def _check_fit(tensor: tf.Tensor, value: tf.Tensor | tf.Variable | tf.TensorSpec) -> None:
    """Raise GraphError where `value` cannot replace it: another dtype, another rank."""
    dtype, shape = _value_of(tensor)
    known = tf.TensorShape([None] * shape.rank if shape.rank is not None else None)
    if value.dtype.base_dtype != dtype or not known.is_compatible_with(value.shape):
        raise GraphError(_misfit(tensor, value))


def _misfit(tensor: tf.Tensor, value: tf.Tensor | tf.Variable | tf.TensorSpec) -> str:
    dtype, shape = _value_of(tensor)
    return (
        f"replace: the replacement for {tensor.name!r} does not fit: expected {dtype.name} {shape},"
        f" found {value.dtype.base_dtype.name} {value.shape}"
    )


def _refines(shape: tf.TensorShape, known: tf.TensorShape) -> bool:
    if known.rank is None:
        return True
    return shape.rank == known.rank and all(size is None or own == size for own, size in zip(shape, known, strict=True))
