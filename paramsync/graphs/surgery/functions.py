"""The functions that a copy calls, each made its own.

- TensorFlow keeps the functions of all graphs of a process by name, and changes those it takes gradients of. So those
  of a copy have names that nobody else uses.
- TensorFlow knows the gradient of a plain call from the Python object that made it. For one that was imported it falls
  back on gradients for whole functions, which lack many ops and are silently zero for a loop. A copy is there to be
  trained, so plain calls make way for their functions' nodes, and an IdentityN of the call's name gives its results.
- TensorFlow notes what the variables hold whose handles are passed to a loop or branch on the Python object that made
  it, and without that a copied loop with a branch inside has no gradients. So the functions say it themselves.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from itertools import count
from typing import Any

import tensorflow as tf
from tensorflow.core.framework import resource_handle_pb2

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
from paramsync.graphs.surgery import seeds
from paramsync.graphs.surgery.custom_gradients import refuse

_WHOLE = ("_XlaMustCompile", "_noinline")  # functions that are more than their nodes
_Held = resource_handle_pb2.ResourceHandleProto.DtypeAndShape
_numbers = count()

_Spelling = Callable[[Any, str, str], str]
"""How a tensor is written where a function's nodes go: from its node, the node's name there, and `result:position`."""


def library_of(graph: tf.Graph, operations: Iterable[tf.Operation]) -> list[Any]:
    """The functions these operations call, and those they call in turn."""
    nodes = [operation.node_def for operation in operations]
    if not any(
        any(functions_of(node.attr)) or definition(node.op) is None for node in nodes
    ):  # to ask the graph for its functions takes as long as to ask for all it has
        return []
    library = graph.as_graph_def(from_version=graph.version).library  # no nodes are newer than its version
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
    """Inline the plain calls in `graph_def`, but for the nodes named in `whole`, and make its functions its own.

    They are told of the handles of its variables and of those that it reads, whose nodes are in `handles` by name.
    Random ops get fresh seeds, which follow from `scope`, unless `keep_seeds`. All that is the copy's own runs on
    `device`, if that is given.
    """
    library = _Library(graph_def.library.function, scope, device=device, keep_seeds=keep_seeds)
    nodes = library.inlined(graph_def.node, library.in_graph, whole)
    held = {
        name: _Held(dtype=node.attr["dtype"].type, shape=node.attr["shape"].shape)
        for name, node in ({node.name: node for node in nodes} | {**handles}).items()
        if node.op == "VarHandleOp"
    }
    nodes += library.adapted(nodes, scope, held, in_function=False)
    del graph_def.node[:]
    graph_def.node.extend(nodes)
    kept = functions_called([*graph_def.library.function, *library.made], graph_def.node)
    graph_def.library.CopyFrom(type(graph_def.library)(function=kept, gradient=graph_def.library.gradient))


class _Library:
    """The functions of the source, and those made of them for one copy."""

    def __init__(self, library: Iterable[Any], scope: str, *, device: str | None, keep_seeds: bool) -> None:
        self._functions = {function.signature.name: function for function in library}
        self._scope, self._device, self._keep_seeds = scope, device, keep_seeds
        self._number = next(_numbers)
        self._own: dict[tuple[Any, ...], str] = {}  # by name and what the handles are of that are passed
        self._reseeded: dict[str, str] = {}
        self.made: list[Any] = []

    def inlined(self, nodes: Iterable[Any], spelling: _Spelling, whole: Collection[str] = ()) -> list[Any]:
        """The nodes, and those of the functions they call in place of plain calls."""
        flat = []
        waiting = [(node, frozenset[str]()) for node in nodes]
        while waiting:
            node, within = waiting.pop()
            name = functions(node)[0] if node.op in PLAIN_CALLS else ""
            function = self._functions.get(name)
            if function is None or name in within or node.name in whole or _is_whole(node, function):
                flat.append(node)
            else:
                *inner, end = _body(node, function, spelling)
                flat.append(end)
                waiting += [(each, within | {name}) for each in inner]
        return flat

    def in_graph(self, node: Any, name: str, result: str) -> str:
        """A tensor's name by its position among all that the node gives."""
        port = port_of(node, result, self._functions)
        return f"{name}:{port}" if port else name

    def adapted(self, nodes: Sequence[Any], place: str, held: Mapping[str, Any], *, in_function: bool) -> list[Any]:
        """Change the nodes to what a copy has, `held` being what the variables hold whose handles they read, by name.
        Returns the nodes to add."""
        added = [] if self._keep_seeds else seeds.refresh(nodes, place, in_function=in_function)
        for node in nodes:
            if node.op in CALLS:
                passed = [held.get(tensor) for tensor in data_inputs(node)[CALLS[node.op].first :]]
                if node.op in PLAIN_CALLS and not in_function:  # which TensorFlow has gradients for
                    passed = [None] * len(passed)
                set_functions(node, [self._made_own(name, passed) for name in functions(node)])
            elif not self._keep_seeds:
                rename_calls([node], {name: self._with_fresh_seeds(name) for name in called(node)})
        for node in (*nodes, *added):
            if self._device is not None:
                node.device = self._device
        return added

    def _made_own(self, name: str, passed: Sequence[Any]) -> str:
        """The name of a function for this copy alone, that says what the handles passed to it are of."""
        if name not in self._functions:
            return name
        key = (name, *(held.SerializeToString() if held else b"" for held in passed))
        if key not in self._own:
            self._own[key] = f"{name}__{self._number}_{len(self._own)}"
            function = self._copied(name, self._own[key])
            handles = {}
            for argument, held in zip(function.signature.input_arg, passed, strict=True):
                if held:
                    del argument.handle_data[:]
                    argument.handle_data.add().CopyFrom(held)
                    handles[argument.name] = held
            nodes = self.inlined(function.node_def, _in_function)
            nodes += self.adapted(nodes, f"{self._scope}/{name}", handles, in_function=True)
            refuse(nodes)
            del function.node_def[:]
            function.node_def.extend(nodes)
        return self._own[key]

    def _with_fresh_seeds(self, name: str) -> str:
        """The name of a function that is called by its name: another one where it draws random numbers."""
        if name in self._functions and name not in self._reseeded:
            self._reseeded[name] = name  # for one that calls itself
            nodes = self._functions[name].node_def
            names = {each: self._with_fresh_seeds(each) for node in nodes for each in called(node)}
            if any(map(seeds.has_seed, nodes)) or any(new != old for old, new in names.items()):
                self._reseeded[name] = f"{name}__{''.join(c if c.isalnum() else '_' for c in self._scope)}"
                function = self._copied(name, self._reseeded[name])
                function.node_def.extend(seeds.refresh(function.node_def, f"{self._scope}/{name}", in_function=True))
                rename_calls(function.node_def, names)
        return self._reseeded.get(name, name)

    def _copied(self, name: str, copy: str) -> Any:
        function = type(self._functions[name])()
        function.CopyFrom(self._functions[name])
        function.signature.name = copy
        self.made.append(function)
        return function


def _in_function(node: Any, name: str, result: str) -> str:
    return f"{name}:{result}"


def _is_whole(node: Any, function: Any) -> bool:
    return any(attributes[key].b for attributes in (node.attr, function.attr) for key in _WHOLE if key in attributes)


def _body(call: Any, function: Any, spelling: _Spelling) -> list[Any]:
    """The nodes of a function for one call of it; the last one takes the call's name."""
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
