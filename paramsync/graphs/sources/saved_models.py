"""SavedModels: those of TensorFlow 2 become ones of TensorFlow 1, for what their programs do is in functions there.

A SavedModel of TensorFlow 2 keeps in its graph what one of TensorFlow 1 does, its signatures, variables and tables, but
variables are restored and tables filled inside functions. Nothing of it is run to find out how.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import tensorflow as tf

from paramsync.errors import GraphError, UnfinishedError
from paramsync.graphdef.reading import node_of
from paramsync.graphs.draft import Draft, finish
from paramsync.graphs.graph import Graph
from paramsync.graphs.lifting.walks import leading_to
from paramsync.graphs.object_paths import Ways
from paramsync.graphs.sources.v1_saved_models import (
    draft_of_v1_saved_model,
    is_v1,
    parsed_saved_model,
    signature_names,
    variables,
)
from paramsync.graphs.sources.v1_tables import TABLES

_CALLS = frozenset({"PartitionedCall", "StatefulPartitionedCall"})
_FILLERS = frozenset({"InitializeTableV2", "InitializeTableFromTextFileV2", "LookupTableImportV2"})
_INITIALISERS = tf.compat.v1.GraphKeys.TABLE_INITIALIZERS
_MAIN = "__saved_model_init_op"
_DEPTH = 8  # of functions that call functions: a SavedModel that was loaded and saved again has one level more
_LIMIT = 200_000
_TRIED = 64  # signatures, each on its own: each costs what building its part of the graph does


class SavedModel:
    """What is in a directory, to be drafted signature by signature; its weights are not looked at."""

    def __init__(self, directory: Path, *, allowed: Collection[str] = ()) -> None:
        """`allowed` names ops that may be in it although they are not known to be safe. Raises GraphError."""
        self._directory = directory
        self._allowed = allowed
        self._saved = parsed_saved_model(directory)
        self._keys: dict[str, str] = {}
        self._called: dict[str, str] = {}
        try:
            for meta in () if is_v1(self._saved) else self._saved.meta_graphs:
                if list(meta.meta_info_def.tags) == ["serve"]:
                    self._keys = _Written(meta, directory).keys
                    self._called = _called(meta, self._keys.values())
        except (LookupError, ValueError) as error:
            raise GraphError(f"{directory} is not a whole SavedModel: {error}") from error
        self.signatures = signature_names(directory, self._saved)

    def draft(self, signatures: Collection[str] | None = None) -> Draft:
        """All signatures or those named. Parameters go by their keys in its `variables` checkpoint.

        Raises GraphError, UnsafeGraphError for what it computes with.
        """
        found = draft_of_v1_saved_model(self._directory, self._saved, signatures=signatures, allowed=self._allowed)
        named = [replace(one, name=self._keys.get(one.node, one.name)) for one in found.parameters]
        return replace(found, parameters=named, called=self._called)

    def graph(self) -> Graph:
        """Of all signatures that can be served. Raises GraphError where none can, UnfinishedError while files come.

        Each is built alone only where they cannot be built together.
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
        """Why this one cannot be served; "" where it can."""
        try:
            finish(self.draft([signature]))
        except UnfinishedError:
            raise
        except GraphError as error:
            return str(error)
        return ""


def _called(meta: Any, keys: Iterable[str]) -> dict[str, str]:
    """What the variables of these keys were called in the program that saved them."""
    ways = Ways(meta.object_graph_def.nodes)
    found = {key: ways.node(key) for key in keys}
    return {key: ways.nodes[at].variable.name for key, at in found.items() if at is not None}


