"""Drafts SavedModels. A SavedModel of TensorFlow 2 is first rewritten into the form of TensorFlow 1.

In a SavedModel of TensorFlow 2, functions restore the variables and fill the tables. The rewrite reads these functions
to find the checkpoint keys of the variables and the contents of the tables. It never runs them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import tensorflow as tf
from google.protobuf.message import DecodeError
from tensorflow.core.protobuf import meta_graph_pb2, saved_model_pb2

from paramsync.checkpoint.reader import Bundle
from paramsync.errors import CorruptCheckpointError, GraphError, UnfinishedError
from paramsync.graphdef.reading import node_of, origin
from paramsync.graphs.draft import Draft, finish
from paramsync.graphs.graph import Graph
from paramsync.graphs.nodes import PLAIN_CALLS, become, become_constant, inline, leading_to, with_functions
from paramsync.graphs.parameters import Ways
from paramsync.graphs.safety import SAVED_MODEL, check_weight
from paramsync.graphs.sources.meta_graphs import v1_graph
from paramsync.graphs.sources.structures import components, endpoint, endpoint_of
from paramsync.graphs.sources.table_contents import FILLERS, TABLES, Asset, Foreign
from paramsync.host import files
from paramsync.v1 import graph_pb2

_SERVE = "serve"  # the tag of the meta graph that predicts
_INTERNAL = "__saved_model_"  # prefix of internal signatures, such as the signature of the initialising operation
_MAIN = "__saved_model_init_op"
_MOST = 200_000  # the most operations of functions that restore or initialise
_TRIED = 64  # the most signatures that are built one by one, to find which can be served


class SavedModel:
    """The SavedModel in a directory, without its weights."""

    def __init__(self, directory: Path, *, allowed: Collection[str] = ()) -> None:
        """`allowed` are ops to accept although they are not on the list of safe ops.

        Raises GraphError, and the errors of `parsed_saved_model` and `variables`.
        """
        self._directory = directory
        self._allowed = allowed
        saved = parsed_saved_model(directory)
        self._meta = next((meta for meta in saved.meta_graphs if set(meta.meta_info_def.tags) == {_SERVE}), None)
        if self._meta is None:
            tags = " | ".join(", ".join(meta.meta_info_def.tags) for meta in saved.meta_graphs)
            raise GraphError(f"{directory}: expected a graph tagged {_SERVE}, found those tagged {tags}")
        self._keys: dict[str, str] = {}
        self._called: dict[str, str] = {}
        try:
            if any(meta.HasField("object_graph_def") for meta in saved.meta_graphs):  # written by TensorFlow 2
                self._keys = _Rewrite(self._meta, directory).keys
                self._called = _called(self._meta, self._keys.values())
        except (LookupError, ValueError) as error:
            raise GraphError(f"{directory} is not a whole SavedModel: {error}") from error
        self._signatures = {
            name: definition
            for name, definition in self._meta.signature_def.items()
            if not name.startswith(_INTERNAL) and definition.outputs
        }
        self.signatures = sorted(self._signatures)

    def draft(self, signatures: Collection[str] | None = None) -> Draft:
        """Draft all signatures, or the named signatures. Parameters are named by their keys in the checkpoint.

        Raises GraphError, UnsafeGraphError for ops that are not safe.
        """
        where = str(self._directory)
        chosen = sorted(self._signatures if signatures is None else signatures)
        unknown = [name for name in chosen if name not in self._signatures]
        if unknown or not self._signatures:
            raise GraphError(
                f"{where}: expected signature {', '.join(unknown) or 'definitions'},"
                f" found {', '.join(self.signatures) or 'none'}"
            )
        drafted = {
            name: graph_pb2.Signature(
                inputs=_endpoints(self._signatures[name].inputs, where),
                outputs=_endpoints(self._signatures[name].outputs, where),
                method_name=self._signatures[name].method_name,
            )
            for name in chosen
        }
        foreign = Foreign(_assets(self._directory, self._meta), self._allowed)
        draft = v1_graph(self._meta, where, foreign).draft(drafted, unused_inputs=True)
        named = [replace(variable, name=self._keys.get(variable.node, variable.name)) for variable in draft.parameters]
        return replace(draft, parameters=named, called=self._called)

    def graph(self) -> Graph:
        """Build the graph of all signatures that can be served.

        If a graph of all signatures cannot be built, each signature is tried alone. Raises GraphError if none can be
        served, UnfinishedError while files are missing.
        """
        try:
            return finish(self.draft())
        except GraphError as error:
            if isinstance(error, UnfinishedError) or len(self.signatures) > _TRIED:
                raise
            refused = {name: why for name in self.signatures if (why := self._refusal(name))}
            served = [name for name in self.signatures if name not in refused]
            if not refused or not served:
                raise
        return finish(replace(self.draft(served), refused=refused))

    def _refusal(self, signature: str) -> str:
        """Say why this signature cannot be served; "" if it can."""
        try:
            finish(self.draft([signature]))
        except UnfinishedError:
            raise
        except GraphError as error:
            return str(error)
        return ""


def parsed_saved_model(directory: Path) -> Any:
    """Read the message of the SavedModel in a directory.

    Raises GraphError, UnsafeGraphError if the message would take too much memory, OSError, and CorruptCheckpointError
    if the file is not regular or too large.
    """
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
    """Open the checkpoint of the SavedModel in this directory. Raises CorruptCheckpointError, OSError."""
    folder = directory / "variables"
    try:
        with files.beneath(directory, folder.name) as descriptor:
            return Bundle.open(folder / "variables", mapped=False, folder=descriptor)
    except (FileNotFoundError, NotADirectoryError) as error:
        raise CorruptCheckpointError(folder, expected="the folder of a checkpoint", found=error.strerror) from error


def _endpoints(tensors: Mapping[str, Any], where: str) -> list[graph_pb2.Endpoint]:
    return [part for name in sorted(tensors) for part in _parts(name, tensors[name], where)]


def _parts(name: str, info: Any, where: str) -> Iterator[graph_pb2.Endpoint]:
    """Yield the endpoints of one input or output. A sparse or ragged tensor has several."""
    try:
        if info.WhichOneof("encoding") == "coo_sparse":
            spec = tf.SparseTensorSpec(tf.TensorShape(info.tensor_shape), tf.as_dtype(info.dtype))
            sparse = info.coo_sparse
            tensors = (sparse.indices_tensor_name, sparse.values_tensor_name, sparse.dense_shape_tensor_name)
            kinds = (((None, spec.shape.rank), tf.int64), ((None,), spec.dtype), ((spec.shape.rank,), tf.int64))
            for part, tensor, kind in zip(components(name, spec), tensors, kinds, strict=True):
                yield endpoint_of(part, tensor, tf.TensorSpec(*kind))
        elif info.WhichOneof("encoding") == "composite_tensor":
            spec = tf.TypeSpec.experimental_from_proto(info.composite_tensor.type_spec)
            for part, inner in zip(components(name, spec), info.composite_tensor.components, strict=True):
                yield endpoint(part, inner.name, inner.dtype, inner.tensor_shape)
        else:
            yield endpoint(name, info.name, info.dtype, info.tensor_shape)
    except (ValueError, TypeError) as error:
        raise GraphError(f"{where}: {name!r} is of a kind that is not known here: {error}") from error


def _assets(directory: Path, meta: Any) -> dict[str, Asset]:
    """Return the asset files of a SavedModel, by the tensors that contain their paths. Raises GraphError."""
    listed = list(meta.asset_file_def)
    if "saved_model_assets" in meta.collection_def:
        for content in meta.collection_def["saved_model_assets"].any_list.value:
            listed.append(meta_graph_pb2.AssetFileDef())
            try:
                content.Unpack(listed[-1])
            except DecodeError as error:
                raise GraphError(f"{directory} lists assets that are not readable: {error}") from error
    return {asset.tensor_info.name: Asset(directory, asset.filename) for asset in listed}


def _called(meta: Any, keys: Iterable[str]) -> dict[str, str]:
    """Return, by checkpoint key, the name that a variable had in the program that saved the model."""
    ways = Ways(meta.object_graph_def.nodes)
    numbers = {key: ways.node(key) for key in keys}
    return {key: ways.nodes[number].variable.name for key, number in numbers.items() if number is not None}


class _Rewrite:
    """Changes a meta graph in place so that its tables are filled without functions. Finds the `keys` of its variables.

    1. Calls of functions that only create a table are replaced by the table.
    2. The restoring function is inlined: it contains the key of each variable, and the tables in the checkpoint.
    3. The initialising function is inlined: it contains the operations that fill the other tables.
    4. Variables that hold the path of an asset are replaced by the path.
    """

    def __init__(self, meta: Any, directory: Path) -> None:
        self.keys: dict[str, str] = {}
        self._meta = meta
        self._directory = directory
        self._nodes = {node.name: node for node in meta.graph_def.node}
        self._fillers: list[str] = []
        self._write_creating()
        self._read_restoring()
        self._write_initialising()
        self._write_assets()
        meta.signature_def.pop(_MAIN, None)
        meta.ClearField("saver_def")
        meta.collection_def.clear()
        meta.collection_def[tf.compat.v1.GraphKeys.TABLE_INITIALIZERS].node_list.value.extend(self._fillers)

    def _inline(self, *calls: Any) -> Any:
        """Inline these calls of functions."""
        nodes = inline(with_functions(self._meta.graph_def, calls), most=_MOST).graph_def.node
        for node in nodes:
            if node.op in PLAIN_CALLS:
                raise LookupError(f"{node.name!r} calls {node.attr['f'].func.name!r}, which it does not have")
        return nodes

    def _write_creating(self) -> None:
        for call in self._nodes.values():
            creates = call.op in PLAIN_CALLS and list(call.attr["Tout"].list.type) == [tf.resource.as_datatype_enum]
            if creates and not call.input:
                table = next((node for node in self._inline(call) if node.op in TABLES), None)
                if table is not None:
                    become(call, table.op)
                    for name, value in table.attr.items():
                        call.attr[name].CopyFrom(value)

    def _read_restoring(self) -> None:
        call = self._nodes.get(self._meta.saver_def.restore_op_name)
        if call is None or call.op not in PLAIN_CALLS:
            return
        nodes = {node.name: node for node in self._inline(call)}
        for node in nodes.values():
            if node.op == "AssignVariableOp":
                self.keys[origin(nodes, node.input[0])] = _restored(nodes, node.input[1])
            elif node.op == "LookupTableImportV2":
                keys = [_restored(nodes, tensor) for tensor in node.input[1:3]]
                self._add_table(node, keys, origin(nodes, node.input[0]))
        self._name_twins()

    def _name_twins(self) -> None:
        """Give each variable that is not restored the key of its twin.

        tf.saved_model.save writes each variable of a Keras model twice: one variable computes, its twin is restored.
        An operation that assigns the variable's value to the twin shows which two variables belong together.
        """
        for node in self._nodes.values():
            if node.op == "AssignVariableOp" and node_of(node.input[0]) in self.keys:
                value = self._nodes.get(node_of(node.input[1]))
                if value is not None and value.op == "ReadVariableOp":
                    self.keys.setdefault(node_of(value.input[0]), self.keys[node_of(node.input[0])])

    def _add_table(self, node: Any, keys: Sequence[str], table: str) -> None:
        """Fill a table with the values under these keys of the checkpoint."""
        bundle = variables(self._directory)
        missing = [key for key in keys if key not in bundle.entries]
        if missing:
            raise GraphError(f"{self._directory}: table {table!r} should be in its checkpoint as {missing[0]!r}")
        bundle.verify(keys)
        constants = [
            become_constant(self._meta.graph_def.node.add(name=f"{node.name}/{part}"), bundle.array(key)).name
            for part, key in zip(("keys", "values"), keys, strict=True)
        ]
        filler = self._meta.graph_def.node.add()
        filler.CopyFrom(node)
        filler.input[:] = [table, *constants]
        self._fillers.append(filler.name)

    def _write_initialising(self) -> None:
        main = self._meta.signature_def[_MAIN].outputs if _MAIN in self._meta.signature_def else {}
        needed = leading_to(self._nodes, [f"^{node_of(end.name)}" for end in main.values()])
        for node in self._inline(*(call for call in needed if call.op in PLAIN_CALLS)):
            self._meta.graph_def.node.append(node)
            if node.op in FILLERS:
                self._fillers.append(node.name)

    def _write_assets(self) -> None:
        assets = {node_of(asset.tensor_info.name) for asset in self._meta.asset_file_def}
        paths = {
            node_of(node.input[0]): node.input[1]
            for node in self._nodes.values()
            if node.op == "AssignVariableOp" and node_of(node.input[1]) in assets
        }
        for node in self._meta.graph_def.node:
            if node.op == "ReadVariableOp" and node_of(node.input[0]) in paths:
                become(node, "Identity", [paths[node_of(node.input[0])]])
                node.attr["T"].type = tf.string.as_datatype_enum


def _restored(nodes: Mapping[str, Any], tensor: str) -> str:
    """Return the checkpoint key from which a tensor is restored."""
    for _ in nodes:  # a limit: the path cannot have more Identity nodes than the graph has nodes
        if nodes[node_of(tensor)].op == "Identity":
            tensor = nodes[node_of(tensor)].input[0]
    read = nodes[node_of(tensor)]
    if read.op != "RestoreV2":
        raise ValueError(f"{tensor!r} is not read from a checkpoint")
    names = nodes[origin(nodes, read.input[1])].attr["value"].tensor.string_val
    return str(names[int(tensor.partition(":")[2] or 0)].decode())
