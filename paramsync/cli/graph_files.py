"""Where graphs are found: a store, a graph file, a `.meta` file, a SavedModel, a frozen graph. Needs no TensorFlow."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from paramsync import dtypes
from paramsync.cli.outline import Spec, parse, sizes
from paramsync.errors import CorruptCheckpointError, GraphError, StoreError
from paramsync.host import files
from paramsync.store.store import Store, is_digest
from paramsync.tensorbundle import index
from paramsync.tensorbundle.index import OBJECT_GRAPH
from paramsync.v1 import graph_def_pb2 as pb
from paramsync.v1 import graph_pb2
from paramsync.version import Version

SAVED_MODEL = "saved_model.pb"

_MOST_PARTS = 1 << 18  # parameters, tables or graphs: as many as a checkpoint may have tensors
_SERVING = "serve"  # the tag of the graph that predicts
_VALUE = "/.ATTRIBUTES/VARIABLE_VALUE"  # ends the keys of TensorFlow's object-based checkpoints
_UNNAMED = re.compile(r"variable(_\d+)?", re.IGNORECASE)  # what TensorFlow and Keras call one without a name
_OWN = "__saved_model_"  # begins the names of signatures that TensorFlow keeps for itself


@dataclass(frozen=True, slots=True)
class ParameterOutline(Spec):
    """`variable` is what the framework calls it; `bytes` are None where dtype or shape leave it open."""

    variable: str | None = None
    bytes: int | None = None


@dataclass(frozen=True, slots=True)
class SignatureOutline:
    """What can be asked of a graph."""

    inputs: Sequence[Spec]
    outputs: Sequence[Spec]


@dataclass(frozen=True, slots=True)
class Table:
    """A lookup table that travels with a graph: its node, the dtypes of its keys and values, how many it has."""

    node: str
    keys: str
    values: str
    entries: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredGraph:
    """A graph as it was found. `graph_def` is a GraphDef; `digest` is what a graph file says of itself.

    Without signatures, which `.meta` files and frozen graphs lack, those who use the graph name its inputs and outputs.
    Without parameters, its variables are.
    """

    path: Path
    kind: str
    graph_def: bytes
    parameters: Sequence[ParameterOutline] = ()
    signatures: Mapping[str, SignatureOutline] = field(default_factory=dict)
    tables: Sequence[Table] = ()
    digest: str | None = None


def shown_names(names: Iterable[tuple[str, str | None]]) -> dict[str, str]:
    """What people are shown for parameters, of which the name and that of the variable are given, if it is known.

    TensorFlow's key of a compiled Keras model's variable leads through the optimizer, and misleads who reads it: where
    only one parameter has a variable of that name it is called like that. Other keys lose the ending that all have, and
    so do those of variables that nobody named.
    """
    pairs = [
        (name, variable if variable and not _UNNAMED.fullmatch(variable) else name.removesuffix(_VALUE))
        for name, variable in names
    ]
    counts = Counter(shown for _, shown in pairs)
    return {name: shown if counts[shown] == 1 else name for name, shown in pairs}


def variables(content: bytes, what: str) -> dict[str, str | None]:
    """What the framework calls the variable of each parameter of a graph file. Raises GraphError."""
    return {each.name: each.variable for each in _parameters(parse(pb.GraphFile, content, what), what)}


def variables_of(store: Store, version: Version) -> dict[str, str | None]:
    """The same of a version's graph; nothing where there is none, or where it cannot be read."""
    if not version.graph:
        return {}
    path = store.graph_file(version.graph)
    try:
        return variables(files.content(path, limit=files.MAX_MESSAGE), str(path))
    except (OSError, CorruptCheckpointError, GraphError):
        return {}


def parameter(spec: Spec, variable: str | None = None) -> ParameterOutline:
    """With its size, as far as that is known."""
    dtype = None if spec.dtype is None else dtypes.named(spec.dtype)
    known = [size for size in spec.shape or () if size is not None]
    is_known = spec.shape is not None and len(known) == len(spec.shape)
    size = math.prod(known) * dtype.itemsize if is_known and dtype is not None and dtype.kind != "O" else None
    return ParameterOutline(spec.name, spec.dtype, spec.shape, spec.tensor, variable, size)


def find(path: Path) -> StoredGraph:
    """The graph that a path leads to. Raises GraphError, StoreError, CorruptCheckpointError."""
    if not path.is_dir():
        return _read(path, path.resolve())  # who names a link means what it leads to
    if (path / SAVED_MODEL).exists():
        return _read(path / SAVED_MODEL)
    return _read(_in_store(path))


def _in_store(path: Path) -> Path:
    """The graph of the newest version, or the only one that is there."""
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
    if content[:1] == b"\x08":  # of all of these only a SavedModel begins with a number
        return _saved_model(path, content)
    return _graph_file(path, content) or StoredGraph(path=path, kind="frozen graph", graph_def=content)


def _graph_file(path: Path, content: bytes) -> StoredGraph | None:
    """None for another file, which has nothing where a graph file has its digest."""
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
    """The parameters as the checkpoint in a SavedModel names them; none where it has none, or a broken one."""
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
    """A tensor, or those that a sparse, ragged or other composite one is made of."""
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
