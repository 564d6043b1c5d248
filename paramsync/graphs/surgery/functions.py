"""Gives a copy its own functions, seeds and user-written gradients.

- TensorFlow keeps the functions of all graphs of a process by name, and changes functions that it differentiates. So
  the functions of a copy get names that no other graph uses.
- TensorFlow finds the gradient of a plain call (PartitionedCall, StatefulPartitionedCall) through the Python object
  that made the call. For an imported call it differentiates the whole function, which many ops do not support, and
  which silently gives zero for a loop. So a plain call is replaced by the nodes of its function, and by an IdentityN
  with the call's name for the results.
- TensorFlow knows a variable's dtype and shape only from the Python object that passed the variable's handle to a loop
  or branch. Without this object, a copied loop with a branch inside has no gradients. So the arguments of copied
  functions get dtype and shape.
- A random op gets a fresh seed, computed from the old seed and the names of the scope and the node. So the same program
  makes the same copy, and no two copies share a seed. A stateful op with two seeds of 0 keeps them: TensorFlow then
  draws a seed for each session.
- tf.custom_gradient names a gradient function in its node, and this function reads the original's tensors. So the
  copied node names a new gradient function, or a function that raises GraphError.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from itertools import count
from typing import Any

import tensorflow as tf
from tensorflow.core.framework import resource_handle_pb2

from paramsync.errors import GraphError
from paramsync.graphdef.reading import (
    called,
    control_inputs,
    data_inputs,
    functions_called,
    functions_of,
    node_of,
    rename_calls,
)
from paramsync.graphs.lifting.roles import CALLS, functions, set_functions
from paramsync.graphs.nodes import PLAIN_CALLS, definition, port_of

_COMPILED = "_XlaMustCompile"  # an attribute of functions that XLA compiles; inlined, they would round differently
_Held = resource_handle_pb2.ResourceHandleProto.DtypeAndShape
_numbers = count()

_Spelling = Callable[[Any, str, str], str]
"""Spells a tensor's name where a function's nodes are copied to: a graph, or another function.

