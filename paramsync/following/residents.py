"""Residents: the versions of one model in memory, and the swap between them. Needs no TensorFlow."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from paramsync.errors import NotServingError
from paramsync.status import nothing_serves
from paramsync.version import Leaving, R, Version, View

if TYPE_CHECKING:
    from paramsync.sources.source import ProgressCallback, Source

_log = logging.getLogger("paramsync.replica")
_T = TypeVar("_T")
RESIDENT = 2  # the serving version and its predecessor, so that a rollback is only a swap


Prepare = Callable[[R], Callable[[], None]]
"""Called with the version about to serve, on the follower's thread; returns a function to call once it serves."""


class Residents(Generic[R]):
    """The versions of one model that are in the memory of this process or of workers.

    Only the follower's thread calls `restore`, `swap`, `arrange` and `tend`. `take` and the properties may be used from
    any number of threads at once. They take no lock, because they read a single reference once.
    """

    def __init__(
        self,
        model: str,
        source: Source[R],
        *,
        resident: int = RESIDENT,
        parts: Callable[[R], tuple[Any, ...]] = lambda _: (),
        changed: Callable[[], object] = lambda: None,
    ) -> None:
        """The last `resident` versions that served stay in memory, and all labelled versions.

        `parts` returns the objects of a version that only `tend` may free, once no request uses the version. `changed`
        is called after each change of `view`.
        """
        if resident < 1:
            raise ValueError(f"resident: expected at least 1, found {resident}")
        self.model = model
        self.source = source
        self.resident = resident
        self._parts = parts
        self._changed = changed
        self._most = resident
        self._view: View[R] = View()
        self._leaving: Leaving[R] = Leaving()
        self._prepares: tuple[Prepare[R], ...] = ()
        self.suspects: set[R] = set()
        """Versions in memory that may be damaged: the follower examines them. Any thread may add a version."""
        self.reason = ""
        """Why nothing serves, set by the follower; see `Status.short_reason`."""

    # For everybody ----------------------------------------------------------------------------------------------------

    @property
    def residents(self) -> tuple[R, ...]:
        """Versions in memory: first the serving version, then versions that served before, then all other versions."""
        return self._view.residents

    @property
    def view(self) -> View[R]:
        """The versions from which requests are answered."""
        return self._view

    @property
    def labels(self) -> Mapping[str, int]:
        """The number of each label's version, by label."""
        return {label: resident.version.number for label, resident in self._view.labels.items()}

    @property
    def leaving(self) -> tuple[int, ...]:
        """Versions that were dropped and are not freed yet, because requests may still use them."""
        return self._leaving.numbers

    def serving(self) -> R:
        """Return the serving version. Raises NotServingError."""
        return self.take()

    def take(self, version: int | None = None, label: str = "") -> R:
        """Return the serving version, or the version in memory with this number or label.

        Raises NotServingError, UnknownVersionError, UnknownLabelError.
        """
        view = self._view
        if not view.recent:
            raise NotServingError(self.model, nothing_serves(self.source.path, self.reason))
        return view.take(self.model, version, label)

    def on_swap(self, prepare: Prepare[R]) -> Callable[[], None]:
        """Call `prepare` before each swap, until the returned function is called.

        An exception of `prepare`, or of the function that it returns, is logged, and the swap goes on.
        """
        self._prepares = (*self._prepares, prepare)

        def leave() -> None:
            self._prepares = tuple(known for known in self._prepares if known is not prepare)

        return leave

    @property
    def trouble(self) -> str:
        """Why requests fail with every version, for example because workers crash; empty if they do not fail."""
        return ""

    # For the follower -------------------------------------------------------------------------------------------------

    def restore(self, version: Version, tell: ProgressCallback | None = None) -> R:
        """Restore a version beside the serving version, and check it.

        Raises as `Source.restore` does.
        """
        return self.source.restore(version, tell)

    def swap(self, resident: R) -> None:
        """Serve this version, by one assignment. `arrange` sets how many earlier versions stay in memory."""
        view = self._view
        number = resident.version.number
        others = [other for other in view.recent if other.version.number != number]
        prepares = self._prepares
        prepared = [self._guarded(number, prepare, resident) for prepare in prepares]
        self._show(View((resident, *others)[: self._most], view.labels, view.beside))
        # functions that were registered during the calls above
        came = [prepare for prepare in self._prepares if prepare not in prepares]
        prepared += [self._guarded(number, prepare, resident) for prepare in came]
        for serve in prepared:
            if serve is not None:
                self._guarded(number, serve)

    def failing(self) -> Mapping[R, str]:
        """Return the versions in memory that proved unfit, each with the reason: for example, it crashes workers."""
        return {}

    def damage(self, resident: R) -> Exception | None:
        """Return an error if the bytes of a version in memory have changed since they were checked, else None."""
        return self.source.damage(resident)

    def drop(self, residents: Collection[R]) -> None:
        """Stop answering from these versions; the version that served before replaces them, if it is in memory."""
        self._show(self._view.mapped(lambda other: None if other in residents else other))

    def arrange(
        self,
        *,
        labels: Mapping[str, R] | None = None,
        beside: Sequence[R] | None = None,
        recent: int | None = None,
        most: int | None = None,
    ) -> None:
        """Set which versions stay in memory: the labelled versions, the versions `beside`, and the last that served.

        Of the versions that served last, at most `recent` stay now, and at most `most` stay from the next swap on. An
        argument that is None changes nothing.
        """
        now = self._view
        self._most = self._most if most is None else most
        view = View(
            now.recent[:recent],
            now.labels if labels is None else labels,
            now.beside if beside is None else tuple(beside),
        )
        if (view.recent, view.labels, view.beside) != (now.recent, now.labels, now.beside):
            self._show(view)

    def release(self) -> None:
        """Stop serving. Only versions that requests still use stay in memory."""
        self._show(View())

    def tend(self) -> None:
        """Free dropped versions. This takes milliseconds, so call it on a thread that serves no requests.

        The thread that drops the last reference to an object frees it. Therefore a request refers only to the Resident,
        and this object keeps the Resident's parts alive until no request refers to the Resident.
        """
        self._leaving.tend()

    def _show(self, view: View[R]) -> None:
        before, self._view = self._view, view
        for resident in before.residents:
            if resident not in view.residents:
                self._leaving.add(resident, *self._parts(resident))
        self._changed()

    def _guarded(self, number: int, call: Callable[..., _T], *arguments: R) -> _T | None:
        try:
            return call(*arguments)
        except Exception:  # noqa: BLE001, an error of a model that has this one as a part must not prevent the swap
            _log.exception("%s: version %d serves here, but not in what it is part of", self.model, number)
            return None
