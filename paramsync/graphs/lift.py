"""Variables become arguments: rewrites a GraphDef and its functions so that every read of a variable takes a value.

A *parameter node* stands for a variable: it gives a handle or, in the oldest graphs, a reference. Lifted, it is a
placeholder that gives the value, and whatever read the variable uses the value, through every function it is passed
to. What cannot be rewritten without changing its meaning is refused by name.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import tensorflow as tf

from paramsync.errors import GraphError

_REFERENCES = frozenset({"Variable", "VariableV2"})  # give a reference, which reads like a value already
_CALLS = frozenset({"PartitionedCall", "StatefulPartitionedCall"})


def lift(graph_def: Any, parameters: Mapping[str, tf.TensorSpec]) -> Any:
    """A copy of `graph_def` in which each node named in `parameters` is a placeholder of that value.

    Devices and colocations are cleared; functions nothing calls any more are left out. Raises GraphError, naming the
    op and the variable, where a variable is used for more than reading it.
    """
    lifted = tf.compat.v1.GraphDef()
    lifted.CopyFrom(graph_def)
    for nodes in (lifted.node, *(function.node_def for function in lifted.library.function)):
        _forget_places(nodes)
    handles: dict[str, tf.DType] = {}
    for node in lifted.node:
        if node.name in parameters:
            if node.op not in _REFERENCES:
                handles[node.name] = parameters[node.name].dtype
            _make_placeholder(node, parameters[node.name])
    library = _Library(lifted.library.function)
    _Body(lifted.node, library, in_function=False).lift(handles)
    del lifted.library.function[:]
    lifted.library.function.extend(library.reachable(lifted.node))
    return lifted


def called_functions(node: Any) -> list[str]:
    """Every function a node may call: the one it is named after, those in its attributes."""
    attributes = node.attr.values()
    named = [one.func.name for one in attributes if one.HasField("func")]
    return [node.op, *named, *(func.name for one in attributes for func in one.list.func)]


def _forget_places(nodes: Any) -> None:
    for node in nodes:
        node.device = ""
        node.attr.pop("_class", None)
        node.attr.pop("_output_shapes", None)


def _make_placeholder(node: Any, spec: tf.TensorSpec) -> None:
    node.op = "Placeholder"
    del node.input[:]
    node.attr.clear()
    node.attr["dtype"].type = spec.dtype.as_datatype_enum
    node.attr["shape"].shape.CopyFrom(spec.shape.as_proto())


class _Library:
    """The functions of one graph: those it came with, and a lifted copy for each way values are passed for handles."""

    def __init__(self, functions: Iterable[Any]) -> None:
        self._functions = {function.signature.name: function for function in functions}

    def lifted(self, name: str, values: Mapping[int, tf.DType]) -> str:
        """The name of a copy of function `name` that takes values of these dtypes at these positions."""
        lifted_name = f"{name}__lifted_" + "_".join(f"{at}{dtype.name}" for at, dtype in sorted(values.items()))
        if lifted_name not in self._functions:
            copy = type(self._functions[name])()
            copy.CopyFrom(self._functions[name])
            copy.signature.name = lifted_name
            self._functions[lifted_name] = copy
            arguments = {}
            for position, dtype in values.items():
                argument = copy.signature.input_arg[position]
                argument.type = dtype.as_datatype_enum
                argument.ClearField("handle_data")
                copy.arg_attr.pop(position, None)
                arguments[argument.name] = dtype
            renamed = _Body(copy.node_def, self, in_function=True).lift(arguments)
            for results in (copy.ret, copy.control_ret):
                for key, tensor in results.items():
                    results[key] = renamed.get(tensor, tensor)
        return lifted_name

    def reachable(self, nodes: Iterable[Any]) -> list[Any]:
        """The functions these nodes call, and those they call in turn, by name."""
        found: dict[str, Any] = {}
        waiting = [name for node in nodes for name in called_functions(node)]
        while waiting:
            name = waiting.pop()
            if name in self._functions and name not in found:
                found[name] = self._functions[name]
                waiting += [inner for node in found[name].node_def for inner in called_functions(node)]
        return [found[name] for name in sorted(found)]


class _Body:
    """The nodes of a graph or of one function, which spell their tensors differently."""

    def __init__(self, nodes: Any, library: _Library, *, in_function: bool) -> None:
        self._nodes = nodes
        self._library = library
        self._in_function = in_function

    def lift(self, values: Mapping[str, tf.DType]) -> dict[str, str]:
        """Rewrite every consumer of `values`, tensors that were handles. Returns the tensors that changed name."""
        values = dict(values)
        renamed: dict[str, str] = {}
        waiting: list[Any] = []
        left = list(self._nodes)
        while len(left) != len(waiting):  # an Identity of a handle gives a handle too, and nodes come in any order
            waiting, left = left, []
            for node in waiting:
                tensors = [self._tensor(name) for name in node.input]
                at = {position: values[tensor] for position, tensor in enumerate(tensors) if tensor in values}
                if not at:
                    left.append(node)
                elif node.op == "Identity":
                    node.attr["T"].type = at[0].as_datatype_enum
                    values[self._output(node.name)] = at[0]
                else:
                    before = self._output(node.name, _RESULTS.get(node.op, "output"))
                    self._lift_consumer(node, at)
                    renamed[before] = self._output(node.name)
        self._rename(renamed)
        return renamed

    def _lift_consumer(self, node: Any, values: Mapping[int, tf.DType]) -> None:
        if node.op in _CALLS:
            for position, dtype in values.items():
                node.attr["Tin"].list.type[position] = dtype.as_datatype_enum
            node.attr["f"].func.name = self._library.lifted(node.attr["f"].func.name, values)
            node.attr.pop("_gradient_op_type", None)
        elif node.op in _READS and list(values) == [0]:
            self._lift_read(node, values[0].as_datatype_enum)
        else:
            raise GraphError(
                f"the graph cannot be made pure: {node.op} {node.name!r} takes the variable behind"
                f" {node.input[min(values)]!r}, and only reading a variable can be replaced by its value"
            )

    def _lift_read(self, node: Any, dtype: int) -> None:
        old = type(node)()
        old.CopyFrom(node)
        node.op, attributes = _READS[old.op]
        node.attr.clear()
        for new_name, old_name in attributes.items():
            if old_name:
                node.attr[new_name].CopyFrom(old.attr[old_name])
            else:
                node.attr[new_name].type = dtype
        if node.op == "GatherV2":
            axis = self._nodes.add(name=f"{node.name}/axis", op="Const")
            axis.attr["dtype"].type = tf.int32.as_datatype_enum
            axis.attr["value"].tensor.CopyFrom(tf.make_tensor_proto(old.attr["batch_dims"].i, tf.int32))
            node.attr["Taxis"].type = tf.int32.as_datatype_enum
            node.input.insert(2, self._output(axis.name))

    def _rename(self, renamed: Mapping[str, str]) -> None:
        for node in self._nodes:
            for position, name in enumerate(node.input):
                node.input[position] = renamed.get(name, name)

    def _output(self, node: str, result: str = "output") -> str:
        return f"{node}:{result}:0" if self._in_function else node

    def _tensor(self, name: str) -> str:
        return name if self._in_function else name.removesuffix(":0")


# What reads a variable: the op that does the same to a value, and its attributes: from the old op's, "" for the dtype.
_READS = {
    "ReadVariableOp": ("Identity", {"T": ""}),
    "ResourceGather": ("GatherV2", {"Tparams": "", "Tindices": "Tindices", "batch_dims": "batch_dims"}),
    "ResourceGatherNd": ("GatherNd", {"Tparams": "", "Tindices": "Tindices"}),
    "VariableShape": ("Shape", {"T": "", "out_type": "out_type"}),
}
_RESULTS = {"ReadVariableOp": "value"}  # results not called "output" in a function's body