The arguments are the node, the node's name there, and `result:position`.
"""


def library_of(graph: tf.Graph, operations: Iterable[tf.Operation]) -> list[Any]:
    """Return the functions that these operations call, directly or indirectly."""
    nodes = [operation.node_def for operation in operations]
    if not any(any(functions_of(node.attr)) or definition(node.op) is None for node in nodes):
        return []  # return early: reading the functions takes as long as reading the whole graph
    library = graph.as_graph_def(
        from_version=graph.version
    ).library  # this GraphDef has no nodes, because no node is newer
    return functions_called(library.function, nodes)


def make_own(
    graph_def: Any,
    scope: str,
    *,
    handles: Mapping[str, Any],
    whole: Collection[str],
    device: str | None,
    keep_seeds: bool,
) -> None:
    """Inline the plain calls in `graph_def`, and copy the functions that are still called.

    Plain calls named in `whole` stay. `handles` are nodes of variables that the copy reads but that are not in
    `graph_def`, by name. Random ops get fresh seeds, unless `keep_seeds`. A `device` replaces the devices of all nodes.
    """
    library = _Library(graph_def.library.function, scope, device=device, keep_seeds=keep_seeds)
    nodes = library.inline(graph_def.node, library.spell_in_graph, whole)
    held = {
        name: _Held(dtype=node.attr["dtype"].type, shape=node.attr["shape"].shape)
        for name, node in ({node.name: node for node in nodes} | {**handles}).items()
        if node.op == "VarHandleOp"
    }
    nodes += library.adapt(nodes, scope, held, in_function=False)
    del graph_def.node[:]
    graph_def.node.extend(nodes)
    kept = functions_called([*graph_def.library.function, *library.made], graph_def.node)
    graph_def.library.CopyFrom(type(graph_def.library)(function=kept, gradient=graph_def.library.gradient))


class _Library:
    """The functions of the source, and the functions made from them for one copy."""

    def __init__(self, library: Iterable[Any], scope: str, *, device: str | None, keep_seeds: bool) -> None:
        self._functions = {function.signature.name: function for function in library}
        self._scope, self._device, self._keep_seeds = scope, device, keep_seeds
        self._number = next(_numbers)
        # names of copies, by the function's name and each passed handle's dtype and shape
        self._own: dict[tuple[Any, ...], str] = {}
        self.made: list[Any] = []

    def inline(self, nodes: Iterable[Any], spelling: _Spelling, whole: Collection[str] = ()) -> list[Any]:
        """Return the nodes, with plain calls replaced by the nodes of their functions."""
        flat = []
        waiting = [(node, frozenset[str]()) for node in nodes]
        while waiting:
            node, within = waiting.pop()
            name = functions(node)[0] if node.op in PLAIN_CALLS else ""
            function = self._functions.get(name)
            if function is None or name in within or node.name in whole or _is_compiled(node, function):
                flat.append(node)
            else:
                *inner, end = _body(node, function, spelling)
                flat.append(end)
                waiting += [(each, within | {name}) for each in inner]
        return flat

    def spell_in_graph(self, node: Any, name: str, result: str) -> str:
        """Name a tensor by its position among all results of the node."""
        port = port_of(node, result, self._functions)
        return f"{name}:{port}" if port else name

    def adapt(self, nodes: Sequence[Any], place: str, held: Mapping[str, Any], *, in_function: bool) -> list[Any]:
        """Turn nodes of the source into nodes of the copy, in place. Returns nodes to add.

        `held` maps each handle that the nodes read to the dtype and shape of its variable.
        """
        added = [] if self._keep_seeds else _refresh_seeds(nodes, place, in_function=in_function)
        for node in nodes:
            if node.op in CALLS:
                passed = [held.get(tensor) for tensor in data_inputs(node)[CALLS[node.op].first :]]
                set_functions(node, [self._make_own(name, passed) for name in functions(node)])
            elif not self._keep_seeds and self._draws(node):
                rename_calls([node], {name: self._make_own(name) for name in called(node) if name in self._functions})
        for node in (*nodes, *added):
            if self._device is not None:
                node.device = self._device
        return added

    def _draws(self, node: Any) -> bool:
        """Return whether a function that the node calls, directly or indirectly, draws numbers by a seed."""
        if self._functions.keys().isdisjoint(called(node)):
            return False
        bodies = functions_called(self._functions.values(), [node])
        return any(has_seed(inner) for function in bodies for inner in function.node_def)

    def _make_own(self, name: str, passed: Sequence[Any] = ()) -> str:
        """Copy a function, and return its new name. Its arguments get the dtypes and shapes in `passed`."""
        key = (name, *(held.SerializeToString() if held else b"" for held in passed))
        if key not in self._own:
            self._own[key] = f"{name}__{self._number}_{len(self._own)}"
            function = type(self._functions[name])()
            function.CopyFrom(self._functions[name])
            function.signature.name = self._own[key]
            self.made.append(function)
            handles = {}
            for argument, held in zip(function.signature.input_arg, passed, strict=False):
                if held:
                    del argument.handle_data[:]
                    argument.handle_data.add().CopyFrom(held)
                    handles[argument.name] = held
            nodes = self.inline(function.node_def, _spell_in_function)
            nodes += self.adapt(nodes, f"{self._scope}/{name}", handles, in_function=True)
            refuse_gradients(nodes)
            del function.node_def[:]
            function.node_def.extend(nodes)
        return self._own[key]


def _spell_in_function(node: Any, name: str, result: str) -> str:
    return f"{name}:{result}"


def _is_compiled(node: Any, function: Any) -> bool:
    return any(attributes[_COMPILED].b for attributes in (node.attr, function.attr) if _COMPILED in attributes)


def _body(call: Any, function: Any, spelling: _Spelling) -> list[Any]:
    """Return the nodes of a function that replace one call. The last node has the name of the call."""
    before = control_inputs(call)
    arguments = (argument.name for argument in function.signature.input_arg)
    arguments_read = dict(zip(arguments, data_inputs(call), strict=True))
    own = {node.name: node for node in function.node_def}

    def spelled(tensor: str) -> str:
        name, _, result = tensor.removeprefix("^").partition(":")
        if name in arguments_read:
            return str(arguments_read[name])
        inner = f"{call.name}/{name}"
        return f"^{inner}" if tensor.startswith("^") else spelling(own[name], inner, result)

    nodes = []
    for inner in function.node_def:
        node = type(inner)()
        node.CopyFrom(inner)
        node.name = f"{call.name}/{inner.name}"
        node.device = inner.device or call.device
        node.attr.pop("_class", None)
        waits = [tensor for tensor in control_inputs(inner) if node_of(tensor) not in arguments_read]
        inputs = [spelled(tensor) for tensor in (*data_inputs(inner), *waits)]
        node.input[:] = [*inputs, *(tensor for tensor in before if tensor not in inputs)]
        nodes.append(node)
    results = [spelled(function.ret[result.name]) for result in function.signature.output_arg]
    effects = [spelled(f"^{node}") for node in function.control_ret.values()]
    end = type(call)(name=call.name, op="IdentityN" if results else "NoOp", device=call.device)
    end.input[:] = [*results, *sorted({*effects, *before})]
    if results:
        end.attr["T"].list.type[:] = call.attr["Tout"].list.type
    return [*nodes, end]


# Seeds ----------------------------------------------------------------------------------------------------------------


def has_seed(node: Any) -> bool:
    """Return whether the node draws numbers that depend on a seed."""
    return _seed_input(node) is not None or bool(_seed(node, "seed") or _seed(node, "seed2"))


def _seed_input(node: Any) -> int | None:
    """Return the position of the seed among the inputs of a stateless random op; None for other ops."""
    op = definition(node.op) if node.op.startswith("Stateless") else None
    names = [] if op is None else [argument.name for argument in op.input_arg]
    return names.index("seed") if "seed" in names else None


def _refresh_seeds(nodes: Iterable[Any], place: str, *, in_function: bool) -> list[Any]:
    """Give the nodes of a graph or a function fresh seeds, which depend on `place`. Returns constants to add."""
    output = ":output:0" if in_function else ""
    constants = {node.name + output: node for node in nodes if node.op == "Const"}
    added = []
    for node in nodes:
        at = _seed_input(node)
        if at is not None:
            constant = constants.get(node.input[at] if in_function else node.input[at].removesuffix(":0"))
            if constant is not None:  # a computed seed, and a seed from an input, stay the same
                seed = type(node)()
                seed.CopyFrom(constant)
                seed.name = f"{node.name}/fresh_seed"
                old = tf.make_ndarray(constant.attr["value"].tensor)
                fresh = [_fresh(int(number), i, f"{place}/{node.name}") for i, number in enumerate(old.flat)]
                seed.attr["value"].tensor.CopyFrom(tf.make_tensor_proto(fresh, old.dtype, shape=old.shape))
                node.input[at] = seed.name + output
                added.append(seed)
        elif has_seed(node):
            node.attr["seed2"].i = _fresh(_seed(node, "seed2"), _seed(node, "seed"), f"{place}/{node.name}")
    return added


def _seed(node: Any, name: str) -> int:
    return int(node.attr[name].i) if "seed2" in node.attr and name in node.attr else 0


def _fresh(seed: int, other: int, place: str) -> int:
    drawn = hashlib.sha256(f"{seed} {other} {place}".encode()).digest()
    return int.from_bytes(drawn[:4], "little") & 0x7FFFFFFF or 1  # a seed of 0 would mean that there is no seed


# User-written gradients -----------------------------------------------------------------------------------------------

_ATTRIBUTE = "_gradient_op_type"  # the attribute of an IdentityN in which tf.custom_gradient names the gradient
_REFUSED = "ParamsyncRefused"


@tf.RegisterGradient(_REFUSED)
def refuse_gradient(operation: tf.Operation, *_: Any) -> Any:
    """Raise GraphError. This function replaces user-written gradients that cannot be copied."""
    raise GraphError(
        f"{operation.name!r} has a gradient that somebody wrote (tf.custom_gradient, as swish and recompute_grad have),"
        " which only its original knows, and which is copied only outside of loops, branches and functions: train the"
        " original, or write this part without; of an import, train with the operations' own gradients, by removing"
        f" {_ATTRIBUTE!r} from the nodes of the MetaGraphDef"
    )


def refuse_gradients(nodes: Iterable[Any]) -> None:
    """Make nodes with a user-written gradient raise GraphError when they are differentiated."""
    for node in nodes:
        if _is_custom(node):
            node.attr[_ATTRIBUTE].s = _REFUSED.encode()


def rename_gradients(nodes: Iterable[Any], operations: Collection[str]) -> dict[str, str]:
    """Rename the user-written gradients of these operations, and return the new names by operation.

    The user-written gradients of all other nodes raise GraphError.
    """
    names = {}
    for node in filter(_is_custom, nodes):
        node.attr[_ATTRIBUTE].s = _REFUSED.encode()
        if node.name in operations:
            names[node.name] = f"ParamsyncCopied{next(_numbers)}"
            node.attr[_ATTRIBUTE].s = names[node.name].encode()
    return names


def _is_custom(node: Any) -> bool:
    return node.op == "IdentityN" and _ATTRIBUTE in node.attr
