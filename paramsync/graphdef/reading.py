"""How GraphDefs are read, whoever parsed them: what their tensors are called, and which functions their nodes name."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any


def node_of(tensor: str) -> str:
    """The node of an input as nodes spell theirs: "x", "x:1", in functions "x:output:0", "^x" for one to wait for."""
    return tensor.removeprefix("^").partition(":")[0]


def full(tensor: str) -> str:
    """A tensor of a graph (not of a function) with its port, which GraphDefs leave out where it is 0."""
    return tensor if ":" in tensor or tensor.startswith("^") else f"{tensor}:0"


def fresh(name: str, taken: Collection[str]) -> str:
    """This name, or one like it that is not taken."""
    found, count = name, 0
    while found in taken:
        count += 1
        found = f"{name}_{count}"
    return found


def functions_of(attributes: Mapping[str, Any]) -> Iterator[Any]:
    """Whatever names a function in these attributes, and what that says of others in turn."""
    for value in attributes.values():
        kind = value.WhichOneof("value")
        for one in (value.func,) if kind == "func" else value.list.func if kind == "list" else ():
            yield one
            yield from functions_of(one.attr)


def called(node: Any) -> list[str]:
    """Every function a node may call: the one it is named after, if it is one, and those in its attributes."""
    return [node.op, *(one.name for one in functions_of(node.attr) if one.name)]


def rename_calls(nodes: Iterable[Any], names: Mapping[str, str]) -> None:
    """Let the nodes name these functions by their new names."""
    for node in nodes:
        node.op = names.get(node.op, node.op)
        for one in functions_of(node.attr):
            one.name = names.get(one.name, one.name)


def functions_called(library: Iterable[Any], nodes: Iterable[Any]) -> list[Any]:
    """Those functions of a library that these nodes call, and those that they call in turn."""
    known = {one.signature.name: one for one in library}
    found: dict[str, Any] = {}
    waiting = [name for node in nodes for name in called(node)]
    while waiting:
        name = waiting.pop()
        if name in known and name not in found:
            found[name] = known[name]
            waiting += [inner for node in known[name].node_def for inner in called(node)]
    return list(found.values())
