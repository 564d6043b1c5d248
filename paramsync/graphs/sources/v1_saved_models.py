"""SavedModels of TensorFlow 1: all the signatures of one, which share its variables."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

import tensorflow as tf
from google.protobuf.message import DecodeError
from tensorflow.core.protobuf import meta_graph_pb2, saved_model_pb2

from paramsync.checkpoint.reader import Bundle
from paramsync.errors import CorruptCheckpointError, GraphError
from paramsync.graphs.draft import Draft
from paramsync.graphs.safety.weight import SAVED_MODEL, check_weight
from paramsync.graphs.sources.meta_graphs import v1_graph
from paramsync.graphs.sources.structures import components
from paramsync.graphs.sources.traces import endpoint
from paramsync.graphs.sources.v1_tables import Asset, Foreign
from paramsync.host import files
from paramsync.v1 import graph_pb2

_INTERNAL = "__saved_model_"  # begins the names of signatures that are for whoever restores, not for callers
_SERVE = "serve"  # the tag of the graph that predicts


def parsed_saved_model(directory: Path) -> Any:
    """The message of the SavedModel in this directory. Raises GraphError, UnsafeGraphError for a monstrous one."""
    path = directory / "saved_model.pb"
    try:
        content = files.content(path, limit=files.MAX_MESSAGE)
    except (FileNotFoundError, NotADirectoryError) as error:
        raise GraphError(f"{directory}: expected a SavedModel, found no {path.name}") from error
    check_weight(content, SAVED_MODEL)
    try:
        return saved_model_pb2.SavedModel.FromString(content)
    except DecodeError as error:
        raise GraphError(f"{path} is not a readable SavedModel: {error}") from error


def variables(directory: Path) -> Bundle:
    """The checkpoint of the SavedModel in this directory. Raises CorruptCheckpointError, OSError."""
    folder = directory / "variables"
    try:
        with files.beneath(directory, folder.name) as descriptor:
            return Bundle.open(folder / "variables", mapped=False, folder=descriptor)
    except (FileNotFoundError, NotADirectoryError) as error:
        raise CorruptCheckpointError(folder, expected="the folder of a checkpoint", found=error.strerror) from error


def is_v1(saved: Any) -> bool:
    """Whether a SavedModel, its message, is one of TensorFlow 1, which knows nothing of objects."""
    return not any(meta.HasField("object_graph_def") for meta in saved.meta_graphs)


def draft_of_v1_saved_model(
    directory: Path,
    saved: Any,
    *,
    signatures: Collection[str] | None = None,
    allowed: Collection[str] = (),
) -> Draft:
    """All the signatures of the SavedModel in this directory, or those named; inputs and outputs are called as there.

    `saved` is its message, of whose graphs the one that predicts is taken; `allowed` names ops that may be run although
    they are not known to be safe. Parameters are called as in its `variables` checkpoint. Raises GraphError.
    """
    meta = _serving(directory, saved)
    where = str(directory)
    found = _signatures(meta)
    chosen = sorted(found if signatures is None else signatures)
    unknown = [name for name in chosen if name not in found]
    if unknown or not found:
        raise GraphError(
            f"{where}: expected signature {', '.join(unknown) or 'definitions'},"
            f" found {', '.join(sorted(found)) or 'none'}"
        )
    drafted = {
        name: graph_pb2.Signature(
            inputs=_endpoints(found[name].inputs, where),
            outputs=_endpoints(found[name].outputs, where),
            method_name=found[name].method_name,
        )
        for name in chosen
    }
    graph = v1_graph(meta, where, Foreign(_assets(directory, meta), allowed))
    return graph.draft(drafted, unused_inputs=True)


def signature_names(directory: Path, saved: Any) -> list[str]:
    """Those of the graph that predicts. Raises GraphError."""
    return sorted(_signatures(_serving(directory, saved)))


def _signatures(meta: Any) -> dict[str, Any]:
    return {name: one for name, one in meta.signature_def.items() if not name.startswith(_INTERNAL) and one.outputs}


def _serving(directory: Path, saved: Any) -> Any:
    for meta in saved.meta_graphs:
        if set(meta.meta_info_def.tags) == {_SERVE}:
            return meta
    listed = [", ".join(meta.meta_info_def.tags) for meta in saved.meta_graphs]
    raise GraphError(f"{directory}: expected a graph tagged {_SERVE}, found those tagged {' | '.join(listed)}")


def _endpoints(tensors: Mapping[str, Any], where: str) -> list[graph_pb2.Endpoint]:
    return [one for name in sorted(tensors) for one in _parts(name, tensors[name], where)]


def _parts(name: str, info: Any, where: str) -> Iterator[graph_pb2.Endpoint]:
    """One input or output; a sparse or ragged one is several."""
    try:
        if info.WhichOneof("encoding") == "coo_sparse":
            spec = tf.SparseTensorSpec(tf.TensorShape(info.tensor_shape), tf.as_dtype(info.dtype))
            sparse = info.coo_sparse
            tensors = (sparse.indices_tensor_name, sparse.values_tensor_name, sparse.dense_shape_tensor_name)
            for part, tensor, one in zip(components(name, spec), tensors, _component_specs(spec), strict=True):
                yield endpoint(part, tensor, one.dtype.as_datatype_enum, one.shape.as_proto())
        elif info.WhichOneof("encoding") == "composite_tensor":
            spec = tf.TypeSpec.experimental_from_proto(info.composite_tensor.type_spec)
            for part, one in zip(components(name, spec), info.composite_tensor.components, strict=True):
                yield endpoint(part, one.name, one.dtype, one.tensor_shape)
        else:
            yield endpoint(name, info.name, info.dtype, info.tensor_shape)
    except (ValueError, TypeError) as error:
        raise GraphError(f"{where}: {name!r} is of a kind that is not known here: {error}") from error


def _component_specs(spec: tf.SparseTensorSpec) -> list[tf.TensorSpec]:
    rank = spec.shape.rank
    return [
        tf.TensorSpec((None, rank), tf.int64),
        tf.TensorSpec((None,), spec.dtype),
        tf.TensorSpec((rank,), tf.int64),
    ]


def _assets(directory: Path, meta: Any) -> dict[str, Asset]:
    """The files that come with a SavedModel by the tensors that name them. Raises GraphError."""
    listed = list(meta.asset_file_def)
    if "saved_model_assets" in meta.collection_def:
        for content in meta.collection_def["saved_model_assets"].any_list.value:
            asset = meta_graph_pb2.AssetFileDef()
            try:
                known = content.Unpack(asset)
            except DecodeError:
                known = False
            if not known:
                raise GraphError(f"{directory} lists assets that are not readable")
            listed.append(asset)
    return {one.tensor_info.name: Asset(directory, one.filename) for one in listed}
