"""What the lookup tables of a v1 graph hold: the operations that fill them are run once, on their own and aside."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tensorflow as tf

from paramsync.errors import CorruptCheckpointError, GraphError, UnfinishedMetaError
from paramsync.graphdef.reading import node_of
from paramsync.graphs.draft import Table
from paramsync.graphs.lifting.walks import leading_to, with_functions
from paramsync.graphs.safety import checks as safety
from paramsync.graphs.safety.guards import guard
from paramsync.graphs.sources.live_tables import dense
from paramsync.graphs.tables import MAX_BYTES
from paramsync.host import files
from paramsync.host.files import shown

TABLES = frozenset({"HashTableV2", "MutableHashTableV2", "MutableHashTableOfTensorsV2", "MutableDenseHashTableV2"})

_FROM_FILE = "InitializeTableFromTextFileV2"
_FILLERS = frozenset({"InitializeTableV2", "LookupTableImportV2", _FROM_FILE})
_LOOPS = frozenset({"For", "NextIteration", "RefNextIteration", "StatelessWhile", "While"})
_OLD = frozenset(
    {"HashTable", "MutableHashTable", "InitializeTable", "InitializeTableFromTextFile"}
    | {"LookupTableFind", "LookupTableSize", "LookupTableImport"}
)


@dataclass(frozen=True, slots=True)
class Asset:
    """A file that comes with a SavedModel, in its own folder `assets`, by a way in which no part is a link."""

    directory: Path
    name: str

    def content(self) -> bytes:
        """What it holds. Raises GraphError."""
        path = self.directory / "assets" / self.name
        try:
            return files.content_beneath(self.directory, f"assets/{self.name}", limit=MAX_BYTES)
        except (FileNotFoundError, NotADirectoryError) as error:  # whoever copies it may be at it still
            raise UnfinishedMetaError(f"{shown(path)}: expected a file to fill a table from, found none") from error
        except OSError as error:
            raise GraphError(f"{shown(path)}: cannot be read: {error.strerror}") from error
        except ValueError as error:
            found = f"found {shown(self.name)}"
            raise GraphError(f"{self.directory}: expected assets in its own folder, {found}") from error
        except CorruptCheckpointError as error:  # which says what is there instead
            raise GraphError(str(error)) from error


@dataclass(frozen=True, slots=True)
class Foreign:
    """Whose graph somebody else made: which files its tables may be filled from, by tensor, and which more ops."""

    files: Mapping[str, Asset]
    allowed: Collection[str] = ()


def modernised(graph_def: Any) -> Any:
    """The graph with tables of resources where it has those of references; itself where it has none."""
    if not any(node.op in _OLD for node in graph_def.node):
        return graph_def
    modern = tf.compat.v1.GraphDef()
    modern.CopyFrom(graph_def)
    for node in modern.node:
        if node.op in _OLD:
            node.op += "V2"
    return modern


def tables(
    graph_def: Any, wanted: Iterable[Any], *, fillers: Collection[str] = (), foreign: Foreign | None = None
) -> list[Table]:
    """The tables among the nodes `wanted`, with what they hold once `fillers`, or whatever fills them, has run.

    Raises GraphError for one that nothing fills, or that is filled from what is not part of the graph. Of a foreign
    graph nothing is run that is not safe, and no file is read but those it may be filled from.
    """
    found = [node for node in wanted if node.op in TABLES]
    if not found:
        return []
    for node in found:
        if node.op == "MutableDenseHashTableV2":
            raise dense(node.name)
    nodes = {node.name: node for node in graph_def.node}
    running = _fillers_of(found, nodes, fillers)
    reached = leading_to(nodes, [*(f"^{name}" for name in running), *(node.name for node in found)])
    cut = with_functions(graph_def, reached)
    if foreign is None:
        return _run(cut, found, running, bounded=False)
    with ExitStack() as copies:
        _use_files(cut, foreign.files, copies)
        safety.check(cut, allowed=[*foreign.allowed, *TABLES, *_FILLERS])
        _refuse_loops(cut)
        guard(cut)
        return _run(cut, found, running, bounded=True)


def _fillers_of(found: Sequence[Any], nodes: Mapping[str, Any], fillers: Collection[str]) -> list[str]:
    """The operations that fill these tables: of those in `fillers`, or that they need, if any of them does."""
    filling: dict[tuple[str, str], list[str]] = {}
    for node in nodes.values():
        if node.op in _FILLERS and node.input:
            table = _origin(nodes, node.input[0])
            if table is not None and table.op in TABLES:
                filling.setdefault(_shared_name(table), []).append(node.name)
    chosen = {node.name for node in leading_to(nodes, [f"^{one}" for one in fillers if one in nodes])}
    running: dict[str, None] = {}
    for table in found:
        names = filling.get(_shared_name(table), [])
        if not names:
            raise GraphError(
                f"nothing in the graph fills the table {table.name!r} ({table.op}): a table that is filled while a"
                " program runs cannot be part of a graph; expected one that is initialised from constants or a file"
            )
        running |= dict.fromkeys([name for name in names if name in chosen] or names)
    return list(running)


def _shared_name(table: Any) -> tuple[str, str]:
    """Nodes of the same are handles of one table."""
    container, name = (
        table.attr[one].s.decode(errors="backslashreplace") if one in table.attr else ""
        for one in ("container", "shared_name")
    )
    return container, name or table.name


def _origin(nodes: Mapping[str, Any], tensor: str) -> Any:
    """The node behind a tensor and whatever only hands it on."""
    seen = set()
    name = node_of(tensor)
    while name in nodes and nodes[name].op == "Identity" and nodes[name].input and name not in seen:
        seen.add(name)
        name = node_of(nodes[name].input[0])
    return nodes.get(name)


def _use_files(graph_def: Any, files: Mapping[str, Asset], copies: ExitStack) -> None:
    """Put the paths of copies of its files in the graph, and refuse every other file. Raises GraphError.

    A function is given its files by whoever calls it, so that none is known to be one of these.
    """
    nodes = {node.name: node for node in graph_def.node}
    own = {node_of(tensor): file for tensor, file in files.items()}
    bodies = [(nodes, graph_def.node), *(({}, function.node_def) for function in graph_def.library.function)]
    for known, node in [(known, node) for known, body in bodies for node in body if node.op == _FROM_FILE]:
        origin = _origin(known, node.input[1]) if len(node.input) > 1 else None
        if origin is None or origin.name not in own:
            named = origin.attr["value"].tensor.string_val if origin is not None and origin.op == "Const" else []
            raise GraphError(
                f"{node.name!r} fills a table from a file{f' {shown(named[0])}' if named else ''}, and only files"
                " that are part of a SavedModel are read: export one, or capture the graph in the program that made it"
            )
    for name, file in own.items():
        if name in nodes:
            _make_path(nodes[name], copies.enter_context(_copy(file.content())))


@contextmanager
def _copy(content: bytes) -> Iterator[str]:
    """The path of a file in memory with this content, which nobody else can change or take away."""
    with open(os.memfd_create("asset"), "wb") as file:  # noqa: PTH123, it has no name
        file.write(content)
        file.flush()
        yield f"/proc/self/fd/{file.fileno()}"


def _refuse_loops(graph_def: Any) -> None:
    """Raise GraphError for what may never end, which nothing could stop once it runs."""
    for nodes in (graph_def.node, *(function.node_def for function in graph_def.library.function)):
        for node in nodes:
            if node.op in _LOOPS:
                raise GraphError(f"{node.op} {shown(node.name)} fills a table: expected it to be filled without a loop")


def _make_path(node: Any, path: str) -> None:
    node.op = "Const"
    del node.input[:]
    node.attr.clear()
    node.attr["dtype"].type = tf.string.as_datatype_enum
    node.attr["value"].tensor.CopyFrom(tf.make_tensor_proto(path))


def _run(graph_def: Any, found: Sequence[Any], fillers: Sequence[str], *, bounded: bool) -> list[Table]:
    for node in graph_def.node:
        node.device = ""
    try:
        with tf.Graph().as_default() as graph:
            tf.graph_util.import_graph_def(graph_def, name="")
            if bounded:
                _require_known_sizes(graph)
            contents = {
                node.name: tf.raw_ops.LookupTableExportV2(
                    table_handle=graph.get_tensor_by_name(f"{node.name}:0"),
                    Tkeys=node.attr["key_dtype"].type,
                    Tvalues=node.attr["value_dtype"].type,
                )
                for node in found
            }
            config = tf.compat.v1.ConfigProto(device_count={"GPU": 0})
            with tf.compat.v1.Session(config=config) as session:
                session.run([graph.get_operation_by_name(name) for name in fillers])
                values = session.run({name: tuple(pair) for name, pair in contents.items()})
    except (ValueError, TypeError, KeyError, tf.errors.OpError) as error:
        raise GraphError(f"the tables {[node.name for node in found]} cannot be filled: {error}") from error
    return [Table(name, keys, of_them) for name, (keys, of_them) in values.items()]


def _require_known_sizes(graph: tf.Graph) -> None:
    """Raise GraphError unless it is known beforehand that filling tables takes little memory."""
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