class _Written:
    """A meta graph, changed in place to one that fills its tables without functions; `keys` has those of its variables.

    1. Calls of functions that only create a table give way to the table.
    2. What restoring does, written out, says which key each variable has, and which tables are in the checkpoint.
    3. What initialising does, written out, are the operations that fill the other tables.
    4. Variables that hold the path of an asset give way to the path.
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
        meta.collection_def[_INITIALISERS].node_list.value.extend(self._fillers)

    def _write_creating(self) -> None:
        functions = _functions(self._meta)
        for call in self._nodes.values():
            creates = call.op in _CALLS and list(call.attr["Tout"].list.type) == [tf.resource.as_datatype_enum]
            if creates and not call.input:
                body = _Body(functions)
                body.write_out(call)
                table = next((node for node in body.finished() if node.op in TABLES), None)
                if table is not None:
                    call.op = table.op
                    call.attr.clear()
                    for name, value in table.attr.items():
                        call.attr[name].CopyFrom(value)

    def _read_restoring(self) -> None:
        call = self._nodes.get(self._meta.saver_def.restore_op_name)
        if call is None or call.op not in _CALLS:
            return
        body = _Body(_functions(self._meta))
        body.write_out(call)
        for node in body.finished():
            if node.op == "AssignVariableOp":
                self.keys[node_of(body.origin(node.input[0]))] = body.restored(node.input[1])
            elif node.op == "LookupTableImportV2":
                self._add_table(node, [body.restored(tensor) for tensor in node.input[1:3]], body.origin(node.input[0]))
        self._name_twins()

    def _name_twins(self) -> None:
        """Give those variables that are not restored the keys of others which begin with their values.

        That is how tf.saved_model.save writes the variables of a Keras model: each twice, one to compute with, one to
        be restored.
        """
        for node in self._nodes.values():
            if node.op == "AssignVariableOp" and node_of(node.input[0]) in self.keys:
                value = self._nodes.get(node_of(node.input[1]))
                if value is not None and value.op == "ReadVariableOp":
                    self.keys.setdefault(node_of(value.input[0]), self.keys[node_of(node.input[0])])

    def _add_table(self, node: Any, keys: Sequence[str], table: str) -> None:
        """Fill a table with what is in the checkpoint under these keys."""
        bundle = variables(self._directory)
        missing = [key for key in keys if key not in bundle.entries]
        if missing:
            raise GraphError(f"{self._directory}: table {table!r} should be in its checkpoint as {missing[0]!r}")
        bundle.verify(keys)
        filler = self._meta.graph_def.node.add()
        filler.CopyFrom(node)
        del filler.input[:]
        filler.input.append(table)
        for part, key, kind in zip(("keys", "values"), keys, ("Tin", "Tout"), strict=True):
            constant = self._meta.graph_def.node.add(name=f"{node.name}/{part}", op="Const")
            constant.attr["dtype"].type = node.attr[kind].type
            constant.attr["value"].tensor.CopyFrom(tf.make_tensor_proto(bundle.array(key)))
            filler.input.append(constant.name)
        self._fillers.append(filler.name)

    def _write_initialising(self) -> None:
        main = self._meta.signature_def[_MAIN].outputs if _MAIN in self._meta.signature_def else {}
        body = _Body(_functions(self._meta))
        for call in leading_to(self._nodes, [f"^{node_of(one.name)}" for one in main.values()]):
            if call.op in _CALLS:
                body.write_out(call)
        for node in body.finished():
            self._meta.graph_def.node.append(node)
            if node.op in _FILLERS:
                self._fillers.append(node.name)

    def _write_assets(self) -> None:
        assets = {node_of(one.tensor_info.name) for one in self._meta.asset_file_def}
        held = {
            node_of(node.input[0]): node.input[1]
            for node in self._nodes.values()
            if node.op == "AssignVariableOp" and node_of(node.input[1]) in assets
        }
        for node in self._meta.graph_def.node:
            if node.op == "ReadVariableOp" and node_of(node.input[0]) in held:
                node.op = "Identity"
                path = held[node_of(node.input[0])]
                del node.input[:]
                node.input.append(path)
                node.attr["T"].CopyFrom(node.attr.pop("dtype"))


def _functions(meta: Any) -> dict[str, Any]:
    return {function.signature.name: function for function in meta.graph_def.library.function}


class _Body:
    """Nodes of functions written out as nodes of the graph that calls them; what only orders them is left out."""

    def __init__(self, functions: Mapping[str, Any]) -> None:
        self._functions = functions
        self._nodes: dict[str, Any] = {}
        self._written = 0  # calls too, which leave no node
        self._results: dict[str, str] = {}  # what the results of calls were

    def write_out(self, call: Any, depth: int = 0) -> None:
        function = self._functions[call.attr["f"].func.name]
        tensors = [one for one in call.input if not one.startswith("^")]
        names = (argument.name for argument in function.signature.input_arg)
        given = dict(zip(names, tensors, strict=True))

        def spelled(tensor: str) -> str:
            node, *port = tensor.split(":")  # node:result:position, where every op here has one result or one list
            return f"{call.name}/{node}:{port[-1]}" if port else given[node]

        for node in function.node_def:
            copy = type(node)(name=f"{call.name}/{node.name}", op=node.op, attr=node.attr)
            copy.input.extend(spelled(one) for one in node.input if not one.startswith("^"))
            if copy.op in _CALLS and depth < _DEPTH:
                self.write_out(copy, depth + 1)
            else:
                self._nodes[copy.name] = copy
            self._written += 1
            if self._written > _LIMIT:
                raise ValueError(f"more than {_LIMIT} operations")
        for position, argument in enumerate(function.signature.output_arg):
            self._results[f"{call.name}:{position}"] = spelled(function.ret[argument.name])

    def finished(self) -> list[Any]:
        for node in self._nodes.values():
            for position, tensor in enumerate(node.input):
                node.input[position] = self._resolved(tensor)
        return list(self._nodes.values())

    def origin(self, tensor: str) -> str:
        """The tensor that this one is, whatever hands it on."""
        for _ in range(_LIMIT):
            node = self._nodes.get(node_of(tensor))
            if node is None or node.op != "Identity":
                return tensor
            tensor = node.input[0]
        raise ValueError(f"{tensor!r} is itself")

    def restored(self, tensor: str) -> str:
        """The key that a tensor is read under."""
        found = self.origin(tensor)
        read = self._nodes[node_of(found)]
        if read.op != "RestoreV2":
            raise ValueError(f"{found!r} is not read from a checkpoint")
        names = self._nodes[node_of(self.origin(read.input[1]))].attr["value"].tensor.string_val
        return str(names[int(found.partition(":")[2] or 0)].decode())

    def _resolved(self, tensor: str) -> str:
        for _ in range(_LIMIT):
            if tensor not in self._results:
                return tensor
            tensor = self._results[tensor]
        raise ValueError(f"{tensor!r} is itself")
