"""Replica: the versions of one model that are in memory. Knows how to swap between them and to let them go."""

from __future__ import annotations

import logging
import weakref
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import tensorflow as tf

from paramsync.errors import NotServingError, UnknownLabelError, UnknownVersionError
from paramsync.graphs.graph import DEFAULT_SIGNATURE, Graph
from paramsync.inference import batchable
from paramsync.inference.resident import Resident, warm
from paramsync.sources import Source, Verification, open_source
from paramsync.sources.source import Progress, ProgressCallback, ignore_progress
from paramsync.store.store import Store
from paramsync.version import Version

__all__ = ["RESIDENT", "Prepare", "Replica", "Resident", "Verification"]

_log = logging.getLogger("paramsync.replica")
_T = TypeVar("_T")
RESIDENT = 2  # the serving version and the one before it, so that going back is a swap

Prepare = Callable[[Resident], Callable[[], None]]
"""Called with the version about to serve, on the follower's thread; what it returns is called once that serves."""


@dataclass(frozen=True, eq=False)
class _View:
    """The versions that requests are answered from, replaced as a whole."""

    recent: tuple[Resident, ...] = ()  # those that served last, the serving one first
    labels: Mapping[str, Resident] = field(default_factory=dict)
    beside: tuple[Resident, ...] = ()  # what else is to be in memory
    residents: tuple[Resident, ...] = field(init=False)
    numbered: Mapping[int, Resident] = field(init=False)

    def __post_init__(self) -> None:
        residents = tuple(dict.fromkeys((*self.recent, *self.beside, *self.labels.values())))
        object.__setattr__(self, "residents", residents)
        # Of two with one number, a labelled one and the same rewritten, the one that served last is meant.
        object.__setattr__(self, "numbered", {one.version.number: one for one in reversed(residents)})


@dataclass(frozen=True, eq=False)
class _Leaving:
    """The parts of a version that has left, kept until no request holds it any more."""

    number: int
    resident: weakref.ref[Resident]
    graph: Graph
    parameters: tuple[tf.Tensor, ...]


