"""Variables become arguments: rewrites a GraphDef and its functions so that every read of a variable takes a value.

A *parameter node* stands for a variable: it gives a handle or, in the oldest graphs, a reference. Lifted, it is a
placeholder that gives the value, and whatever read the variable uses the value, wherever the variable is passed to:
through functions, loops and conditions of either kind. What cannot be rewritten without changing its meaning is
refused by name.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any

import tensorflow as tf

from paramsync.errors import GraphError
from paramsync.graphdef.reading import fresh, functions_called
from paramsync.graphs.lifting.bodies import Body, Value, become, become_constant, forget_shape
from paramsync.graphs.lifting.roles import REFERENCES

_DEPTH = 100  # of functions that call one another; real graphs have a few
_PLACES = ("_class", "_output_shapes")  # beside which node it runs, and what the shapes of its results were
_ALTERNATIVES = ("api_implements", "api_preferred_device")  # would have it replaced by a function that is not lifted


def lift(
    graph_def: Any,
    parameters: Mapping[str, tf.TensorSpec],
    tables: Iterable[str] = (),
    seeds: Mapping[str, tf.TensorSpec] = MappingProxyType({}),
) -> Any:
    """A copy of `graph_def` in which each node named in `parameters` is a placeholder of that value.

    The nodes named in `tables` become placeholders of their handles. Those in `seeds` are states of Keras
    SeedGenerators, from which each draw gets numbers of its own. Devices and colocations are cleared; functions
    nothing calls any more are left out. Raises GraphError, naming the op and the variable, where a variable is used for
    more than reading it.
    """
    lifted = tf.compat.v1.GraphDef()
    lifted.CopyFrom(graph_def)
    for nodes in (lifted.node, *(function.node_def for function in lifted.library.function)):
        _forget_places(nodes)
    values: dict[str, Value] = {}
    specs = {**dict.fromkeys(tables, tf.TensorSpec((), tf.resource)), **parameters}
    for node in lifted.node:
        if node.name in seeds:
            spec = seeds[node.name]
            values[f"{node.name}:0"] = Value(spec.dtype, node.name, seed=True)
            become_constant(node, [0] * spec.shape.num_elements(), spec.dtype)
        elif node.name in specs:
            if node.name in parameters:
                values[f"{node.name}:0"] = Value(parameters[node.name].dtype, node.name, node.op in REFERENCES)
            become(node, "Placeholder")
            node.attr["dtype"].type = specs[node.name].dtype.as_datatype_enum
            node.attr["shape"].shape.CopyFrom(specs[node.name].shape.as_proto())
    library = _Library(lifted.library.function)
    Body(lifted.node, library, in_function=False).lift(values)
    kept = type(lifted.library)(function=library.reachable(lifted.node))
    lifted.library.CopyFrom(kept)
    return lifted


def _forget_places(nodes: Any) -> None:
    for node in nodes:
        node.device = ""
        node.ClearField("experimental_debug_info")
        for name in _PLACES:
            node.attr.pop(name, None)


class _Library:
    """The functions of one graph: those it came with, and a lifted copy for each way values are passed for handles."""

    def __init__(self, functions: Iterable[Any]) -> None:
        self._functions = {function.signature.name: function for function in functions}
        for function in self._functions.values():
            for name in _ALTERNATIVES:
                function.attr.pop(name, None)
        self._lifted: dict[object, tuple[str, dict[int, Value]]] = {}
        self._open: list[str] = []

    def __contains__(self, name: str) -> bool:
        return name in self._functions

    def results(self, name: str) -> list[str]:
        return [one.name for one in self._functions[name].signature.output_arg]

    def lifted(self, name: str, arguments: Mapping[int, Value]) -> tuple[str, dict[int, Value]]:
        key = (name, *sorted((position, one.dtype.name, one.seed) for position, one in arguments.items()))
        if key not in self._lifted:
            if name not in self._functions:
                raise GraphError(f"the graph calls function {name!r}, which it does not have")
            if max(arguments) >= len(self._functions[name].signature.input_arg):
                raise GraphError(f"the graph calls function {name!r} with more arguments than it takes")
            if name in self._open or len(self._open) == _DEPTH:
                raise GraphError(f"function {name!r} calls itself, or functions are nested deeper than {_DEPTH}")
            self._open.append(name)
            copy = type(self._functions[name])()
            copy.CopyFrom(self._functions[name])
            copy.signature.name = fresh(f"{name}_lifted", self._functions)
            self._functions[copy.signature.name] = copy
            self._lifted[key] = copy.signature.name, _lift_function(copy, arguments, self)
            self._open.pop()
        return self._lifted[key]

    def reachable(self, nodes: Iterable[Any]) -> list[Any]:
        """The functions these nodes call, and those they call in turn, by name."""
        return sorted(functions_called(self._functions.values(), nodes), key=lambda one: str(one.signature.name))


def _lift_function(function: Any, arguments: Mapping[int, Value], library: _Library) -> dict[int, Value]:
    """Rewrite a function to take values at these positions. Returns which of its results are values."""
    values = {}
    shapes = function.attr["_input_shapes"].list.shape if "_input_shapes" in function.attr else []
    for position, value in arguments.items():
        argument = function.signature.input_arg[position]
        _retype(argument, value)
        function.arg_attr.pop(position, None)
        function.resource_arg_unique_id.pop(position, None)
        if position < len(shapes):
            forget_shape(shapes[position])
        values[argument.name] = value
    body = Body(function.node_def, library, in_function=True)
    values = body.lift(values)
    results = {}
    for position, result in enumerate(function.signature.output_arg):
        if function.ret[result.name] in values:
            results[position] = values[function.ret[result.name]]
            _retype(result, results[position])
    for key, tensor in list(function.ret.items()):  # a map that is changed while it is looked through skips entries
        function.ret[key] = body.renamed.get(tensor, tensor)
    return results


def _retype(argument: Any, value: Value) -> None:
    argument.type = value.dtype.as_datatype_enum
    argument.ClearField("handle_data")
    argument.ClearField("experimental_full_type")
