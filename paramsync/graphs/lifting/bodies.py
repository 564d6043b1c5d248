"""The nodes of a graph or of one function, rewritten so that what took a variable takes its value."""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import tensorflow as tf

from paramsync.errors import GraphError
from paramsync.graphdef.reading import fresh, full, node_of
from paramsync.graphs.lifting.roles import (
    ALWAYS_TRUE,
    CALLS,
    READS,
    WITHOUT_RESULT,
    definition,
    functions,
    refusal,
    results_of_pass,
    set_functions,
)

_SEED = 2  # numbers in the state of a Keras SeedGenerator
_STATE = 3  # in what RngReadAndSkip gives, whatever the algorithm
_ABOUT_HANDLES = ("_read_only_resource_inputs", "_gradient_op_type")


@dataclass(frozen=True, slots=True)
class Value:
    """What a tensor is now that was the handle of a variable, or a reference to it.

    A `seed` has no value: whatever reads it gets other numbers each time, and whatever changes it does nothing.
    """

    dtype: tf.DType
    variable: str
    reference: bool = False
    seed: bool = False


class Library(Protocol):
    """The functions that the nodes of a body may call."""

    def __contains__(self, name: str) -> bool: ...

    def results(self, name: str) -> list[str]:
        """What a function calls its results."""

    def lifted(self, name: str, arguments: Mapping[int, Value]) -> tuple[str, dict[int, Value]]:
        """The name of a copy that takes values at these positions, and which of its results are values."""


