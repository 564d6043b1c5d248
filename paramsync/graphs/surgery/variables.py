"""Variables of a live graph: finds the objects and initialisers of variable nodes, and copies them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

import tensorflow as tf
from tensorflow.core.framework import variable_pb2

from paramsync.errors import GraphError
from paramsync.graphdef.reading import node_of
from paramsync.graphs.nodes import VARIABLES
from paramsync.graphs.specs import Shape

_ASSIGNMENTS = frozenset({"Assign", "AssignVariableOp"})
_READS = frozenset({"Identity", "ReadVariableOp"})


@dataclass(frozen=True, slots=True)
class Found:
    """A variable of the source, and its VariableDef."""

    variable: tf.Variable
    proto: Any

    def operations(self, graph: tf.Graph) -> list[tf.Operation]:
        """Return the operations that initialise and read the variable."""
        names = (self.proto.initializer_name, self.proto.initial_value_name, self.proto.snapshot_name)
        return [graph.get_operation_by_name(node_of(name)) for name in names if name]

    def copy_to(self, graph: tf.Graph, rename: Callable[[str], str | None], scope: str) -> tf.Variable:
        """Make a Variable object for nodes that were copied to `graph`. Adds it to no collection."""
        proto = variable_pb2.VariableDef()
        proto.CopyFrom(self.proto)
        proto.variable_name = f"{scope}/{proto.variable_name}"
        proto.initializer_name = f"{scope}/{proto.initializer_name}"
        proto.snapshot_name = rename(proto.snapshot_name) or ""
        proto.initial_value_name = rename(proto.initial_value_name) or ""
        if proto.HasField("save_slice_info_def"):
            proto.save_slice_info_def.full_name = f"{scope}/{proto.save_slice_info_def.full_name}"
        with graph.as_default():
            copy = type(self.variable).from_proto(proto)
        if self.variable.constraint is not None:
            # optimizers apply the constraint, and a VariableDef has no field for it
            copy._constraint = self.variable.constraint
        return copy


def is_variable(operation: tf.Operation) -> bool:
    return operation.type in VARIABLES


def is_handle(operation: tf.Operation) -> bool:
    return bool(operation.type == "VarHandleOp")


def sizes(shape: tf.TensorShape) -> Shape:
    return None if shape.rank is None else tuple(shape.as_list())


def value_of(value: Any) -> Any:
    """Return the existing tensor that reads a variable. Returns any other value unchanged."""
    if not isinstance(value, tf.Variable):
        return value
    with value.graph.as_default():  # `to_proto` works only inside the graph of the variable
        return value.graph.get_tensor_by_name(value.to_proto().snapshot_name)


def known(graph: tf.Graph) -> dict[str, tf.Variable]:
    """Return the variables in the graph's collections, by operation."""
    items = (item for key in graph.get_all_collection_keys() for item in graph.get_collection(key))
    return {item.op.name: item for item in items if isinstance(item, tf.Variable) and is_variable(item.op)}


def find(variables: Mapping[str, tf.Variable], operation: tf.Operation) -> Found:
    """Return the variable of a node: from `variables`, or made from the nodes that initialise and read it.

    Raises GraphError if the variable is unknown and has no such nodes.
    """
    if operation.name in variables:
        variable = variables[operation.name]
        return Found(variable, variable.to_proto())
    readers = operation.outputs[0].consumers()
    initialisers = [
        reader for reader in readers if reader.type in _ASSIGNMENTS and reader.name.startswith(f"{operation.name}/")
    ]
    reads = [reader for reader in readers if reader.type in _READS]
    if not initialisers or not reads:
        raise GraphError(
            f"variable {operation.name!r} is in no collection of its graph, and nothing there initialises and reads it:"
            " share it (variables='shared'), or replace it"
        )
    proto = variable_pb2.VariableDef(
        variable_name=operation.outputs[0].name,
        initializer_name=initialisers[0].name,
        initial_value_name=initialisers[0].inputs[1].name,
        snapshot_name=reads[0].outputs[0].name,
        is_resource=is_handle(operation),
        trainable=True,
    )
    return Found(_kind(resource=is_handle(operation)).from_proto(proto), proto)


@cache
def _kind(*, resource: bool) -> Any:
    """Return the class of resource or reference variables. TensorFlow has no public name for it."""
    with tf.Graph().as_default():
        return type(tf.compat.v1.Variable(0.0, use_resource=resource))


def saved_as(name: str, variable: tf.Variable) -> tuple[str, tf.TensorShape]:
    """Return a variable's key and shape in a checkpoint. For a part, these are the whole variable's key and shape."""
    whole = variable._get_save_slice_info()
    return (name, variable.shape) if whole is None else (whole.full_name, tf.TensorShape(whole.full_shape))


def saved(graph: tf.Graph, variables: Mapping[str, tf.Variable]) -> dict[str, tf.Variable]:
    """Return the variables that tf.train.Saver() would save.

    Saver() leaves out a variable that is in collections of the graph, but not in GLOBAL_VARIABLES.
    """
    global_names = {variable.op.name for variable in graph.get_collection(tf.compat.v1.GraphKeys.GLOBAL_VARIABLES)}
    local_names = known(graph).keys() - global_names
    return {name: variable for name, variable in variables.items() if variable.op.name not in local_names}


def for_saver(variables: Mapping[str, tf.Variable], keys: Mapping[str, str]) -> dict[str, Any]:
    """Return the `var_list` of a Saver: the variables by key. Parts of one variable are together in a list."""
    var_list: dict[str, Any] = {}
    for name, variable in variables.items():
        if variable._get_save_slice_info() is None:
            var_list[keys[name]] = variable
        else:
            var_list.setdefault(keys[name], []).append(variable)
    return var_list
