"""What is in a GraphDef: its ops by count, its variables, where it begins and ends. Believes nothing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from google.protobuf.message import DecodeError

from paramsync import dtypes
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
_PLACEHOLDERS = frozenset({"Placeholder", "PlaceholderV2"})
_EFFECTS = ("Apply", "Assign", "NoOp", "ResourceApply", "Save")  # how ops begin that give nothing


@dataclass(frozen=True, slots=True)
class Spec:
    """An input, output or variable, and what the graph calls it. What the graph leaves open is None.

    In a shape None stands for a dimension of any size, and in place of all for any rank.
    """

    name: str
    dtype: str | None
    shape: Sequence[int | None] | None
    tensor: str | None = None


def parse(kind: Any, content: bytes, what: str) -> Any:
    """The message; `what` says whose it is. Raises GraphError where the bytes are no such message.

    Messages of `graph_def.proto` have parts that may come in any number as bytes, so that these are parsed one by one:
    a file can say in two bytes that there is one more of them.
    """
    try:
        return kind.FromString(content)
    except DecodeError as error:
        raise GraphError(f"{what}: expected a {kind.DESCRIPTOR.name}, found other bytes") from error


def sizes(shape: bundle_pb2.TensorShape) -> tuple[int | None, ...] | None:
    """A shape as a Spec has it."""
    return None if shape.unknown_rank else tuple(None if dim.size < 0 else dim.size for dim in shape.dim)


@dataclass(frozen=True, slots=True)
class Node:
    """What counts of a node. `calls` are the functions it names."""

    op: str
    inputs: tuple[str, ...]
    calls: tuple[str, ...]


class Outline:
    """What is in a graph and its functions."""

    def __init__(self, content: bytes, what: str) -> None:
        """Raises GraphError where `content` is not a GraphDef; `what` says whose it would be."""
        self._what = what
        self._counts = Counter[str]()
        self.placeholders: list[Spec] = []
        self.variables: list[Spec] = []
        graph = parse(pb.GraphDef, content, what)
        self._nodes = dict(self._read(graph.node, outermost=True))
        self._functions: dict[str, list[Node]] = {}
        for function in parse(pb.FunctionLibrary, graph.library, what).function:
            self._count("functions", 1, NODES)
            definition = parse(pb.FunctionDef, function, what)
            self._functions[definition.signature.name] = [node for _, node in self._read(definition.node_def)]
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
                for tensor in node.inputs:
                    readers.setdefault(node_of(tensor), []).append(name)
        waiting = [placeholder.name for placeholder in self.placeholders]
        dependent: dict[str, None] = {}  # in order
        while waiting:
            for name in readers.get(waiting.pop(), ()):
                if name not in dependent:
                    dependent[name] = None
                    waiting.append(name)
        return [name for name in dependent if name not in readers]

    def reached(self, tensors: Iterable[str]) -> set[str]:
        """The ops that these tensors of the graph depend on, those in functions included."""
        entered: dict[str, Node] = {}
        waiting = [node_of(tensor) for tensor in tensors]
        while waiting:
            name = waiting.pop()
            if name not in entered and name in self._nodes:
                entered[name] = self._nodes[name]
                waiting += map(node_of, entered[name].inputs)
        ops: set[str] = set()
        functions: set[str] = set()
        nodes = list(entered.values())
        while nodes:
            node = nodes.pop()
            ops.add(node.op)
            for name in (node.op, *node.calls):
                if name in self._functions and name not in functions:
                    functions.add(name)
                    nodes += self._functions[name]
        return ops - self._functions.keys()

    def _read(self, nodes: Iterable[bytes], *, outermost: bool = False) -> Iterator[tuple[str, Node]]:
        for content in nodes:
            self._count("nodes", 1, NODES)
            node = parse(pb.NodeDef, content, self._what)
            if not (node.name and node.op):
                raise GraphError(f"{self._what}: expected nodes with a name and an op, found one without")
            self._count("inputs of nodes", len(node.input), EDGES)
            if outermost and node.op in _VARIABLES:
                self.variables.append(_spec(node))
            if outermost and node.op in _PLACEHOLDERS:
                self.placeholders.append(_spec(node))
            attributes = list(node.attr.values())
            calls = [value.func.name for value in attributes if value.HasField("func")]
            calls += [function.name for value in attributes for function in value.list.func]
            yield node.name, Node(node.op, tuple(node.input), tuple(calls))

    def _count(self, what: str, more: int, limit: int) -> None:
        self._counts[what] += more
        if self._counts[what] > limit:
            raise GraphError(f"{self._what}: expected at most {limit} {what}, found more")


def unsafe(ops: Iterable[str]) -> list[str]:
    """Those that a graph of somebody else's may use only where they are allowed by name."""
    return sorted(set(ops) - SAFE - _LIFTED - _TABLES)


def _spec(node: pb.NodeDef) -> Spec:
    """A placeholder or variable, as its node describes it."""
    dtype = dtypes.name(node.attr["dtype"].type) if "dtype" in node.attr else None
    shape = sizes(node.attr["shape"].shape) if "shape" in node.attr else None
    return Spec(node.name, dtype, shape, f"{node.name}:0")
