"""What a lookup table of this program holds, when all there is of it is the handle that a function captured."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import tensorflow as tf

from paramsync.errors import GraphError
from paramsync.graphs.lifting.roles import CALLS, functions, results_of_pass

_FINDS = frozenset({"LookupTableFind", "LookupTableFindV2"})
_Place = tuple[str, str]  # a function, or "" for the graph, and a tensor there


def contents(handle: Any, node: str, graph_def: Any) -> tuple[tf.Tensor, tf.Tensor]:
    """The keys and values of the table that `node` gives the handle of. Raises GraphError where it is no table.

    Asked with other types than its own a table ends the process, and only those that look things up in it know them.
    """
    types = _Readers(graph_def).types(node)
    if len(types) != 1:
        raise GraphError(
            f"{node!r} is neither a variable nor a lookup table that anything is looked up in; nothing else that keeps"
            " a state can be part of a graph"
        )
    (keys, values), *_ = types
    try:
        found = tuple(tf.raw_ops.LookupTableExportV2(table_handle=handle, Tkeys=keys, Tvalues=values))
    except (tf.errors.OpError, TypeError) as error:
        raise GraphError(f"the contents of the table {node!r} cannot be read: {error}") from error
    if found[0].shape.rank != 1:  # with places that are empty, which nothing here can tell
        raise dense(node)
    return found


def dense(node: str) -> GraphError:
    """The refusal of a table that gives all its places for its contents, taken or not."""
    return GraphError(
        f"the table {node!r} is a DenseHashTable, whose contents cannot be told from its empty places: expected a"
        " StaticHashTable, a StaticVocabularyTable or a MutableHashTable"
    )


class _Readers:
    """Who uses which tensor, in a graph and its functions."""

    def __init__(self, graph_def: Any) -> None:
        self._bodies = {function.signature.name: function.node_def for function in graph_def.library.function}
        self._arguments = {
            function.signature.name: [one.name for one in function.signature.input_arg]
            for function in graph_def.library.function
        }
        self._bodies[""] = graph_def.node
        self._known: dict[str, dict[str, list[tuple[Any, int]]]] = {}

    def types(self, node: str) -> set[tuple[int, int]]:
        """The types of keys and values of all that look things up in the table of this node."""
        found: set[tuple[int, int]] = set()
        waiting: list[_Place] = [("", node)]
        seen: set[_Place] = set()
        while waiting:
            place = waiting.pop()
            if place in seen:
                continue
            seen.add(place)
            body, tensor = place
            for reader, position in self._readers(body).get(tensor, ()):
                if reader.op in _FINDS:
                    found.add((reader.attr["Tin"].type, reader.attr["Tout"].type))
                waiting += self._passed_on(body, reader, position)
        return found

    def _passed_on(self, body: str, reader: Any, position: int) -> list[_Place]:
        """The tensors that are the same handle because this op takes it."""
        if reader.op in self._arguments:
            return [(reader.op, self._arguments[reader.op][position])]
        if reader.op in CALLS:
            call = CALLS[reader.op]
            called = functions(reader, call) if position >= call.first else []
            return [(name, self._arguments[name][position - call.first]) for name in called]
        results = results_of_pass(reader.op)
        if body:
            return [(body, f"{reader.name}:{result}:0") for result in results]
        return [("", f"{reader.name}:{port}" if port else reader.name) for port in range(len(results))]

    def _readers(self, body: str) -> dict[str, list[tuple[Any, int]]]:
        if body not in self._known:
            self._known[body] = defaultdict(list)
            for node in self._bodies[body]:
                for position, tensor in enumerate(node.input):
                    self._known[body][tensor if body else tensor.removesuffix(":0")].append((node, position))
        return self._known[body]
