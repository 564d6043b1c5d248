"""Makes variables arguments: rewrites a GraphDef and its functions so that every read of a variable takes a value.

A *parameter node* stands for a variable: its output is a handle or, in v1 graphs, a reference. Lifting turns the node
into a placeholder for the value. All reads of the variable then use the value, also in functions, loops and branches,
whether of v1 (Enter, Switch) or of v2 (While, If). An op that cannot compute the same from a value raises GraphError.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import tensorflow as tf

from paramsync.errors import GraphError
from paramsync.graphdef.reading import control_inputs, data_inputs, every_node, fresh, full, functions_called, node_of
from paramsync.graphs.lifting.roles import (
    ALWAYS_TRUE,
    CALLS,
    READS,
    functions,
    refusal,
    results_of_pass,
    set_functions,
)
from paramsync.graphs.nodes import (
    REFERENCES,
    argument_at,
    become,
    become_constant,
    become_placeholder,
    definition,
)

_PLACES = ("_class", "_output_shapes")  # wrong after lifting: the node's colocation and output shapes
_ALTERNATIVES = ("api_implements", "api_preferred_device")  # make TensorFlow call another function, which is not lifted
_ABOUT_HANDLES = ("_read_only_resource_inputs", "_gradient_op_type")
_SEED = 2  # how many numbers the state of a Keras SeedGenerator has
_STATE = 3  # how many numbers RngReadAndSkip returns, for any algorithm


@dataclass(frozen=True, slots=True)
class _Value:
    """The value that takes the place of a variable's handle or reference.

    A `seed` (the state of a Keras SeedGenerator) has no value: each read of it becomes a draw of fresh random numbers,
    and assignments are removed.
    """

    dtype: tf.DType
    variable: str
    reference: bool = False
    seed: bool = False


def lift(
    graph_def: Any,
    parameters: Mapping[str, tf.TensorSpec],
    tables: Iterable[str] = (),
    seeds: Mapping[str, tf.TensorSpec] = MappingProxyType({}),
) -> Any:
    """Return a copy of `graph_def` in which the nodes named in `parameters` are placeholders with these specs.

    The nodes named in `tables` become placeholders for the tables' handles. The nodes in `seeds` are states of Keras
    SeedGenerators; random ops that use them draw fresh numbers at each call. Devices and colocations are cleared, and
    functions that nothing calls any more are left out. Raises GraphError, which names the op and the variable, if an op
    does more than read a variable; IndexError or KeyError for a graph that contradicts itself.
    """
    lifted = tf.compat.v1.GraphDef()
    lifted.CopyFrom(graph_def)
    for node in every_node(lifted):
        node.device = ""
        node.ClearField("experimental_debug_info")
        for name in _PLACES:
            node.attr.pop(name, None)
    values: dict[str, _Value] = {}
    handles = dict.fromkeys(tables, tf.TensorSpec((), tf.resource))
    for node in lifted.node:
        if node.name in seeds:
            spec = seeds[node.name]
            values[f"{node.name}:0"] = _Value(spec.dtype, node.name, seed=True)
            become_constant(node, [0] * spec.shape.num_elements(), spec.dtype)
        elif node.name in parameters:
            values[f"{node.name}:0"] = _Value(parameters[node.name].dtype, node.name, node.op in REFERENCES)
            become_placeholder(node, parameters[node.name])
        elif node.name in handles:
            become_placeholder(node, handles[node.name])
    library = _Library(lifted.library.function)
    _Body(lifted.node, library, in_function=False).lift(values)
    lifted.library.CopyFrom(type(lifted.library)(function=library.reachable(lifted.node)))
    return lifted


class _Library:
    """The functions of one graph, with a lifted copy of a function for each combination of values passed to it."""

    def __init__(self, library: Iterable[Any]) -> None:
        self.functions = {function.signature.name: function for function in library}
        for function in self.functions.values():
            for name in _ALTERNATIVES:
                function.attr.pop(name, None)
        self._lifted: dict[object, tuple[str, dict[int, _Value]]] = {}

    def lift(self, name: str, arguments: Mapping[int, _Value]) -> tuple[str, dict[int, _Value]]:
        """Lift a function so that it takes values at these positions.

        Returns its new name, and the values among its results.
        """
        key = (name, *sorted((position, value.dtype.name, value.seed) for position, value in arguments.items()))
        if key not in self._lifted:
            copy = type(self.functions[name])()
            copy.CopyFrom(self.functions[name])
            copy.signature.name = fresh(f"{name}_lifted", self.functions)
            self.functions[copy.signature.name] = copy
            self._lifted[key] = copy.signature.name, self._lift(copy, arguments)
        return self._lifted[key]

    def _lift(self, function: Any, arguments: Mapping[int, _Value]) -> dict[int, _Value]:
        """Rewrite a function to take values at these positions. Returns the values among its results, by position."""
        values = {}
        shapes = function.attr["_input_shapes"].list.shape if "_input_shapes" in function.attr else []
        for position, value in arguments.items():
            argument = function.signature.input_arg[position]
            _retype(argument, value)
            function.arg_attr.pop(position, None)
            function.resource_arg_unique_id.pop(position, None)
            if position < len(shapes):
                _forget_shape(shapes[position])
            values[argument.name] = value
        body = _Body(function.node_def, self, in_function=True)
        values = body.lift(values)
        results = {}
        for position, result in enumerate(function.signature.output_arg):
            if function.ret[result.name] in values:
                results[position] = values[function.ret[result.name]]
                _retype(result, results[position])
        # a list, because a map that changes during the loop skips entries
        for key, tensor in list(function.ret.items()):
            function.ret[key] = body.renamed.get(tensor, tensor)
        return results

    def reachable(self, nodes: Iterable[Any]) -> list[Any]:
        """Return the functions that these nodes call, directly or indirectly, sorted by name."""
        return sorted(functions_called(self.functions.values(), nodes), key=lambda called: str(called.signature.name))


class _Body:
    """The nodes of a graph or of one function. Graphs and functions name tensors differently."""

    def __init__(self, nodes: Any, library: _Library, *, in_function: bool) -> None:
        self._nodes = nodes
        self._library = library
        self._in_function = in_function
        self._names = {node.name for node in nodes}
        self._has_frames = any(node.op == "Enter" for node in nodes)
        self._taken: dict[str, tuple[Any, dict[int, _Value]]] = {}  # by name: a node and its inputs that are values
        self.renamed: dict[str, str] = {}
        """The new names of renamed tensors."""

    def lift(self, values: Mapping[str, _Value]) -> dict[str, _Value]:
        """Rewrite all nodes that get one of `values` in place of a handle. Returns all tensors that are values now."""
        reached = self._follow(values)
        for node, taken in self._taken.values():
            self._rewrite(node, taken)
        if self.renamed:
            for node in self._nodes:
                node.input[:] = [self.renamed.get(tensor, tensor) for tensor in node.input]
        return reached

    def _follow(self, values: Mapping[str, _Value]) -> dict[str, _Value]:
        """Find all tensors that carry variables.

        One pass is not enough, because loops of v1 graphs are cycles, and nodes may come in any order.
        """
        consumers: dict[str, list[tuple[Any, int]]] = defaultdict(list)
        for node in self._nodes:
            for position, tensor in enumerate(node.input):
                if not tensor.startswith("^"):
                    consumers[tensor if self._in_function else full(tensor)].append((node, position))
        reached = dict(values)
        waiting = list(reached)
        calls: dict[str, None] = {}  # calls that got more values since they were last followed
        while waiting or calls:
            passed: list[tuple[str, _Value]] = []
            if waiting:
                tensor = waiting.pop()
                for node, position in consumers[tensor]:
                    if self._reads_reference(node, position, reached[tensor]):
                        continue
                    self._taken.setdefault(node.name, (node, {}))[1][position] = reached[tensor]
                    if self._is_call(node):
                        calls[node.name] = None
                    else:
                        passed += self._passed(node, position, reached[tensor])
            else:  # follow a call only when no other tensor waits: the call then has as many values as possible
                name = next(iter(calls))
                del calls[name]
                passed += self._call_results(*self._taken[name])
            for tensor, value in passed:
                if tensor not in reached:
                    reached[tensor] = value
                    waiting.append(tensor)
        return reached

    def _reads_reference(self, node: Any, position: int, value: _Value) -> bool:
        """Return whether TensorFlow passes the node the value behind a reference, so that the node stays as it is.

        It does so unless the op takes the reference itself.
        """
        if not value.reference or node.op.startswith("Ref") or node.op in ALWAYS_TRUE:
            return False
        return self._is_call(node) or not _takes_reference(node, position)

    def _is_call(self, node: Any) -> bool:
        return node.op in CALLS or node.op in self._library.functions

    def _passed(self, node: Any, position: int, value: _Value) -> Iterator[tuple[str, _Value]]:
        if node.op == "IdentityN":
            yield self._result(node.name, "output", position, position), value
        elif position == 0 or node.op in ("Merge", "RefMerge"):
            for at, name in enumerate(results_of_pass(node.op)):
                yield self._result(node.name, name, 0, at), value

    def _call_results(self, node: Any, taken: Mapping[int, _Value]) -> list[tuple[str, _Value]]:
        call = CALLS.get(node.op)
        if call is None:
            signature = self._library.functions[node.op].signature
            results = self._library.lift(node.op, taken)[1]
            return [(self._result(node.name, signature.output_arg[at].name, 0, at), results[at]) for at in results]
        arguments = {position - call.first: value for position, value in taken.items()}
        if min(arguments) < 0:
            raise _impure(node, "decides by a variable's handle")
        results = {}
        for name in functions(node):
            results |= self._library.lift(name, arguments)[1]
        return [(self._result(node.name, "output", at, at), value) for at, value in results.items()]

    def _rewrite(self, node: Any, taken: Mapping[int, _Value]) -> None:
        data = data_inputs(node)
        op = node.op.removeprefix("Ref")
        first = taken[0] if list(taken) == [0] else None
        if self._is_call(node):
            self._rewrite_call(node, taken)
        elif first and node.op == "RngReadAndSkip":
            self._rewrite_draw(node, data, tf.int64, _STATE)
        elif first and first.seed and node.op == "ReadVariableOp":
            self._rewrite_draw(node, data, first.dtype, _SEED)
        elif first and first.seed and node.op == "AssignVariableOp":
            become(node, "NoOp")
        elif first and node.op in READS:
            self._rewrite_read(node, data, first.dtype)
        elif node.op in ALWAYS_TRUE:
            before = self._result(node.name, "is_initialized", 0, 0)
            become_constant(node, True, control=dict.fromkeys([*control_inputs(node), *self._same_frame(data[0])]))
            self._rename_result(before, node)
        elif node.op == "IdentityN":
            for position, value in taken.items():
                node.attr["T"].list.type[position] = value.dtype.as_datatype_enum
        elif results_of_pass(op) and len(taken) == (len(data) if op == "Merge" else 1) and _have_one_dtype(taken):
            node.op = op
            node.attr["T"].type = taken[0].dtype.as_datatype_enum
        else:
            raise _impure(node, refusal(node.op, taken[min(taken)].variable))

    def _rewrite_read(self, node: Any, data: list[str], dtype: tf.DType) -> None:
        read = READS[node.op]
        before = self._result(node.name, read.result, 0, 0)
        old = type(node)()
        old.CopyFrom(node)
        become(node, read.op, old.input)
        for new_name, old_name in read.attributes.items():
            if not old_name:
                node.attr[new_name].type = dtype.as_datatype_enum
            elif old_name in old.attr:
                node.attr[new_name].CopyFrom(old.attr[old_name])
        if node.op == "GatherV2":
            axis = self._add_constant(f"{node.name}/axis", old.attr["batch_dims"].i, tf.int32, data[1])
            node.attr["Taxis"].type = tf.int32.as_datatype_enum
            node.input.insert(2, axis)
        self._rename_result(before, node)

    def _rewrite_draw(self, node: Any, data: list[str], dtype: tf.DType, size: int) -> None:
        """Replace a read of a generator's state by random numbers that are different in each call."""
        before = self._result(node.name, "value", 0, 0)
        shape = self._add_constant(f"{node.name}/shape", [size], tf.int64, data[0])
        become(node, "NonDeterministicInts", [shape, *control_inputs(node)])
        node.attr["dtype"].type = dtype.as_datatype_enum
        node.attr["shape_dtype"].type = tf.int64.as_datatype_enum
        self._rename_result(before, node)

    def _rewrite_call(self, node: Any, taken: Mapping[int, _Value]) -> None:
        for name in _ABOUT_HANDLES:
            node.attr.pop(name, None)
        node.ClearField("experimental_type")
        call = CALLS.get(node.op)
        if call is None:
            node.op = self._library.lift(node.op, taken)[0]
            return
        arguments = {position - call.first: value for position, value in taken.items()}
        lifted = [self._library.lift(name, arguments) for name in functions(node)]
        set_functions(node, [name for name, _ in lifted])
        results = arguments if call.loop else lifted[0][1]
        for attribute, passed in ((call.arguments, arguments), (call.results, results)):
            for position, value in passed.items():
                node.attr[attribute].list.type[position] = value.dtype.as_datatype_enum
        if "output_shapes" in node.attr:
            shapes = node.attr["output_shapes"].list.shape
            for position in results:
                if position < len(shapes):
                    _forget_shape(shapes[position])

    def _add_constant(self, name: str, value: object, dtype: tf.DType, beside: str) -> str:
        """Add a constant in the loop frame of the tensor `beside`. Returns the name of the constant's tensor."""
        node = self._nodes.add(name=fresh(name, self._names))
        self._names.add(node.name)
        become_constant(node, value, dtype, self._same_frame(beside))
        return self._result(node.name, "output", 0, 0)

    def _same_frame(self, tensor: str) -> list[str]:
        """Return control inputs that make a constant run in the loop frame of this tensor, if the graph has frames."""
        node = node_of(tensor)
        return [f"^{node}"] if self._has_frames and node in self._names else []

    def _rename_result(self, before: str, node: Any) -> None:
        after = self._result(node.name, "output", 0, 0)
        if before != after:
            self.renamed[before] = after

    def _result(self, node: str, name: str, within: int, position: int) -> str:
        """Return the name of a tensor.

        In a function, the name contains the name of a result and the place within this result. In a graph, it contains
        the place among all results of the node.
        """
        return f"{node}:{name}:{within}" if self._in_function else f"{node}:{position}"


def _retype(argument: Any, value: _Value) -> None:
    argument.type = value.dtype.as_datatype_enum
    argument.ClearField("handle_data")
    argument.ClearField("experimental_full_type")


def _forget_shape(shape: Any) -> None:
    shape.Clear()
    shape.unknown_rank = True


def _have_one_dtype(values: Mapping[int, _Value]) -> bool:
    return len({value.dtype for value in values.values()}) == 1


def _impure(node: Any, reason: str) -> GraphError:
    return GraphError(f"the graph cannot be made pure: {node.op} {node.name!r} {reason}")


def _takes_reference(node: Any, position: int) -> bool:
    op = definition(node.op)  # None for an unknown op, which TensorFlow rejects later
    taken = argument_at(node, () if op is None else op.input_arg, position)
    return taken is not None and bool(taken[0].is_ref)
