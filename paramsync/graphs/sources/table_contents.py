"""Reads the contents of a source's lookup tables.

A table of this program is read through the handle that a function captured. A table of a v1 graph is filled first: the
operations that fill it run once, in a separate graph and session.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tensorflow as tf

from paramsync.errors import CorruptCheckpointError, GraphError, UnfinishedMetaError
from paramsync.graphdef.reading import bodies, every_node, node_of, origin, reach, readers_of
from paramsync.graphs import safety
from paramsync.graphs.lifting.roles import CALLS, functions, results_of_pass
from paramsync.graphs.nodes import become_constant, leading_to, with_functions
from paramsync.graphs.tables import MAX_BYTES, pack
from paramsync.host import files
from paramsync.host.files import shown
from paramsync.v1 import graph_pb2

TABLES = frozenset({"HashTableV2", "MutableHashTableV2", "MutableHashTableOfTensorsV2", "MutableDenseHashTableV2"})

_FROM_FILE = "InitializeTableFromTextFileV2"
FILLERS = frozenset({"InitializeTableV2", "LookupTableImportV2", _FROM_FILE})
_LOOPS = frozenset({"For", "NextIteration", "RefNextIteration", "StatelessWhile", "While"})


def live_table(handle: Any, node: str, graph_def: Any) -> tuple[tf.Tensor, tf.Tensor]:
    """Return the keys and values of the table that `node` stands for. Raises GraphError unless they can be told.

    Reading a table with wrong dtypes ends the process. So the dtypes come from the ops that look up keys in the table.
    """
    types = _types_looked_up(graph_def, node)
    if len(types) != 1:
        raise GraphError(
            f"{node!r} is neither a variable nor a lookup table that anything is looked up in; nothing else that keeps"
            " a state can be part of a graph"
        )
    (key_type, value_type), *_ = types
    try:
        keys, values = tf.raw_ops.LookupTableExportV2(table_handle=handle, Tkeys=key_type, Tvalues=value_type)
    except (tf.errors.OpError, TypeError) as error:
        raise GraphError(f"the contents of the table {node!r} cannot be read: {error}") from error
    if keys.shape.rank != 1:  # a dense table, which exports its empty places too
        raise _dense(node)
    return keys, values


def _dense(node: str) -> GraphError:
    """Return the error for a table that exports its empty places too."""
    return GraphError(
        f"the table {node!r} is a DenseHashTable, whose contents cannot be told from its empty places: expected a"
        " StaticHashTable, a StaticVocabularyTable or a MutableHashTable"
    )


def _types_looked_up(graph_def: Any, table: str) -> set[tuple[int, int]]:
    """Find the dtypes of keys and values of all lookups in this table, in the graph and its functions."""
    arguments = {
        function.signature.name: [argument.name for argument in function.signature.input_arg]
        for function in graph_def.library.function
    }
    # the readers of each tensor, by body and tensor
    readers: dict[tuple[str, str], list[tuple[Any, int]]] = defaultdict(list)
    for body, nodes in bodies(graph_def):
        for node in nodes:
            for position, tensor in enumerate(node.input):
                readers[body, tensor if body else tensor.removesuffix(":0")].append((node, position))

    def passed_on(body: str, reader: Any, position: int) -> list[tuple[str, str]]:
        """Return the tensors by which this op passes the handle on."""
        if reader.op in arguments:
            return [(reader.op, arguments[reader.op][position])]
        if reader.op in CALLS:
            first = CALLS[reader.op].first
            return [(name, arguments[name][position - first]) for name in functions(reader) if position >= first]
        results = results_of_pass(reader.op)
        if body:
            return [(body, f"{reader.name}:{result}:0") for result in results]
        return [("", f"{reader.name}:{port}" if port else reader.name) for port in range(len(results))]

    def following(place: tuple[str, str]) -> Iterator[tuple[str, str]]:
        return (passed for reader in readers.get(place, ()) for passed in passed_on(place[0], *reader))

    places = reach([("", table)], following)
    finds = [reader for place in places for reader, _ in readers.get(place, ()) if reader.op == "LookupTableFindV2"]
    return {(reader.attr["Tin"].type, reader.attr["Tout"].type) for reader in finds}


@dataclass(frozen=True, slots=True)
class Asset:
    """A file in the folder `assets` of a SavedModel. Symbolic links below the SavedModel are refused."""

    directory: Path
    name: str

    def content(self) -> bytes:
        """Read the file. Raises GraphError."""
        path = self.directory / "assets" / self.name
        try:
            return files.content_beneath(self.directory, f"assets/{self.name}", limit=MAX_BYTES)
        except (FileNotFoundError, NotADirectoryError) as error:  # the file may come later
            raise UnfinishedMetaError(f"{shown(path)}: expected a file to fill a table from, found none") from error
        except (OSError, ValueError, CorruptCheckpointError) as error:
            raise GraphError(f"{shown(path)}: expected a file in the folder assets: {shown(str(error))}") from error


@dataclass(frozen=True, slots=True)
class Foreign:
    """What an untrusted graph may use: files that fill its tables, by tensor, and ops in addition to the safe ops."""

    files: Mapping[str, Asset]
    allowed: Collection[str] = ()


def v1_tables(
    graph_def: Any, wanted: Iterable[Any], *, fillers: Collection[str] = (), foreign: Foreign | None = None
) -> list[graph_pb2.Table]:
    """Return the tables among the nodes `wanted`, with their contents.

    `fillers` names the graph's initialising operations. A table is filled by the operations that they need; if they
    need no operation that fills the table, by all operations that fill it. Raises GraphError for a table that nothing
    in the graph fills. With `foreign`, only safe ops run, and only the graph's own files are read.
    """
    tables = [node for node in wanted if node.op in TABLES]
    if not tables:
        return []
    for table in tables:
        if table.op == "MutableDenseHashTableV2":
            raise _dense(table.name)
    nodes = {node.name: node for node in graph_def.node}
    running = _fillers_of(tables, nodes, fillers)
    reached = leading_to(nodes, [*(f"^{name}" for name in running), *(table.name for table in tables)])
    cut = with_functions(graph_def, reached)
    if foreign is None:
        return _run(cut, tables, running, bounded=False)
    with ExitStack() as copies:
        _use_files(cut, foreign.files, copies)
        safety.check(cut, allowed=[*foreign.allowed, *TABLES, *FILLERS])
        for node in every_node(cut):
            if node.op in _LOOPS:  # a loop may never end, and nothing could stop it
                raise GraphError(f"{node.op} {shown(node.name)} fills a table: expected it to be filled without a loop")
        safety.guard(cut)
        return _run(cut, tables, running, bounded=True)


def _fillers_of(tables: Sequence[Any], nodes: Mapping[str, Any], fillers: Collection[str]) -> list[str]:
    """Return the operations that fill these tables, without operations that fill a table from a Saver's checkpoint.

    If `fillers` need only some of the operations that fill a table, the other operations are left out.
    """
    restored = _restored(nodes)
    filling: dict[tuple[str, str], list[str]] = defaultdict(list)
    for node in nodes.values():
        if node.op in FILLERS and node.input and node.name not in restored:
            table = nodes.get(origin(nodes, node.input[0]))
            if table is not None and table.op in TABLES:
                filling[_shared_name(table)].append(node.name)
    chosen = {node.name for node in leading_to(nodes, [f"^{name}" for name in fillers if name in nodes])}
    running: dict[str, None] = {}
    for table in tables:
        names = filling[_shared_name(table)]
        if not names:
            raise GraphError(
                f"nothing in the graph fills the table {table.name!r} ({table.op}): a table that is filled while a"
                " program runs cannot be part of a graph; expected one that is initialised from constants or a file"
            )
        running |= dict.fromkeys([name for name in names if name in chosen] or names)
    return list(running)


def _restored(nodes: Mapping[str, Any]) -> set[str]:
    """Return the nodes that depend on a checkpoint. A Saver may have nodes that fill tables from its checkpoint."""
    readers = readers_of(nodes.values())
    restores = [node.name for node in nodes.values() if node.op == "RestoreV2"]
    return set(reach(restores, lambda name: readers.get(name, ())))


def _shared_name(table: Any) -> tuple[str, str]:
    """Return the container and name of a table. Two nodes with the same container and name share one table."""
    container, name = (
        table.attr[key].s.decode(errors="backslashreplace") if key in table.attr else ""
        for key in ("container", "shared_name")
    )
    return container, name or table.name


def _use_files(graph_def: Any, assets: Mapping[str, Asset], copies: ExitStack) -> None:
    """Make the graph read copies of its assets, and refuse every other file. Raises GraphError.

    A function that reads a file is refused too, because its caller may choose the path.
    """
    nodes = {node.name: node for node in graph_def.node}
    own = {node_of(tensor): asset for tensor, asset in assets.items()}
    for body, body_nodes in bodies(graph_def):
        for node in body_nodes:
            if node.op == _FROM_FILE:
                path = None if body or len(node.input) < 2 else nodes.get(origin(nodes, node.input[1]))
                if path is None or path.name not in own:
                    named = path.attr["value"].tensor.string_val if path is not None and path.op == "Const" else []
                    file = f"file {shown(named[0])}" if named else "file"
                    raise GraphError(
                        f"{node.name!r} fills a table from a {file}, and only files that are part of a SavedModel are"
                        " read: export one, or capture the graph in the program that made it"
                    )
    for name, asset in own.items():
        if name in nodes:
            become_constant(nodes[name], copies.enter_context(_copy(asset.content())))


@contextmanager
def _copy(content: bytes) -> Iterator[str]:
    """Make a file in memory with this content, and yield its path. No other program can change or remove the file."""
    with open(os.memfd_create("asset"), "wb") as file:  # noqa: PTH123, a file without a name
        file.write(content)
        file.flush()
        yield f"/proc/self/fd/{file.fileno()}"


def _run(graph_def: Any, tables: Sequence[Any], fillers: Sequence[str], *, bounded: bool) -> list[graph_pb2.Table]:
    for node in graph_def.node:
        node.device = ""
    try:
        with tf.Graph().as_default() as graph:
            tf.graph_util.import_graph_def(graph_def, name="")
            if bounded:
                _require_known_sizes(graph)
            contents = {
                table.name: tuple(
                    tf.raw_ops.LookupTableExportV2(
                        table_handle=graph.get_tensor_by_name(f"{table.name}:0"),
                        Tkeys=table.attr["key_dtype"].type,
                        Tvalues=table.attr["value_dtype"].type,
                    )
                )
                for table in tables
            }
            config = tf.compat.v1.ConfigProto(device_count={"GPU": 0})
            with tf.compat.v1.Session(config=config) as session:
                session.run([graph.get_operation_by_name(name) for name in fillers])
                arrays = session.run(contents)
    except (ValueError, TypeError, KeyError, tf.errors.OpError) as error:
        names = [table.name for table in tables]
        raise GraphError(f"the tables {names} cannot be filled: {error}") from error
    return [pack(name, keys, values) for name, (keys, values) in arrays.items()]


def _require_known_sizes(graph: tf.Graph) -> None:
    """Raise GraphError unless all shapes are known and small: filling the tables must not take too much memory."""
    left = MAX_BYTES
    for operation in graph.get_operations():
        for tensor in operation.outputs:
            count = tensor.shape.num_elements()
            left -= 0 if count is None or tensor.dtype == tf.resource else count * tensor.dtype.size
            if left < 0 or (count is None and tensor.dtype != tf.resource):
                raise GraphError(
                    f"{tensor.name!r} of shape {tensor.shape} fills a table: expected shapes that are known, and at"
                    f" most {MAX_BYTES} bytes"
                )
