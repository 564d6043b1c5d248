"""Replacements in a copy: placeholders for its inputs, and the caller's tensors, arrays and variables."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
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


class Replacements:
    """The replacements of one copy, by the name of a tensor of the source.

    A variable can be replaced by a variable of the same kind (resource or reference) and a compatible shape. Any other
    replacement of a variable is a *value*: every use of the variable becomes a use of the value.
    """

    def __init__(self, source: tf.Graph, target: tf.Graph, inputs: Iterable[Any], replace: Mapping[Any, Any]) -> None:
        """Raises GraphError for an unknown tensor, or a replacement that does not fit. Changes no graph."""
        self.inputs = [_meant(source, tensor, "inputs") for tensor in inputs]
        self._replaced: dict[str, tuple[tf.Tensor, Any]] = {tensor.name: (tensor, _INPUT) for tensor in self.inputs}
        for key, value in replace.items():
            tensor = _meant(source, key, "replace")
            if tensor.name in self._replaced:
                also = "is among the inputs too" if self._replaced[tensor.name][1] is _INPUT else "has two replacements"
                raise GraphError(f"replace: {tensor.name!r} {also}: say which is meant")
            self._replaced[tensor.name] = tensor, _normalise(tensor, value, target)

    @property
    def given(self) -> set[str]:
        """The names of replaced tensors, except variables that a value replaces. The copy begins at these tensors."""
        return {name for name, replaced in self._replaced.items() if not _needs_value(*replaced)}

    @property
    def valued(self) -> set[str]:
        """The names of operations of variables that a value replaces."""
        return {tensor.op.name for tensor, value in self._replaced.values() if _needs_value(tensor, value)}

    def make(self, scope: str, taken: Iterable[str], *, stand_ins: bool = False) -> dict[str, tf.Tensor]:
        """Make placeholders and constants under `scope` in the default graph. Names in `taken` are avoided.

        Returns all replacements by the names of the replaced tensors. With `stand_ins`, the default graph is only a
        rehearsal, so stand-ins take the place of tensors of the target.
        """
        taken = {name.lower() for name in taken}
        made: dict[str, tf.Tensor] = {}
        # Sorted by name, so that a placeholder comes before placeholders whose names begin with its name.
        for name, (tensor, value) in sorted(self._replaced.items(), key=lambda item: item[0]):
            if isinstance(value, (tf.Tensor, tf.Variable)):
                handle = _variable_for(tensor, value)
                replacement = value if handle is None else handle
                label = _free("stands_for", taken)
                made[name] = stand_in(replacement, f"{scope}/{label}") if stand_ins else value_of(replacement)
            elif value is _INPUT:
                label = _free(tensor.op.name, taken)
                made[name] = tf.compat.v1.placeholder(*_value_of(tensor), name=f"{scope}/{label}")
            else:
                label = _free("given", taken)
                made[name] = tf.constant(value, _value_of(tensor)[0], name=f"{scope}/{label}")
        return made

    def misfits(self, made: Mapping[str, tf.Tensor]) -> str:
        """Describe the replacements whose shapes do not fit the replaced tensors; "" if all fit."""
        return "; ".join(
            _misfit(replaced, tensor)
            for replaced, tensor in self._pairs(made)
            if not tensor.shape.is_compatible_with(_value_of(replaced)[1])
        )

    def refine(self, made: Mapping[str, tf.Tensor]) -> bool:
        """Return whether the shape of each replacement is at least as specific as the replaced tensor's shape."""
        return all(tensor.shape.is_subtype_of(_value_of(replaced)[1]) for replaced, tensor in self._pairs(made))

    def _pairs(self, made: Mapping[str, tf.Tensor]) -> list[tuple[tf.Tensor, tf.Tensor]]:
        """Return pairs of a replaced tensor and its replacement. Handles are left out."""
        return [(self._replaced[name][0], tensor) for name, tensor in made.items() if tensor.dtype != tf.resource]


def _needs_value(tensor: tf.Tensor, value: Any) -> bool:
    return is_variable(tensor.op) and _variable_for(tensor, value) is None


def stand_in(value: tf.Tensor | tf.Variable, name: str) -> tf.Tensor:
    """Make a tensor with the dtype, shape and known value of a tensor of another graph, in the default graph."""
    if isinstance(value, tf.Tensor) and is_variable(value.op):
        free = tf.compat.v1.get_default_graph().unique_name(name)
        return as_kept({free: value.op.node_def})[free].outputs[0]
    # An integer tensor may be a shape. Copy what computes its value, because other shapes may depend on the value.
    if isinstance(value, tf.Tensor) and value.dtype.is_integer:
        return _with_ancestors(value, name)
    return tf.compat.v1.placeholder(value.dtype.base_dtype, value.shape, name=name)


def _with_ancestors(tensor: tf.Tensor, name: str) -> tf.Tensor:
    """Copy a tensor, and the operations that it needs, to the default graph."""

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
    """Copy nodes to the default graph, under these names and without their inputs.

    A single import makes all nodes, because TensorFlow gives no operation the name `w` after `w/avg` exists.
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
    """Return this label, or a similar label that is free, and add it to `taken`.

    Slashes are replaced in a label that begins with the name of a node and a slash: an import would rename that node.
    """
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
    """Return the dtype and shape of a tensor, or of the value behind a variable's handle."""
    if is_handle(tensor.op):
        return tf.as_dtype(tensor.op.get_attr("dtype")), tf.TensorShape(tensor.op.get_attr("shape"))
    return tensor.dtype.base_dtype, tensor.shape


def _variable_for(tensor: tf.Tensor, value: Any) -> tf.Tensor | None:
    """Return the handle or reference of `value` if it is a variable that can replace the variable of `tensor`."""
    if not isinstance(value, tf.Variable) or not is_variable(tensor.op) or not is_variable(value.op):
        return None
    same = is_handle(tensor.op) == is_handle(value.op) and _value_of(tensor)[1].is_compatible_with(value.shape)
    return value.op.outputs[0] if same else None


def _normalise(tensor: tf.Tensor, value: Any, target: tf.Graph) -> Any:
    """Turn a replacement into a tensor or variable of the target, or an array. Raises GraphError if it does not fit."""
    value = plain(value)
    if not isinstance(value, (tf.Tensor, tf.Variable)) or (isinstance(value, tf.Tensor) and hasattr(value, "numpy")):
        return _array(tensor, value)
    if getattr(value, "graph", None) is not target:
        raise GraphError(
            f"replace: the replacement for {tensor.name!r}, {shown(value)}, is not of the graph the copy goes to"
        )
    _check_fit(tensor, value)
    return value


def _array(tensor: tf.Tensor, value: Any) -> Any:
    """Convert a value to an array of the tensor's dtype, without adding a node to a graph. Raises GraphError."""
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
    """Raise GraphError for a replacement of another dtype or rank."""
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
