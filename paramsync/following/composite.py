"""Connection: a model that is two served models joined, outputs of the first into inputs of the second."""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

from paramsync.errors import NotServingError, ParamsyncError
from paramsync.following.faults import told
from paramsync.following.replica import Replica
from paramsync.following.status import State, Status
from paramsync.inference.joined import Joined, Joiner, Pair
from paramsync.inference.resident import Resident

_log = logging.getLogger("paramsync.connection")


@dataclass(frozen=True, eq=False)
class _View:
    """The pair that requests are answered from, replaced as a whole."""

    serving: Joined | None = None
    problem: str | None = None


class Connection:
    """Answers of `second` to what `first` answers; each from exactly one version of each.

    A part that swaps has the pair joined on its own thread, and the joined graph built before that where it is a new
    one, so that the pair serves as soon as the part's version does. Where the two do not fit, the parts go on for
    themselves, and what was joined last goes on serving here.

    `take`, `status` and the properties may be used from any number of threads at once and take no lock. The number of a
    joined version is that of the second part's.
    """

    def __init__(
        self, model: str, first: Replica, second: Replica, inputs: Mapping[str, str], outputs: Collection[str] = ()
    ) -> None:
        """`inputs` maps inputs of `second` to outputs of `first`, of which `outputs` are outputs of both together.

        Its parts may be followed already.
        """
        self.model = model
        self.parts = (first, second)
        self._names = (first.model, second.model)
        self._joiner = Joiner(self._names, inputs, outputs)
        self._lock = threading.Lock()  # of what follows; held to look and to change, not while a graph is built
        self._view = _View()
        self._swaps = 0
        self._leaves: tuple[Callable[[], None], ...] = (
            first.on_swap(lambda resident: self._prepare(0, resident)),
            second.on_swap(lambda resident: self._prepare(1, resident)),
        )
        self._follow()

    def close(self) -> None:
        """Join nothing more. What is joined stays so, for whoever holds it."""
        leaves, self._leaves = self._leaves, ()  # which lead back to here: it would take a collector to free this
        for leave in leaves:
            leave()

    # For everybody ----------------------------------------------------------------------------------------------------

    @property
    def residents(self) -> tuple[Resident, ...]:
        """What requests may be answered from, the serving pair first."""
        serving = self._view.serving
        if serving is None:
            return ()
        first, last = serving.pair
        others = [
            self._joiner.joined((first, resident)) for resident in self.parts[1].residents if resident is not last
        ]
        return (serving, *(joined for joined in others if joined is not None))

    @property
    def problem(self) -> str | None:
        """Why the versions that the parts serve are not joined; None where they are."""
        return self._view.problem

    def take(self, version: int | None = None, label: str = "") -> Resident:
        """The serving pair, or the one with the second part's version of this number or label, and the first's serving.

        Raises NotServingError, which names the part that has no version yet, UnknownVersionError, UnknownLabelError.
        """
        view = self._view
        if view.serving is None:
            raise NotServingError(self.model, self._missing(view))
        if version is None and not label:
            return view.serving
        first, serving = view.serving.pair
        last = self.parts[1].take(version, label)
        joined = view.serving if last is serving else self._joiner.joined((first, last))
        if joined is None:
            raise NotServingError(self.model, f"version {last.version.number} of {self._names[1]!r} is not joined here")
        return joined

    def status(self) -> Status:
        """State, version and problem of what is joined; its parts have their own."""
        view = self._view
        return Status(
            model=self.model,
            store=self.parts[1].source.path,
            state=State.WAITING if view.serving is None else State.SERVING,
            serving=None if view.serving is None else view.serving.version,
            parts=() if view.serving is None else view.serving.parts,
            labels={} if view.serving is None else self.parts[1].labels,
            resident=tuple(resident.version.number for resident in self.residents),
            last_error=view.problem,
            swaps=self._swaps,
        )

    def _missing(self, view: _View) -> str:
        if view.problem is not None:
            return view.problem
        waiting = [part for part in self.parts if not part.residents]
        return ", ".join(map(_absent, waiting)) or "its parts are being joined"

    # For the followers of the parts -----------------------------------------------------------------------------------

    def _prepare(self, part: int, resident: Resident) -> Callable[[], None]:
        """Build the joined graph before that part swaps to this version. What it returns joins what serves then."""
        other = self.parts[1 - part].residents[:1]
        if other:
            pair = (resident, other[0]) if part == 0 else (other[0], resident)
            with contextlib.suppress(ParamsyncError):  # told once the part serves, by what follows then
                self._joiner.build(pair)
        return self._follow

    def _follow(self) -> None:
        """Join what the parts serve now. Several threads may come at once: the last to look sees what is there last."""
        while True:
            pair = self._serving_pair()
            if pair is None:
                return
            problem = None
            try:
                self._joiner.build(pair)
            except ParamsyncError as error:
                problem = told(error)
            with self._lock:
                if self._serving_pair() == pair and self._show(pair, problem):
                    return

    def _serving_pair(self) -> Pair | None:
        first, second = (part.residents[:1] for part in self.parts)
        return (first[0], second[0]) if first and second else None

    def _show(self, pair: Pair, problem: str | None) -> bool:
        """Whether that could be done: the graph of the pair may be forgotten again."""
        before = self._view
        serving = before.serving
        if problem is not None:
            if problem != before.problem:
                _log.warning("%s: %s", self.model, problem)
        elif serving is None or serving.pair != pair:
            serving = self._joiner.joined(pair)
            if serving is None:
                return False
            self._swaps += 1
        self._view = _View(serving, problem)
        return True


def _absent(part: Replica) -> str:
    obstacle = f", {part.obstacle}" if part.obstacle else ""
    return f"part {part.model!r} has no version yet (store {part.source.path}{obstacle})"
