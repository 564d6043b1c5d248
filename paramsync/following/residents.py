"""Residents: the versions of one model that are in memory, and how they come to serve. Needs no TensorFlow."""

from __future__ import annotations

import logging
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from paramsync.errors import NotServingError
from paramsync.inference.view import InMemory, R, View
from paramsync.sources.source import ProgressCallback, Source, ignore_progress
from paramsync.version import Version

_log = logging.getLogger("paramsync.replica")
_T = TypeVar("_T")
RESIDENT = 2  # the serving version and the one before it, so that going back is a swap

Prepare = Callable[[R], Callable[[], None]]
"""Called with the version about to serve, on the follower's thread; what it returns is called once that serves."""


@dataclass(frozen=True, eq=False)
class _Leaving:
    """A version that has left, and its parts, kept until no request holds it any more."""

    number: int
    resident: weakref.ref[InMemory]
    parts: tuple[Any, ...]


class Residents(ABC, Generic[R]):
    """The versions of one model that are in memory, wherever that is.

    `restore`, `swap`, `label`, `unlabel` and `tend` belong to one thread, the follower's. `take` and the
    properties may be used from any number of threads at once and take no lock: they read one reference, once.
    """

    def __init__(self, model: str, source: Source[R], *, resident: int = RESIDENT) -> None:
        """`resident` versions that served last stay in memory, and labelled ones beside them."""
        if resident < 1:
            raise ValueError(f"resident: expected at least 1, found {resident}")
        self.model = model
        self.source = source
        self.resident = resident
        self._most = resident
        self._view: View[R] = View()
        self._leaving: list[_Leaving] = []
        self._prepares: tuple[Prepare[R], ...] = ()
        self.obstacle = ""
        """Why nothing serves, where its follower knows more than that no version has come."""

    # For everybody ----------------------------------------------------------------------------------------------------

    @property
    def residents(self) -> tuple[R, ...]:
        """Versions in memory: the serving one first, then those that served before it, then all others."""
        return self._view.residents

    @property
    def view(self) -> View[R]:
        """What requests are answered from now."""
        return self._view

    @property
    def labels(self) -> Mapping[str, int]:
        """The version each label leads to."""
        return {label: one.version.number for label, one in self._view.labels.items()}

    @property
    def leaving(self) -> tuple[int, ...]:
        """Versions that have left, and that requests may still hold."""
        return tuple(one.number for one in self._leaving)

    def serving(self) -> R:
        """The serving version. Raises NotServingError."""
        return self.take()

    def take(self, version: int | None = None, label: str = "") -> R:
        """The serving version, or the resident one with this number, or with this label.

        Raises NotServingError, UnknownVersionError, UnknownLabelError.
        """
        view = self._view
        if not view.recent:
            why = f"no version from store {self.source.path} serves yet"
            raise NotServingError(self.model, f"{why}: {self.obstacle}" if self.obstacle else why)
        return view.take(self.model, version, label)

    def on_swap(self, prepare: Prepare[R]) -> Callable[[], None]:
        """Have `prepare` called before each swap, until what this returns is called.

        Where it or what it returns raises, that is logged, and the swap goes on.
        """
        self._prepares = (*self._prepares, prepare)

        def leave() -> None:
            self._prepares = tuple(one for one in self._prepares if one is not prepare)

        return leave

    # For the follower -------------------------------------------------------------------------------------------------

    def restore(self, version: Version, tell: ProgressCallback = ignore_progress) -> R:
        """Brings a version into memory beside the serving one and checks it; what serves does not change.

        Raises CorruptCheckpointError, ParameterError, UnsafeGraphError, GraphError, StoreError, OSError, and what
        `tell` raises.
        """
        view = self._view
        self.source.let_pages_go([one for one in view.recent[1:] if one not in (*view.labels.values(), *view.beside)])
        restored = self.source.restore(version, tell)
        self._ready(restored, tell)
        return restored

    @abstractmethod
    def _ready(self, restored: R, tell: ProgressCallback) -> None:
        """Have it answer as fast as any from its first request on."""

    @abstractmethod
    def _parts(self, one: R) -> tuple[Any, ...]:
        """What is freed only by `tend`, once nobody holds the version."""

    def swap(self, resident: R) -> None:
        """Makes it the serving version: one assignment. Those that served before it stay resident, as `hold` says."""
        view = self._view
        number = resident.version.number
        others = [one for one in view.recent if one.version.number != number]
        prepares = self._prepares
        prepared = [self._prepared(prepare, resident) for prepare in prepares]
        self._show(View((resident, *others)[: self._most], view.labels, view.beside))
        came = [one for one in self._prepares if one not in prepares]  # while others prepared
        prepared += [self._prepared(prepare, resident) for prepare in came]
        for serve in prepared:
            self._guarded(serve, resident)

    def label(self, label: str, resident: R) -> None:
        """Requests that name the label are answered from it from now on; it stays in memory as long as it has one."""
        view = self._view
        self._show(View(view.recent, {**view.labels, label: resident}, view.beside))

    def unlabel(self, label: str) -> None:
        """Forget the label, if there is one."""
        view = self._view
        labels = {name: one for name, one in view.labels.items() if name != label}
        self._show(View(view.recent, labels, view.beside))

    def hold(self, beside: Sequence[R], *, recent: int, most: int) -> None:
        """Keep these in memory beside so many of those that served last; from the next swap on that is `most`."""
        self._most = most
        view = self._view
        if (view.recent[:recent], view.beside) != (view.recent, tuple(beside)):
            self._show(View(view.recent[:recent], view.labels, tuple(beside)))

    def release(self) -> None:
        """Nothing serves any more, and nothing stays in memory but what requests hold."""
        self._show(View())

    def tend(self) -> None:
        """Free versions that have left, which takes milliseconds that no serving thread must spend.

        The thread that drops the last reference pays: a request that holds a version holds the Resident, and its
        parts are held here until nobody does.
        """
        self._leaving = [one for one in self._leaving if one.resident() is not None]
        view = self._view
        self.source.tend([*view.recent[:1], *view.labels.values(), *view.beside])

    def _show(self, view: View[R]) -> None:
        before, self._view = self._view, view
        self._leaving += [
            _Leaving(one.version.number, weakref.ref(one), self._parts(one))
            for one in before.residents
            if one not in view.residents
        ]

    def _prepared(self, prepare: Prepare[R], resident: R) -> Callable[[], None]:
        return self._guarded(lambda: prepare(resident), resident) or (lambda: None)

    def _guarded(self, call: Callable[[], _T], resident: R) -> _T | None:
        try:
            return call()
        except Exception:  # noqa: BLE001, what others make of a version does not keep it from serving
            _log.exception(
                "%s: version %d serves here, but not in what it is part of", self.model, resident.version.number
            )
            return None