class Body:
    """The nodes of a graph or of one function, which spell their tensors differently."""

    def __init__(self, nodes: Any, library: Library, *, in_function: bool) -> None:
        self._nodes = nodes
        self._library = library
        self._in_function = in_function
        self._names = {node.name for node in nodes}
        self._has_frames = any(node.op == "Enter" for node in nodes)
        self._taken: dict[str, tuple[Any, dict[int, Value]]] = {}  # by node: what it takes where
        self.renamed: dict[str, str] = {}
        """Tensors that have another name now."""

    def lift(self, values: Mapping[str, Value]) -> dict[str, Value]:
        """Rewrite every consumer of `values`, tensors that were handles. Returns all tensors that are values now."""
        found = self._follow(values)
        for node, at in self._taken.values():
            self._rewrite(node, at)
        if self.renamed:
            for node in self._nodes:
                for position, name in enumerate(node.input):
                    if name in self.renamed:
                        node.input[position] = self.renamed[name]
        return found

    def _follow(self, values: Mapping[str, Value]) -> dict[str, Value]:
        """Where the variables go: loops of the old kind pass them in circles, and nodes come in any order."""
        consumers: dict[str, list[tuple[int, Any, int]]] = defaultdict(list)
        for at, node in enumerate(self._nodes):
            for position, tensor in enumerate(node.input):
                if not tensor.startswith("^"):
                    consumers[self._full(tensor)].append((at, node, position))
        found = dict(values)
        waiting = list(found)
        calls: list[tuple[int, str]] = []  # those that take more than when they were last looked at, earliest first
        pending: set[str] = set()  # their names
        while waiting or calls:
            if not waiting:
                _, name = heapq.heappop(calls)
                pending.remove(name)
                node, taken = self._taken[name]
                more = self._call_results(node, taken)
            else:
                tensor = waiting.pop()
                more = []
                for at, node, position in consumers[tensor]:
                    if self._reads_reference(node, position, found[tensor]):
                        continue
                    self._taken.setdefault(node.name, (node, {}))[1][position] = found[tensor]
                    if not self._is_call(node):
                        more += self._passed(node, position, found[tensor])
                    elif node.name not in pending:
                        pending.add(node.name)
                        heapq.heappush(calls, (at, node.name))
            for tensor, value in more:
                if tensor not in found:
                    found[tensor] = value
                    waiting.append(tensor)
        return found

    def _reads_reference(self, node: Any, position: int, value: Value) -> bool:
        """Whether this takes a value: given a reference, it reads it."""
        if not value.reference or node.op.startswith("Ref") or node.op in ALWAYS_TRUE:
            return False
        return self._is_call(node) or not _takes_reference(node, position)

    def _is_call(self, node: Any) -> bool:
        return node.op in CALLS or node.op in self._library

    def _passed(self, node: Any, position: int, value: Value) -> Iterator[tuple[str, Value]]:
        if node.op == "IdentityN":
            yield self._result(node.name, "output", position, position), value
        elif position == 0 or node.op in ("Merge", "RefMerge"):
            for at, name in enumerate(results_of_pass(node.op)):
                yield self._result(node.name, name, 0, at), value

    def _call_results(self, node: Any, at: Mapping[int, Value]) -> list[tuple[str, Value]]:
        call = CALLS.get(node.op)
        if call is None:
            names = self._library.results(node.op)
            results = self._library.lifted(node.op, at)[1]
            return [(self._result(node.name, names[one], 0, one), value) for one, value in results.items()]
        arguments = {position - call.first: value for position, value in at.items()}
        found: dict[int, Value] = {}
        for name in functions(node, call) if min(arguments) >= 0 else []:
            found |= self._library.lifted(name, arguments)[1]
        return [(self._result(node.name, "output", one, one), value) for one, value in found.items()]

    def _rewrite(self, node: Any, at: Mapping[int, Value]) -> None:
        data = [tensor for tensor in node.input if not tensor.startswith("^")]
        op = node.op.removeprefix("Ref")
        if self._is_call(node):
            self._rewrite_call(node, at)
        elif list(at) == [0] and (node.op == "RngReadAndSkip" or (at[0].seed and node.op == "ReadVariableOp")):
            of_seed = at[0].seed and node.op == "ReadVariableOp"
            self._rewrite_draw(node, data, at[0].dtype if of_seed else tf.int64, _SEED if of_seed else _STATE)
        elif list(at) == [0] and at[0].seed and node.op == "AssignVariableOp":
            become(node, "NoOp")
        elif node.op in READS and list(at) == [0]:
            self._rewrite_read(node, data, at[0].dtype)
        elif node.op in ALWAYS_TRUE:
            self._rewrite_to_true(node, data)
        elif node.op in WITHOUT_RESULT:
            control = [one for one in node.input if one.startswith("^")]
            become(node, "NoOp", control)
        elif node.op == "IdentityN":
            for position, value in at.items():
                node.attr["T"].list.type[position] = value.dtype.as_datatype_enum
        elif results_of_pass(op) and len(at) == (len(data) if op == "Merge" else 1) and _one_dtype(at):
            node.op = op
            node.attr["T"].type = at[0].dtype.as_datatype_enum
        else:
            raise GraphError(
                f"the graph cannot be made pure: {node.op} {node.name!r} {refusal(node.op, at[min(at)].variable)}"
            )

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
            axis = self._nodes.add(name=self._fresh(f"{node.name}/axis"))
            become_constant(axis, old.attr["batch_dims"].i, tf.int32, self._same_frame(data[1]))
            node.attr["Taxis"].type = tf.int32.as_datatype_enum
            node.input.insert(2, self._result(axis.name, "output", 0, 0))
        self._rename_result(before, node)

    def _rewrite_draw(self, node: Any, data: list[str], dtype: tf.DType, size: int) -> None:
        """Numbers from the machine instead of those that a generator counts up to, which no two calls share."""
        before = self._result(node.name, "value", 0, 0)
        control = [one for one in node.input if one.startswith("^")]
        shape = self._nodes.add(name=self._fresh(f"{node.name}/shape"))
        become_constant(shape, [size], tf.int64, self._same_frame(data[0]))
        become(node, "NonDeterministicInts", [self._result(shape.name, "output", 0, 0), *control])
        node.attr["dtype"].type = dtype.as_datatype_enum
        node.attr["shape_dtype"].type = tf.int64.as_datatype_enum
        self._rename_result(before, node)

    def _rewrite_to_true(self, node: Any, data: list[str]) -> None:
        before = self._result(node.name, "is_initialized", 0, 0)
        control = [one for one in node.input if one.startswith("^")]
        become_constant(node, True, tf.bool, dict.fromkeys([*control, *self._same_frame(data[0])]))
        self._rename_result(before, node)

    def _rewrite_call(self, node: Any, at: Mapping[int, Value]) -> None:
        for name in _ABOUT_HANDLES:
            node.attr.pop(name, None)
        node.ClearField("experimental_type")
        call = CALLS.get(node.op)
        if call is None:
            node.op = self._library.lifted(node.op, at)[0]
            return
        if min(at) < call.first:
            raise GraphError(f"the graph cannot be made pure: {node.op} {node.name!r} decides by a variable's handle")
        arguments = {position - call.first: value for position, value in at.items()}
        lifted = [self._library.lifted(name, arguments) for name in functions(node, call)]
        set_functions(node, call, [name for name, _ in lifted])
        returned = [results for _, results in lifted[1 if call.loop else 0 :]]  # a loop's condition returns a truth
        results = arguments if call.loop else returned[0]
        for other in returned:
            if _dtypes(other) != _dtypes(results):
                variables = {one.variable for one in (*results.values(), *other.values())}
                raise GraphError(
                    f"the graph cannot be made pure: {node.op} {node.name!r} gives back a variable or something else in"
                    f" its place, depending on which way it takes: {', '.join(sorted(variables))}"
                )
        for attribute, passed in ((call.arguments, arguments), (call.results, results)):
            for position, value in passed.items():
                node.attr[attribute].list.type[position] = value.dtype.as_datatype_enum
        if "output_shapes" in node.attr:
            shapes = node.attr["output_shapes"].list.shape
            for position in results:
                if position < len(shapes):
                    forget_shape(shapes[position])

    def _same_frame(self, tensor: str) -> list[str]:
        """Control inputs that make a constant run in the frame of this tensor, where there are frames."""
        node = node_of(tensor)
        return [f"^{node}"] if self._has_frames and node in self._names else []

    def _fresh(self, name: str) -> str:
        found = fresh(name, self._names)
        self._names.add(found)
        return found

    def _rename_result(self, before: str, node: Any) -> None:
        after = self._result(node.name, "output", 0, 0)
        if before != after:
            self.renamed[before] = after

    def _result(self, node: str, name: str, within: int, position: int) -> str:
        """A node's result in full: which of those of this name, and which of them all."""
        return f"{node}:{name}:{within}" if self._in_function else f"{node}:{position}"

    def _full(self, tensor: str) -> str:
        return tensor if self._in_function else full(tensor)


