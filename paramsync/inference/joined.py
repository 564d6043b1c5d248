"""Joins two versions: outputs of the first are inputs of the second. Parameters are shared."""

from __future__ import annotations

import re
import threading
import weakref
from collections.abc import Collection, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field

from paramsync.graphs.graph import Graph
from paramsync.graphs.joining import join
from paramsync.inference import batchable
from paramsync.inference.resident import Resident, warm

_KEPT = 4  # joined graphs: of the serving pair, of earlier pairs, and of the next pair

Pair = tuple[Resident, Resident]


@dataclass(frozen=True, eq=False)
class Joined(Resident):
    """Two versions as one. A reference to this object keeps both versions in memory."""

    pair: Pair = field(kw_only=True)

    def computing(self) -> AbstractContextManager[None]:
        return _computing(self.pair)


@contextmanager
def _computing(pair: Pair) -> Iterator[None]:
    with pair[0].computing(), pair[1].computing():
        yield


@dataclass(frozen=True, eq=False)
class _Plan:
    """A joined graph. `places` has for each of its parameters the part (0 or 1) and the index in the part."""

    graph: Graph
    places: tuple[tuple[int, int], ...]

    def join(self, pair: Pair, names: tuple[str, str]) -> Joined:
        """Join two versions of the parts' graphs. Copies no parameters."""
        return Joined(
            version=pair[1].version,
            graph=self.graph,
            parameters=tuple([pair[part].parameters[at] for part, at in self.places]),
            parts=((names[0], pair[0].version), (names[1], pair[1].version)),
            pair=pair,
        )


class Joiner:
    """Joins versions of two models. Safe to use from any thread."""

    def __init__(self, names: tuple[str, str], inputs: Mapping[str, str], outputs: Collection[str] = ()) -> None:
        """`inputs` maps inputs of the second model to outputs of the first.

        `outputs` are outputs of the first model to return in addition to all outputs of the second.
        """
        self._names = names
        self._inputs = dict(inputs)
        self._outputs = tuple(outputs)
        self._prefixes = _prefixes(*names)
        self._lock = threading.Lock()
        self._plans: dict[tuple[Graph, Graph], _Plan] = {}  # the plan for each pair of graphs
        self._held: weakref.WeakValueDictionary[tuple[int, int], Joined] = weakref.WeakValueDictionary()

    def build(self, pair: Pair) -> Joined:
        """Join a pair. If its graphs are new, build, warm and examine their joined graph first.

        Raises GraphError, UnknownSignatureError.
        """
        graphs = (pair[0].graph, pair[1].graph)
        plan = self._plans.get(graphs)
        if plan is None:
            graph = join(*graphs, self._inputs, prefixes=self._prefixes, outputs=self._outputs)
            plan = _Plan(graph, _places(graph, graphs, self._prefixes))
            joined = plan.join(pair, self._names)
            warm(joined)
            batchable.examine(joined)
        with self._lock:
            plans = {key: plan_before for key, plan_before in self._plans.items() if key != graphs}
            self._plans = dict([*plans.items(), (graphs, plan)][-_KEPT:])
        return self._joined(pair, plan)

    def joined(self, pair: Pair) -> Joined | None:
        """Return the joined pair, the same object while it is referenced.

        None if nothing refers to the joined pair, and its graphs are not among the last `_KEPT` pairs that were built.
        """
        plan = self._plans.get((pair[0].graph, pair[1].graph))
        return self._held.get((id(pair[0]), id(pair[1]))) if plan is None else self._joined(pair, plan)

    def _joined(self, pair: Pair, plan: _Plan) -> Joined:
        key = id(pair[0]), id(pair[1])  # unique, because the joined pair keeps both versions alive
        joined = self._held.get(key)
        if joined is None:
            joined = self._held[key] = plan.join(pair, self._names)
        return joined


def _prefixes(first: str, second: str) -> tuple[str, str]:
    """Return the prefixes of parameters: the models' names, or "first" and "second" if a name cannot be a prefix."""
    sound = first != second and all(re.fullmatch(r"[A-Za-z0-9][\w.-]*", name, re.ASCII) for name in (first, second))
    return (first, second) if sound else ("first", "second")


def _places(graph: Graph, graphs: tuple[Graph, Graph], prefixes: tuple[str, str]) -> tuple[tuple[int, int], ...]:
    known = {
        f"{prefix}/{spec.name}": (part, at)
        for part, (part_graph, prefix) in enumerate(zip(graphs, prefixes, strict=True))
        for at, spec in enumerate(part_graph.parameters)
    }
    return tuple(known[spec.name] for spec in graph.parameters)
