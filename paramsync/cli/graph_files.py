"""Reads graphs without TensorFlow, from a store, a graph file, a `.meta` file, a SavedModel, or a frozen graph."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from google.protobuf.message import DecodeError

from paramsync import dtypes
from paramsync.errors import CorruptCheckpointError, GraphError, StoreError
from paramsync.graphdef.allowed_ops import NODES, SAFE
from paramsync.graphdef.reading import node_of
from paramsync.host import files
from paramsync.store.store import Store, is_digest
from paramsync.tensorbundle import index
from paramsync.tensorbundle.index import OBJECT_GRAPH
from paramsync.v1 import bundle_pb2, graph_pb2
from paramsync.v1 import graph_def_pb2 as pb
from paramsync.version import Version

SAVED_MODEL = "saved_model.pb"

_MOST_PARTS = 1 << 18  # most parameters, tables or graphs of a file: as many as a checkpoint may have tensors
_SERVING = "serve"  # the tag of the graph that predicts
_VALUE = "/.ATTRIBUTES/VARIABLE_VALUE"  # ends the keys of TensorFlow's object-based checkpoints
_UNNAMED = re.compile(r"variable(_\d+)?", re.IGNORECASE)  # names that TensorFlow and Keras make up
_OWN = "__saved_model_"  # the prefix of TensorFlow's internal signatures


@dataclass(frozen=True, slots=True)
class Spec:
    """An input, output or variable. `tensor` is its name in the graph.

    A shape of None means any rank, and a dimension of None means any size.
    """

    name: str
    dtype: str | None
    shape: Sequence[int | None] | None
    tensor: str | None = None


@dataclass(frozen=True, slots=True)
class ParameterOutline(Spec):
    """A parameter. `variable` is the framework's name; `bytes` is None if dtype or shape are not fixed."""

    variable: str | None = None
    bytes: int | None = None


@dataclass(frozen=True, slots=True)
class SignatureOutline:
    """A signature: the inputs and outputs of a graph."""

    inputs: Sequence[Spec]
    outputs: Sequence[Spec]


@dataclass(frozen=True, slots=True)
class Table:
    """A lookup table of a graph: its node, the dtypes of its keys and values, and the number of entries."""

    node: str
    keys: str
    values: str
    entries: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredGraph:
    """A graph and the facts in its file. `graph_def` is a serialised GraphDef. Only graph files have a `digest`.

    Frozen graphs have no signatures. If `parameters` is empty, the graph's variables are its parameters.
    """

    path: Path
    kind: str
    graph_def: bytes
    parameters: Sequence[ParameterOutline] = ()
    signatures: Mapping[str, SignatureOutline] = field(default_factory=dict)
    tables: Sequence[Table] = ()
    digest: str | None = None


def shown_names(names: Iterable[tuple[str, str | None]]) -> dict[str, str]:
    """Return the names to show for parameters, given as pairs of a name and the name of its variable, if known.

    For a variable of a compiled Keras model, TensorFlow's key is a path through the optimizer, which is confusing. So a
    parameter is shown by its variable's name if a person gave that name, otherwise by its key without the ending that
    all keys have. If several parameters would be shown alike, each is shown by its whole key.
    """
    pairs = [
        (name, variable if variable and not _UNNAMED.fullmatch(variable) else name.removesuffix(_VALUE))
        for name, variable in names
    ]
    counts = Counter(shown for _, shown in pairs)
    return {name: shown if counts[shown] == 1 else name for name, shown in pairs}


def variables(content: bytes, what: str) -> dict[str, str | None]:
    """Return the framework's variable name of each parameter in a graph file. Raises GraphError."""
    return {each.name: each.variable for each in _parameters(parse(pb.GraphFile, content, what), what)}


def variables_of(store: Store, version: Version) -> dict[str, str | None]:
    """Return the result of `variables` for a version's graph; empty if there is no graph or it cannot be read."""
    if not version.graph:
        return {}
    path = store.graph_file(version.graph)
    try:
        return variables(files.content(path, limit=files.MAX_MESSAGE), str(path))
    except (OSError, CorruptCheckpointError, GraphError):
        return {}


def parameter(spec: Spec, variable: str | None = None) -> ParameterOutline:
    """Return the outline of a parameter, with its size if dtype and shape are fixed."""
    dtype = None if spec.dtype is None else dtypes.named(spec.dtype)
    known = [size for size in spec.shape or () if size is not None]
    is_known = spec.shape is not None and len(known) == len(spec.shape)
    size = math.prod(known) * dtype.itemsize if is_known and dtype is not None and dtype.kind != "O" else None
    return ParameterOutline(spec.name, spec.dtype, spec.shape, spec.tensor, variable, size)


