"""Where graphs are found: a store, a graph file, a `.meta` file, a SavedModel, a frozen graph. Needs no TensorFlow."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from paramsync.cli import fields
from paramsync.cli.outline import Outline, Tensor
from paramsync.errors import CorruptCheckpointError, GraphError, StoreError
from paramsync.host import files
from paramsync.store.store import Store, is_digest
from paramsync.tensorbundle import index
from paramsync.tensorbundle.index import OBJECT_GRAPH
from paramsync.v1 import bundle_pb2, graph_pb2
from paramsync.v1 import graph_def_pb2 as pb

SAVED_MODEL = "saved_model.pb"

_MANY = 1 << 18  # parameters or tables: as many as a checkpoint may have tensors
_GRAPHS = 1000  # of a SavedModel; most have one
_INT64 = 9
_SERVING = "serve"  # the tag of the graph that predicts
_OWN = "__saved_model_"  # begins the names of signatures that TensorFlow keeps for itself

Shape = Sequence[int | None] | None
"""None for a dimension of any size; None in place of them all for any rank."""


@dataclass(frozen=True, slots=True)
class Spec:
    """An input, output or parameter. What the source leaves open is None.

    `tensor` is what the graph calls it, `variable` what the framework calls the variable of a parameter.
    """

    name: str
    dtype: int | None
    shape: Shape
    tensor: str | None = None
    variable: str | None = None


@dataclass(frozen=True, slots=True)
class Signature:
    """What can be asked of a graph."""

    inputs: Sequence[Spec]
    outputs: Sequence[Spec]


@dataclass(frozen=True, slots=True)
class Table:
    """A lookup table that travels with a graph."""

    node: str
    keys: Spec
    values: Spec


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """A graph as it was found. `graph_def` is a GraphDef; `digest` is what a graph file says of itself.

    Without signatures, which `.meta` files and frozen graphs lack, those who use the graph name its inputs and outputs.
    """

    path: Path
    kind: str
    graph_def: memoryview
    outline: Outline
    signatures: Mapping[str, Signature]
    parameters: Sequence[Spec]
    tables: Sequence[Table] = ()
    digest: str | None = None


def called(names: Iterable[tuple[str, str | None]]) -> dict[str, str]:
    """What people are shown for parameters, of which the name and that of the variable are given, if it is known.

    TensorFlow's key of a compiled Keras model's variable leads through the optimizer, and misleads who reads it: where
    only one parameter has a variable of that name it is called like that.
    """
    pairs = list(names)
    counts = Counter(variable for _, variable in pairs)
    return {name: variable if variable and counts[variable] == 1 else name for name, variable in pairs}


def variables(content: memoryview, what: str) -> dict[str, str | None]:
    """What the framework calls the variable of each parameter of a graph file. Raises GraphError."""
    parts = fields.each(content, pb.GraphFile.PARAMETERS_FIELD_NUMBER, what, limit=_MANY)
    parameters = [_parameter(fields.build(graph_pb2.Parameter, part, what)) for part in parts]
    return {one.name: one.variable for one in parameters}


def spec(tensor: Tensor) -> Spec:
    """A placeholder or variable, as its node describes it."""
    return Spec(tensor.name, tensor.dtype, _shape(tensor.shape), tensor.tensor)


def find(path: Path) -> Source:
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


def _read(path: Path, at: Path | None = None) -> Source:
    what = str(path)
    try:
        content = memoryview(files.content(at or path, limit=files.MAX_MESSAGE))
    except OSError as error:
        raise GraphError(f"{what}: cannot be read: {error.strerror}") from error
    if path.suffix == ".meta":
        return _meta_graph(path, content, "meta graph")
    if bytes(content[:1]) == b"\x08":  # of all of these only a SavedModel begins with a number
        return _saved_model(path, content)
    if is_digest(_digest(content)):
        return _graph_file(path, content)
    outline = Outline(content, what)
    return Source(
        path=path, kind="frozen graph", graph_def=content, outline=outline, signatures={},
        parameters=_variables(outline),
    )  # fmt: skip


def _digest(content: memoryview) -> str:
    """What a graph file says; nothing sensible for other files."""
    try:
        return bytes(fields.last(content, pb.GraphFile.DIGEST_FIELD_NUMBER, "")).decode()
    except (GraphError, UnicodeDecodeError):
        return ""


def _graph_file(path: Path, content: memoryview) -> Source:
    what = str(path)
    file = pb.GraphFile
    many = (file.GRAPH_DEF_FIELD_NUMBER, file.PARAMETERS_FIELD_NUMBER, file.TABLES_FIELD_NUMBER)
    head = fields.build(file, content, what, without=many)
    found = {name: fields.build(graph_pb2.Signature, memoryview(one), what) for name, one in head.signatures.items()}
    parameters = fields.each(content, file.PARAMETERS_FIELD_NUMBER, what, limit=_MANY)
    tables = fields.each(content, file.TABLES_FIELD_NUMBER, what, limit=_MANY)
    graph_def = fields.last(content, file.GRAPH_DEF_FIELD_NUMBER, what)
    return Source(
        path=path,
        kind="graph file",
        graph_def=graph_def,
        outline=Outline(graph_def, what),
        signatures={
            name: Signature([_endpoint(one) for one in signature.inputs], [_endpoint(one) for one in signature.outputs])
            for name, signature in sorted(found.items())
        },
        parameters=[_parameter(fields.build(graph_pb2.Parameter, one, what)) for one in parameters],
        tables=[_table(one, what) for one in tables],
        digest=head.digest,
    )


def _saved_model(path: Path, content: memoryview) -> Source:
    what = str(path)
    found = list(fields.each(content, pb.SavedModel.META_GRAPHS_FIELD_NUMBER, what, limit=_GRAPHS))
    if not found:
        raise GraphError(f"{what}: expected a SavedModel, found one without graphs")
    serving = next((one for one in found if _SERVING in _head(one, what).meta_info_def.tags), found[0])
    source = _meta_graph(path, serving, "SavedModel")
    saved = _saved(path.parent / "variables" / "variables")
    return replace(source, parameters=saved) if saved else source


def _meta_graph(path: Path, content: memoryview, kind: str) -> Source:
    what = str(path)
    graph_def = fields.last(content, pb.MetaGraphDef.GRAPH_DEF_FIELD_NUMBER, what)
    outline = Outline(graph_def, what)
    return Source(
        path=path, kind=kind, graph_def=graph_def, outline=outline, signatures=_signatures(_head(content, what)),
        parameters=_variables(outline),
    )  # fmt: skip


def _head(content: memoryview, what: str) -> pb.MetaGraphDef:
    """A meta graph without its graph."""
    found: pb.MetaGraphDef = fields.build(
        pb.MetaGraphDef, content, what, without=[pb.MetaGraphDef.GRAPH_DEF_FIELD_NUMBER]
    )
    return found


def _signatures(meta: pb.MetaGraphDef) -> dict[str, Signature]:
    return {
        name: Signature(
            [spec for key, one in sorted(signature.inputs.items()) for spec in _info(key, one)],
            [spec for key, one in sorted(signature.outputs.items()) for spec in _info(key, one)],
        )
        for name, signature in sorted(meta.signature_def.items())
        if not name.startswith(_OWN)
    }


def _info(name: str, info: pb.TensorInfo) -> list[Spec]:
    """A tensor, or those that a sparse, ragged or other composite one is made of."""
    if info.WhichOneof("encoding") == "coo_sparse":
        sparse = info.coo_sparse
        rows = None if info.tensor_shape.unknown_rank else len(info.tensor_shape.dim)
        return [
            Spec(f"{name}_indices", _INT64, (None, rows), sparse.indices_tensor_name),
            Spec(f"{name}_values", info.dtype, (None,), sparse.values_tensor_name),
            Spec(f"{name}_dense_shape", _INT64, (rows,), sparse.dense_shape_tensor_name),
        ]
    if info.WhichOneof("encoding") == "composite_tensor":
        parts = enumerate(info.composite_tensor.components)
        return [Spec(f"{name}_{at}", one.dtype, _shape(one.tensor_shape), one.name) for at, one in parts]
    return [Spec(name, info.dtype, _shape(info.tensor_shape), info.name)]


def _saved(prefix: Path) -> list[Spec]:
    """The parameters as the checkpoint in a SavedModel names them; none where it has none, or a broken one."""
    try:
        entries = index.read(index.index_file(prefix)).entries
    except CorruptCheckpointError:
        return []
    return [Spec(name, one.dtype, one.shape) for name, one in sorted(entries.items()) if name != OBJECT_GRAPH]


def _variables(outline: Outline) -> list[Spec]:
    return [spec(one) for one in sorted(outline.variables, key=lambda one: one.name)]


def _endpoint(one: graph_pb2.Endpoint) -> Spec:
    return Spec(one.name, one.dtype, _shape(one.shape), one.tensor)


def _parameter(one: graph_pb2.Parameter) -> Spec:
    return Spec(one.name, one.dtype, _shape(one.shape), f"{one.node}:0", one.variable or None)


def _table(content: memoryview, what: str) -> Table:
    table = graph_pb2.Table
    tensors = (table.KEYS_FIELD_NUMBER, table.VALUES_FIELD_NUMBER)
    keys, values = (fields.head(pb.TensorHead, fields.last(content, one, what), what) for one in tensors)
    return Table(
        bytes(fields.last(content, table.NODE_FIELD_NUMBER, what)).decode(errors="replace"),
        Spec("keys", keys.dtype, _shape(keys.tensor_shape)),
        Spec("values", values.dtype, _shape(values.tensor_shape)),
    )


def _shape(shape: bundle_pb2.TensorShape | None) -> Shape:
    if shape is None or shape.unknown_rank:
        return None
    return tuple(None if dim.size < 0 else dim.size for dim in shape.dim)
