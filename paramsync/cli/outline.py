"""What is in a GraphDef: its ops by count, its variables, where it begins and ends. Believes nothing.

Nodes are read one by one: a file can say in two bytes that there is one more of them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from paramsync.cli import fields
from paramsync.errors import GraphError
from paramsync.graphdef.allowed_ops import NODES, SAFE
from paramsync.graphdef.reading import node_of
from paramsync.v1 import bundle_pb2
from paramsync.v1 import graph_def_pb2 as pb

EDGES = 5_000_000
"""Inputs of all of them."""

_VARIABLES = frozenset({"VarHandleOp", "Variable", "VariableV2"})
# What capturing a graph takes away: variables and what reads them.
_LIFTED = _VARIABLES | {
    "IsVariableInitialized",
    "ReadVariableOp",
    "ResourceGather",
    "ResourceGatherNd",
    "VarIsInitializedOp",
    "VariableShape",
}
_TABLES = frozenset({"HashTable", "HashTableV2", "MutableHashTable", "MutableHashTableV2"})
_ATTRIBUTE = 1 << 16  # bytes; a larger one is a constant's value
_PLACEHOLDERS = frozenset({"Placeholder", "PlaceholderV2"})
_EFFECTS = ("Apply", "Assign", "NoOp", "ResourceApply", "Save")  # how ops begin that give nothing


@dataclass(frozen=True, slots=True)
class Tensor:
    """What a tensor is called in the graph, and what its node says of it; None where it does not say."""

    name: str
    tensor: str
    dtype: int | None
    shape: bundle_pb2.TensorShape | None


@dataclass(frozen=True, slots=True)
class Node:
    """What counts of a node. `calls` are the functions it names."""

    op: str
    inputs: tuple[str, ...]
    calls: tuple[str, ...]


class Outline:
    """What is in a graph and its functions."""

    def __init__(self, content: memoryview, what: str) -> None:
        """Raises GraphError where `content` is not a GraphDef; `what` says whose it would be."""
        self._what = what
        self._counts = Counter[str]()
        self.placeholders: list[Tensor] = []
        self.variables: list[Tensor] = []
        nodes = fields.each(content, pb.GraphDef.NODE_FIELD_NUMBER, what, limit=NODES)
        self._nodes = dict(self._read(nodes, outermost=True))
        self._functions: dict[str, list[Node]] = {}
        library = fields.last(content, pb.GraphDef.LIBRARY_FIELD_NUMBER, what)
        for one in fields.each(library, pb.FunctionLibrary.FUNCTION_FIELD_NUMBER, what, limit=NODES):
            head = fields.build(pb.FunctionDef, one, what, without=[pb.FunctionDef.NODE_DEF_FIELD_NUMBER])
            body = fields.each(one, pb.FunctionDef.NODE_DEF_FIELD_NUMBER, what, limit=NODES)
            self._functions[head.signature.name] = [node for _, node in self._read(body)]
        if not self._nodes:
            raise GraphError(f"{what}: expected a graph, found one without nodes")

    @property
    def functions(self) -> int:
        return len(self._functions)

    def ops(self) -> Counter[str]:
        """How often each op occurs; the nodes of a function count once, however often it is called."""
        bodies = (self._nodes.values(), *self._functions.values())
        return Counter(node.op for nodes in bodies for node in nodes if node.op not in self._functions)

    def ends(self) -> list[str]:
        """The nodes that may be results: they depend on a placeholder, and no other such node reads them.

        What training adds to a graph does not count.
        """
        readers: dict[str, list[str]] = {}
        for name, node in self._nodes.items():
            if not (node.op.startswith(_EFFECTS) or "gradients" in name.split("/")):
                for one in node.inputs:
                    readers.setdefault(node_of(one), []).append(name)
        waiting = [one.name for one in self.placeholders]
        found: dict[str, None] = {}  # in order
        while waiting:
            for name in readers.get(waiting.pop(), ()):
                if name not in found:
                    found[name] = None
                    waiting.append(name)
        return [name for name in found if name not in readers]

    def reached(self, tensors: Iterable[str]) -> set[str]:
        """The ops that these tensors of the graph depend on."""
        entered: set[str] = set()
        waiting = [node_of(one) for one in tensors]
        found: set[str] = set()
        functions: set[str] = set()
        while waiting:
            name = waiting.pop()
            if name in entered or name not in self._nodes:
                continue
            entered.add(name)
            node = self._nodes[name]
            found.add(node.op)
            waiting += map(node_of, node.inputs)
            self._enter(node, functions)
        for name in functions:
            found |= {node.op for node in self._functions[name]}
        return found - self._functions.keys()

    def _enter(self, node: Node, functions: set[str]) -> None:
        """Add what a node calls, and what is called there, to `functions`."""
        waiting = [node]
        while waiting:
            one = waiting.pop()
            for name in (one.op, *one.calls):
                if name in self._functions and name not in functions:
                    functions.add(name)
                    waiting += self._functions[name]

    def _read(self, nodes: Iterable[memoryview], *, outermost: bool = False) -> Iterator[tuple[str, Node]]:
        for content in nodes:
            node = fields.build(pb.NodeDef, content, self._what, largest=_ATTRIBUTE)
            if not (node.name and node.op):
                raise GraphError(f"{self._what}: expected nodes with a name and an op, found one without")
            self._count("nodes", 1, NODES)
            self._count("inputs of nodes", len(node.input), EDGES)
            if outermost and node.op in _VARIABLES:
                self.variables.append(_tensor(node))
            if outermost and node.op in _PLACEHOLDERS:
                self.placeholders.append(_tensor(node))
            values = list(node.attr.values())
            calls = [one.func.name for one in values if one.HasField("func")]
            calls += [func.name for one in values if one.HasField("list") for func in one.list.func]
            yield node.name, Node(node.op, tuple(node.input), tuple(calls))

    def _count(self, what: str, more: int, limit: int) -> None:
        self._counts[what] += more
        if self._counts[what] > limit:
            raise GraphError(f"{self._what}: expected at most {limit} {what}, found more")


def unsafe(ops: Iterable[str]) -> list[str]:
    """Those that a graph of somebody else's may use only where they are allowed by name."""
    return sorted(set(ops) - SAFE - _LIFTED - _TABLES)


def _tensor(node: pb.NodeDef) -> Tensor:
    attributes: Mapping[str, pb.AttrValue] = node.attr
    dtype = attributes["dtype"].type if "dtype" in attributes else None
    shape = attributes["shape"].shape if "shape" in attributes else None
    return Tensor(node.name, f"{node.name}:0", dtype, shape)