def find(path: Path) -> StoredGraph:
    """Return the graph at a path. Raises GraphError, StoreError, CorruptCheckpointError."""
    if not path.is_dir():
        return _read(path, path.resolve())  # follows a link, which `files.content` would refuse
    if (path / SAVED_MODEL).exists():
        return _read(path / SAVED_MODEL)
    return _read(_in_store(path))


def _in_store(path: Path) -> Path:
    """Return the graph of the newest version of a store, or its only graph."""
    version = Store(path).latest()
    if version is None:
        graphs = sorted(path.glob("graph-*.pb"))
        if len(graphs) == 1:
            return graphs[0]
        found = f"{len(graphs)} graphs and no version" if graphs else "none of them"
        raise GraphError(f"{path}: expected a store with a version or a graph, or a SavedModel, found {found}")
    if version.graph:
        return Store(path).graph_file(version.graph)
    meta = path / f"{version.prefix}.meta"
    if meta.exists():
        return meta
    expected = f"expected {meta.name}, which Saver.save writes unless told not to"
    raise StoreError(path, f"version {version.number} came without a graph: {expected}")


def _read(path: Path, target: Path | None = None) -> StoredGraph:
    try:
        content = files.content(target or path, limit=files.MAX_MESSAGE)
    except OSError as error:
        raise GraphError(f"{path}: cannot be read: {error.strerror}") from error
    if path.suffix == ".meta":
        return _meta_graph(path, content, "meta graph")
    if content[:1] == b"\x08":  # only a SavedModel's first field is a number
        return _saved_model(path, content)
    return _graph_file(path, content) or StoredGraph(path=path, kind="frozen graph", graph_def=content)


def _graph_file(path: Path, content: bytes) -> StoredGraph | None:
    """Return the graph of a graph file; None for a file without a digest."""
    what = str(path)
    try:
        file = parse(pb.GraphFile, content, what)
    except GraphError:
        return None
    if not is_digest(file.digest):
        return None
    return StoredGraph(
        path=path,
        kind="graph file",
        graph_def=file.graph_def,
        parameters=_parameters(file, what),
        signatures={name: _signature(file.signatures[name], what) for name in sorted(file.signatures)},
        tables=[_table(table, what) for table in _limited(file.tables, what)],
        digest=file.digest,
    )


def _saved_model(path: Path, content: bytes) -> StoredGraph:
    what = str(path)
    graphs = _limited(parse(pb.SavedModel, content, what).meta_graphs, what)
    if not graphs:
        raise GraphError(f"{what}: expected a SavedModel, found one without graphs")
    tags = (parse(pb.MetaGraphDef, graph, what).meta_info_def.tags for graph in graphs)
    serving = next((graph for graph, names in zip(graphs, tags, strict=True) if _SERVING in names), graphs[0])
    stored = _meta_graph(path, serving, "SavedModel")
    return replace(stored, parameters=_saved(path.parent / "variables" / "variables"))


def _saved(prefix: Path) -> list[ParameterOutline]:
    """Return the parameters in the checkpoint of a SavedModel; none if the checkpoint is missing or broken."""
    try:
        entries = index.read(index.index_file(prefix)).entries
    except CorruptCheckpointError:
        return []
    return [
        parameter(Spec(name, dtypes.name(entry.dtype), entry.shape))
        for name, entry in sorted(entries.items())
        if name != OBJECT_GRAPH
    ]


def _meta_graph(path: Path, content: bytes, kind: str) -> StoredGraph:
    meta = parse(pb.MetaGraphDef, content, str(path))
    signatures = {
        name: SignatureOutline(_infos(signature.inputs), _infos(signature.outputs))
        for name, signature in sorted(meta.signature_def.items())
        if not name.startswith(_OWN)
    }
    return StoredGraph(path=path, kind=kind, graph_def=meta.graph_def, signatures=signatures)


def _infos(infos: Mapping[str, pb.TensorInfo]) -> list[Spec]:
    return [spec for name, info in sorted(infos.items()) for spec in _info(name, info)]


def _info(name: str, info: pb.TensorInfo) -> list[Spec]:
    """Return one tensor, or the parts of a sparse, ragged or other composite tensor."""
    dtype, shape = dtypes.name(info.dtype), sizes(info.tensor_shape)
    if info.WhichOneof("encoding") == "coo_sparse":
        sparse, rank = info.coo_sparse, None if shape is None else len(shape)
        return [
            Spec(f"{name}_indices", "int64", (None, rank), sparse.indices_tensor_name),
            Spec(f"{name}_values", dtype, (None,), sparse.values_tensor_name),
            Spec(f"{name}_dense_shape", "int64", (rank,), sparse.dense_shape_tensor_name),
        ]
    if info.WhichOneof("encoding") == "composite_tensor":
        parts = enumerate(info.composite_tensor.components)
        return [
            Spec(f"{name}_{at}", dtypes.name(part.dtype), sizes(part.tensor_shape), part.name) for at, part in parts
        ]
    return [Spec(name, dtype, shape, info.name)]


