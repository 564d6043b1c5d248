"""Reads GraphDefs of any protobuf class: names of tensors, and the functions that nodes call."""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping
from typing import Any, TypeVar

_Place = TypeVar("_Place", bound=Hashable)


def reach(start: Iterable[_Place], following: Callable[[_Place], Iterable[_Place]]) -> dict[_Place, None]:
    """Return all places that `start` leads to, including `start`. `following` returns a place's successors."""
    reached: dict[_Place, None] = {}
    waiting = list(start)
    while waiting:
        place = waiting.pop()
        if place not in reached:
            reached[place] = None
            waiting += following(place)
    return reached


def readers_of(nodes: Iterable[Any]) -> dict[str, list[str]]:
    """Return, by each node's name, the names of the nodes that read the node or wait for it."""
    readers: dict[str, list[str]] = {}
    for node in nodes:
        for tensor in node.input:
            readers.setdefault(node_of(tensor), []).append(node.name)
    return readers


def node_of(tensor: str) -> str:
    """Return the node of an input: x for "x", "x:1", "x:output:0" (in a function) and "^x" (a control input)."""
    return tensor.removeprefix("^").partition(":")[0]


def full(tensor: str) -> str:
    """Add the output number ":0" to the name of a tensor in a graph, if it is missing. Not for tensors of functions."""
    return tensor if ":" in tensor or tensor.startswith("^") else f"{tensor}:0"


def prefixed(tensor: str, prefix: str) -> str:
    """Return the name of a node's input with this prefix."""
    return f"^{prefix}{tensor[1:]}" if tensor.startswith("^") else prefix + tensor


def data_inputs(node: Any) -> list[str]:
    """Return the inputs of a node, without control inputs."""
    return [tensor for tensor in node.input if not tensor.startswith("^")]


def control_inputs(node: Any) -> list[str]:
    """Return the control inputs of a node, spelled "^x"."""
    return [tensor for tensor in node.input if tensor.startswith("^")]


def bodies(graph_def: Any) -> Iterator[tuple[str, Any]]:
    """Yield the nodes of the graph, with the name "", and of each function, with its name."""
    yield "", graph_def.node
    for function in graph_def.library.function:
        yield function.signature.name, function.node_def


def every_node(graph_def: Any) -> Iterator[Any]:
    """Return the nodes of the graph and of its functions."""
    return (node for _, nodes in bodies(graph_def) for node in nodes)


def origin(nodes: Mapping[str, Any], tensor: str, passing: Collection[str] = ("Identity",)) -> str:
    """Return the node that computes a tensor. Skips nodes with the ops in `passing`, which only pass their input on."""
    name, seen = node_of(tensor), set[str]()
    while name in nodes and nodes[name].op in passing and nodes[name].input and name not in seen:
        seen.add(name)
        name = node_of(nodes[name].input[0])
    return name


def fresh(name: str, taken: Collection[str]) -> str:
    """Return this name, with a number if the name is taken."""
    candidate, count = name, 0
    while candidate in taken:
        count += 1
        candidate = f"{name}_{count}"
    return candidate


def functions_of(attributes: Mapping[str, Any]) -> Iterator[Any]:
    """Yield every reference to a function in these attributes, and in the attributes of these references."""
    for value in attributes.values():
        kind = value.WhichOneof("value")
        for function in (value.func,) if kind == "func" else value.list.func if kind == "list" else ():
            yield function
            yield from functions_of(function.attr)


def called(node: Any) -> list[str]:
    """Return the names that a node may call: its op, which may be a function, and the functions in its attributes."""
    return [node.op, *(function.name for function in functions_of(node.attr) if function.name)]


def rename_calls(nodes: Iterable[Any], names: Mapping[str, str]) -> None:
    """Replace the names of functions in the nodes that call them. `names` maps old to new names."""
    for node in nodes:
        node.op = names.get(node.op, node.op)
        for function in functions_of(node.attr):
            function.name = names.get(function.name, function.name)


def functions_called(library: Iterable[Any], nodes: Iterable[Any]) -> list[Any]:
    """Return the functions of a library that these nodes call, directly or indirectly."""
    known = {function.signature.name: function for function in library}
    start = (name for node in nodes for name in called(node) if name in known)
    names = reach(start, lambda name: (each for node in known[name].node_def for each in called(node) if each in known))
    return [known[name] for name in names]


def callees_first(calls: Mapping[str, Collection[str]]) -> Iterator[str]:
    """Yield each function after the functions that it calls. Raises RecursionError with a recursive function's name.

    This is not written recursively, because a hostile graph may nest functions deeper than Python's stack.
    """
    done: set[str] = set()
    entered: set[str] = set()
    waiting = list(calls)
    while waiting:
        name = waiting[-1]
        left = [] if name in done else [callee for callee in calls[name] if callee in calls and callee not in done]
        if left:
            entered.add(name)
            looped = next((callee for callee in left if callee in entered), None)
            if looped is not None:
                raise RecursionError(looped)
            waiting += dict.fromkeys(left)
        else:
            waiting.pop()
            if name not in done:
                done.add(name)
                yield name