class Replica:
    """The serving copy of one model.

    `restore`, `swap`, `label`, `unlabel`, `tend` and `prepare` belong to one thread, the follower's. `take`, `predict`
    and the properties may be used from any number of threads at once and take no lock: they read one reference, once.
    """

    def __init__(
        self,
        model: str,
        source: Source | Store | Path | str,
        *,
        resident: int = RESIDENT,
        inputs: Sequence[str] = (),
        outputs: Sequence[str] = (),
        graph: Path | str | None = None,
        verification: Verification = "auto",
        allowed: Collection[str] = (),
    ) -> None:
        """`resident` versions that served last stay in memory, and labelled ones beside them.

        `source` is where versions come from, or a path that `open_source` is asked about, with all that follows it.
        """
        if resident < 1:
            raise ValueError(f"resident: expected at least 1, found {resident}")
        if isinstance(source, (Store, Path, str)):
            path = source.path if isinstance(source, Store) else Path(source)
            source = open_source(
                path, inputs=inputs, outputs=outputs, graph=graph, verification=verification, allowed=allowed
            )
        self.model = model
        self.source: Source = source
        self.resident = resident
        self._most = resident
        self._view = _View()
        self._leaving: list[_Leaving] = []
        self._prepares: tuple[Prepare, ...] = ()
        self.obstacle = ""
        """Why nothing serves, where its follower knows more than that no version has come."""

    # For everybody ----------------------------------------------------------------------------------------------------

    @property
    def residents(self) -> tuple[Resident, ...]:
        """Versions in memory: the serving one first, then those that served before it, then all others."""
        return self._view.residents

    @property
    def labels(self) -> Mapping[str, int]:
        """The version each label leads to."""
        return {label: one.version.number for label, one in self._view.labels.items()}

    @property
    def leaving(self) -> tuple[int, ...]:
        """Versions that have left, and that requests may still hold."""
        return tuple(one.number for one in self._leaving)

    def serving(self) -> Resident:
        """The serving version. Raises NotServingError."""
        return self.take()

    def take(self, version: int | None = None, label: str = "") -> Resident:
        """The serving version, or the resident one with this number, or with this label.

        Raises NotServingError, UnknownVersionError, UnknownLabelError.
        """
        view = self._view
        if not view.recent:
            why = f"no version from store {self.source.path} serves yet"
            raise NotServingError(self.model, f"{why}: {self.obstacle}" if self.obstacle else why)
        if label:
            if label not in view.labels:
                raise UnknownLabelError(self.model, label, view.labels)
            return view.labels[label]
        if version is None:
            return view.recent[0]
        if version not in view.numbered:
            raise UnknownVersionError(f"model {self.model!r}", version, view.numbered)
        return view.numbered[version]

    def predict(
        self,
        inputs: Mapping[str, Any],
        *,
        signature: str = DEFAULT_SIGNATURE,
        outputs: Collection[str] = (),
        version: int | None = None,
        label: str = "",
    ) -> tuple[dict[str, tf.Tensor], Version]:
        """Answers from exactly one version, and says which. Raises as `take` and `Resident.predict` do."""
        one = self.take(version, label)
        return one.predict(inputs, signature=signature, outputs=outputs), one.version

    def on_swap(self, prepare: Prepare) -> Callable[[], None]:
        """Have `prepare` called before each swap, until what this returns is called.

        Where it or what it returns raises, that is logged, and the swap goes on.
        """
        self._prepares = (*self._prepares, prepare)

        def leave() -> None:
            self._prepares = tuple(one for one in self._prepares if one is not prepare)

        return leave

    # For the follower -------------------------------------------------------------------------------------------------

    def restore(self, version: Version, tell: ProgressCallback = ignore_progress) -> Resident:
        """Brings a version into memory beside the serving one and checks it; what serves does not change.

        Raises CorruptCheckpointError, ParameterError, UnsafeGraphError, GraphError, StoreError, OSError, and what
        `tell` raises.
        """
        view = self._view
        self.source.let_pages_go([one for one in view.recent[1:] if one not in (*view.labels.values(), *view.beside)])
        restored = self.source.restore(version, tell)
        self._warm(restored, tell)
        return restored

    def swap(self, resident: Resident) -> None:
        """Makes it the serving version: one assignment. Those that served before it stay resident, as `hold` says."""
        view = self._view
        number = resident.version.number
        others = [one for one in view.recent if one.version.number != number]
        prepares = self._prepares
        prepared = [self._prepared(prepare, resident) for prepare in prepares]
        self._show(_View((resident, *others)[: self._most], view.labels, view.beside))
        came = [one for one in self._prepares if one not in prepares]  # while others prepared
        prepared += [self._prepared(prepare, resident) for prepare in came]
        for serve in prepared:
            self._guarded(serve, resident)

    def label(self, label: str, resident: Resident) -> None:
        """Requests that name the label are answered from it from now on; it stays in memory as long as it has one."""
        view = self._view
        self._show(_View(view.recent, {**view.labels, label: resident}, view.beside))

    def unlabel(self, label: str) -> None:
        """Forget the label, if there is one."""
        view = self._view
        labels = {name: one for name, one in view.labels.items() if name != label}
        self._show(_View(view.recent, labels, view.beside))

    def hold(self, beside: Sequence[Resident], *, recent: int, most: int) -> None:
        """Keep these in memory beside so many of those that served last; from the next swap on that is `most`."""
        self._most = most
        view = self._view
        if (view.recent[:recent], view.beside) != (view.recent, tuple(beside)):
            self._show(_View(view.recent[:recent], view.labels, tuple(beside)))

    def release(self) -> None:
        """Nothing serves any more, and nothing stays in memory but what requests hold."""
        self._show(_View())

    def tend(self) -> None:
        """Free versions that have left, which takes milliseconds that no serving thread must spend.

        The thread that drops the last reference pays: a request that holds a version holds the Resident, and the
        parameters are held here until no Resident is left.
        """
        self._leaving = [one for one in self._leaving if one.resident() is not None]
        view = self._view
        self.source.tend([*view.recent[:1], *view.labels.values(), *view.beside])

    def prepare(self) -> bool:
        """Prefetch a portion, of milliseconds, for the next version; False where nothing is left to do."""
        view = self._view
        return bool(view.recent) and self.source.prepare(view.recent[0])

    def _show(self, view: _View) -> None:
        before, self._view = self._view, view
        self._leaving += [
            _Leaving(one.version.number, weakref.ref(one), one.graph, one.parameters)
            for one in before.residents
            if one not in view.residents
        ]

    def _prepared(self, prepare: Prepare, resident: Resident) -> Callable[[], None]:
        return self._guarded(lambda: prepare(resident), resident) or (lambda: None)

    def _guarded(self, call: Callable[[], _T], resident: Resident) -> _T | None:
        try:
            return call()
        except Exception:  # noqa: BLE001, what others make of a version does not keep it from serving
            _log.exception(
                "%s: version %d serves here, but not in what it is part of", self.model, resident.version.number
            )
            return None

    def _warm(self, restored: Resident, tell: ProgressCallback) -> None:
        if not any(one.graph is restored.graph for one in self._view.residents):
            tell(Progress(phase="warming"))
            warm(restored)
            batchable.examine(restored)