def become(node: Any, op: str, inputs: Iterable[str] = ()) -> None:
    """Another op of the same name, as yet without attributes."""
    taken = list(inputs)
    name = node.name
    node.Clear()
    node.name, node.op = name, op
    node.input.extend(taken)


def forget_shape(shape: Any) -> None:
    shape.Clear()
    shape.unknown_rank = True


def become_constant(node: Any, value: object, dtype: tf.DType, control: Iterable[str] = ()) -> None:
    become(node, "Const", control)
    node.attr["dtype"].type = dtype.as_datatype_enum
    node.attr["value"].tensor.CopyFrom(tf.make_tensor_proto(value, dtype))


def _dtypes(values: Mapping[int, Value]) -> dict[int, tf.DType]:
    return {position: value.dtype for position, value in values.items()}


def _one_dtype(values: Mapping[int, Value]) -> bool:
    return len({value.dtype for value in values.values()}) == 1


def _takes_reference(node: Any, position: int) -> bool:
    op = definition(node.op)
    end = 0
    for one in op.input_arg if op is not None else ():  # TensorFlow says itself which it does not know
        listed = one.number_attr or one.type_list_attr
        end += (node.attr[listed].i or len(node.attr[listed].list.type)) if listed else 1
        if position < end:
            return bool(one.is_ref)
    return False
