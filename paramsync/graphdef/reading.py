"""Reads names in GraphDefs, whoever parsed them: of tensors, and of the functions that nodes call."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any


def node_of(tensor: str) -> str:
    """The node of an input, which nodes spell "x", "x:1", in functions "x:output:0", and "^x" for one to wait for."""
    return tensor.removeprefix("^").partition(":")[0]


def full(tensor: str) -> str:
    """The name of a tensor of a graph (not of a function) with its port, which GraphDefs leave out where it is 0."""
    return tensor if ":" in tensor or tensor.startswith("^") else f"{tensor}:0"


def fresh(name: str, taken: Collection[str]) -> str:
    """This name, or a similar one that is not taken."""
    candidate, count = name, 0
    while candidate in taken:
        count += 1
        candidate = f"{name}_{count}"
    return candidate


def functions_of(attributes: Mapping[str, Any]) -> Iterator[Any]:
    """Every reference to a function in these attributes, and in the attributes of these references in turn."""
    for value in attributes.values():
        kind = value.WhichOneof("value")
        for function in (value.func,) if kind == "func" else value.list.func if kind == "list" else ():
            yield function
            yield from functions_of(function.attr)


def called(node: Any) -> list[str]:
    """Every function that a node may call: its op, if that is a function, and those in its attributes."""
    return [node.op, *(function.name for function in functions_of(node.attr) if function.name)]


def rename_calls(nodes: Iterable[Any], names: Mapping[str, str]) -> None:
    """Rename these functions in the nodes that call them."""
    for node in nodes:
        node.op = names.get(node.op, node.op)
        for function in functions_of(node.attr):
            function.name = names.get(function.name, function.name)


def functions_called(library: Iterable[Any], nodes: Iterable[Any]) -> list[Any]:
    """The functions of a library that these nodes call, and those that they call in turn."""
    known = {function.signature.name: function for function in library}
    reached: dict[str, Any] = {}
    waiting = [name for node in nodes for name in called(node)]
    while waiting:
        name = waiting.pop()
        if name in known and name not in reached:
            reached[name] = known[name]
            waiting += [inner for node in known[name].node_def for inner in called(node)]
    return list(reached.values())