def _signature(content: bytes, what: str) -> SignatureOutline:
    signature = parse(graph_pb2.Signature, content, what)
    return SignatureOutline(list(map(_endpoint, signature.inputs)), list(map(_endpoint, signature.outputs)))


def _endpoint(endpoint: graph_pb2.Endpoint) -> Spec:
    return Spec(endpoint.name, dtypes.name(endpoint.dtype), sizes(endpoint.shape), endpoint.tensor)


def _parameters(file: pb.GraphFile, what: str) -> list[ParameterOutline]:
    parameters = [parse(graph_pb2.Parameter, content, what) for content in _limited(file.parameters, what)]
    return [
        parameter(Spec(each.name, dtypes.name(each.dtype), sizes(each.shape), f"{each.node}:0"), each.variable or None)
        for each in parameters
    ]


def _table(content: bytes, what: str) -> Table:
    table = parse(graph_pb2.Table, content, what)
    keys, values = (parse(pb.TensorHead, tensor, what) for tensor in (table.keys, table.values))
    shape = sizes(keys.tensor_shape)
    return Table(table.node, dtypes.name(keys.dtype), dtypes.name(values.dtype), shape[0] if shape else None)


def _limited(parts: Sequence[bytes], what: str) -> Sequence[bytes]:
    if len(parts) > _MOST_PARTS:
        raise GraphError(f"{what}: expected at most {_MOST_PARTS} of each part, found {len(parts)}")
    return parts


# The outline of a GraphDef: its ops, variables, placeholders and possible results. The file may be malicious. ---------

EDGES = 5_000_000
"""The most inputs of all nodes together."""

_VARIABLES = frozenset({"VarHandleOp", "Variable", "VariableV2"})
# Ops that are variables or read variables. Capturing a graph replaces all of them.
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
_EFFECTS = ("Apply", "Assign", "NoOp", "ResourceApply", "Save")  # prefixes of ops without results


def parse(kind: Any, content: bytes, what: str) -> Any:
    """Parse a message; `what` names its file in errors. Raises GraphError if the bytes are not such a message.

    Messages of `graph_def.proto` have each repeated part as unparsed bytes, so that parts can be counted first: a part
    of two bytes in the file may take a hundred bytes in memory.
    """
    try:
        return kind.FromString(content)
    except DecodeError as error:
        raise GraphError(f"{what}: expected a {kind.DESCRIPTOR.name}, found other bytes") from error


def sizes(shape: bundle_pb2.TensorShape) -> tuple[int | None, ...] | None:
    """Return a shape in the form of `Spec.shape`."""
    return None if shape.unknown_rank else tuple(None if dim.size < 0 else dim.size for dim in shape.dim)


@dataclass(frozen=True, slots=True)
class Node:
    """The parts of a node that an outline needs. `calls` are the names of functions that it calls."""

    op: str
    inputs: tuple[str, ...]
    calls: tuple[str, ...]


class Outline:
    """The ops of a graph and its functions; the graph's variables, placeholders and possible results (`ends`)."""

    def __init__(self, content: bytes, what: str) -> None:
        """Raises GraphError if `content` is not a GraphDef; `what` names its file in errors."""
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
        """Return how often each op occurs; the nodes of a function count once, however often it is called."""
        bodies = (self._nodes.values(), *self._functions.values())
        return Counter(node.op for nodes in bodies for node in nodes if node.op not in self._functions)

    def ends(self) -> list[str]:
        """Return the nodes that may be results: they depend on a placeholder, and no other node reads their outputs.

        Nodes that training adds, such as gradients, are ignored.
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
        """Return the ops that these tensors depend on, ops in functions included."""
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
    """Return the ops that are not on the list of safe ops. An inferencer serves such ops only if allowed by name."""
    return sorted(set(ops) - SAFE - _LIFTED - _TABLES)


def _spec(node: pb.NodeDef) -> Spec:
    """Describe a node that is a placeholder or a variable."""
    dtype = dtypes.name(node.attr["dtype"].type) if "dtype" in node.attr else None
    shape = sizes(node.attr["shape"].shape) if "shape" in node.attr else None
    return Spec(node.name, dtype, shape, f"{node.name}:0")
