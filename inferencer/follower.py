"""Follower: keeps a replica at the right version, from one worker thread."""

from __future__ import annotations

import concurrent.futures
import logging
import threading
import time
from collections.abc import Callable, Hashable
from concurrent.futures import Future
from dataclasses import replace
from typing import Any, Protocol

from inferencer.events import Event, EventKind, Subscribers, Subscription
from inferencer.faults import Fault, fault_of, told
from inferencer.identity import identities
from inferencer.look import Look, look
from inferencer.patience import Patience
from inferencer.policy import Candidate, next_restore
from inferencer.quarantine import Quarantine
from inferencer.replica import Replica
from inferencer.status import State, Status
from inferencer.wishes import Action, Wishes, waiting_for
from paramsync.errors import NotServingError
from paramsync.store import Store
from paramsync.version import Version

_log = logging.getLogger("paramsync.follower")
_JOIN_SECONDS = 10.0


class Bell(Protocol):
    """What rings when there may be something new."""

    def arm(self) -> None: ...
    def close(self) -> None: ...


class Follower:
    """Keeps a replica at the right version.

    `run_once` is all it does; `start` runs it on a worker thread after each ring and each `poll_seconds`. Without
    `start` the caller's thread is the worker. Everything else may be called from any thread and never waits for a
    restore, but for `sync`, `pin` and `unpin`, which are there to wait.
    """

    def __init__(
        self, replica: Replica, store: Store, *, poll_seconds: float = 5.0, clock: Callable[[], float] = time.time
    ) -> None:
        self.replica = replica
        self.model = replica.model
        self._store = store
        self._poll_seconds = poll_seconds
        self._clock = clock
        self._status = Status(model=replica.model, store=store.path)  # replaced by the worker alone, as all below
        self._serving: Candidate[Version] | None = None
        self._files: dict[int, Hashable] = {}  # of the resident versions
        self._quarantine = Quarantine()
        self._patience = Patience()
        self._look_again: float | None = None  # seconds, where that is sooner than the next poll
        self._wishes = Wishes()
        self._subscribers = Subscribers()
        self._rung = threading.Event()
        self._draining = threading.Event()
        self._worker: threading.Thread | None = None

    # For everybody ----------------------------------------------------------------------------------------------------

    def notify(self) -> None:
        """Look again soon."""
        self._rung.set()

    def status(self) -> Status:
        """How the model is doing now."""
        status = self._status.at(self._clock())
        return replace(status, state=State.DRAINING) if self._draining.is_set() else status

    def subscribe(self, wake: Callable[[], None]) -> Subscription:
        """Every event from now on, until the listener falls too far behind. `wake` must return at once."""
        return self._subscribers.add(wake)

    def ask(self, action: Action, number: int | None = None) -> Future[Status]:
        """A sync, pin or unpin that nobody waits for here. The future may be cancelled."""
        answer = self._wishes.ask(action, number)
        answer.add_done_callback(self._answered)
        self.notify()
        return answer

    def _answered(self, answer: Future[Status]) -> None:
        if answer.cancelled():  # a pin that nobody waits for is given up
            self.notify()

    def sync(self, version: int | None = None, *, timeout: float | None = None) -> Status:
        """Returns once that version or a newer one serves; None: the newest published when the call arrives.

        A quarantined version is tried once more. Raises SyncError where it will not come to serve, UnknownVersionError,
        NotServingError while draining, TimeoutError with what it was waiting for.
        """
        return self._wait(Action.SYNC, version, timeout)

    def pin(self, version: int, *, timeout: float | None = None) -> Status:
        """Returns once that version serves, which it does until `unpin`. Where it raises, nothing changed."""
        return self._wait(Action.PIN, version, timeout)

    def unpin(self, *, timeout: float | None = None) -> Status:
        """Follow the newest version again."""
        return self._wait(Action.UNPIN, None, timeout)

    def late(self, number: int | None, seconds: float | None) -> str:
        """What to tell somebody who waited too long for a version."""
        what = "the newest version" if number is None else f"version {number}"
        waited = "in time" if seconds is None else f"within {seconds:.3g} s"
        return f"{what} of model {self.model!r} did not come to serve {waited}: {waiting_for(number, self.status())}"

    def _wait(self, action: Action, number: int | None, timeout: float | None) -> Status:
        answer = self.ask(action, number)
        try:
            return answer.result(timeout)
        except concurrent.futures.TimeoutError:
            if answer.cancel():
                raise TimeoutError(self.late(number, timeout)) from None
            return answer.result()  # it came at the last moment

    # The worker -------------------------------------------------------------------------------------------------------

    def start(self, bell: Bell | None = None) -> None:
        """Start the worker. It arms and closes the bell, which should call `notify`."""
        self._worker = threading.Thread(target=self._run, args=(bell,), name=f"follower {self.model}", daemon=True)
        self._worker.start()

    def drain(self) -> None:
        """Report DRAINING from now on, restore nothing more, refuse what is asked. What serves goes on serving."""
        self._draining.set()
        self._wishes.refuse(NotServingError(self.model, "the server is stopping"))
        self.notify()

    def close(self) -> None:
        """Drain, and end the worker after the restore it may be at."""
        self.drain()
        if self._worker is not None:
            self._worker.join(_JOIN_SECONDS)

    def _run(self, bell: Bell | None) -> None:
        while not self._draining.is_set():
            self._rung.clear()
            try:
                if bell is not None:
                    bell.arm()
                while self.run_once() is not None:
                    pass
            except Exception as error:  # noqa: BLE001, an end of this thread would be the end of following
                _log.exception("%s: the follower goes on after an error of its own", self.model)
                self._set(last_error=told(error))
            self._rung.wait(self._poll_seconds if self._look_again is None else self._look_again)
        if bell is not None:
            bell.close()

    def run_once(self) -> Version | None:
        """One look at the store: restore and swap to the version to serve, if there is another one. Returns it then.

        A version that cannot be used is quarantined, and the next best one is taken in the same look.
        """
        fresh = self._wishes.fresh()
        found = self._look()
        for number in self._wishes.admit(fresh, self._status, found.numbers):
            self._quarantine.forget(number)
        self._set(pinned=self._wishes.pinned)
        swapped = self._advance(found.published or [])
        self._wishes.settle(self.status(), found.numbers)
        if self._wishes.pinned != self._status.pinned:  # a pin that failed
            self._set(pinned=self._wishes.pinned)
            self.notify()
        self.replica.tend()
        return swapped

    def _look(self) -> Look:
        """Look at the store, and report what was found."""
        found = look(self._store)
        self._note(found.problem)
        if found.numbers is not None:
            self._found(found.latest)
            self._quarantine.keep(found.numbers)
            self._patience.keep(found.numbers)
        return found

    def _note(self, problem: Exception | None) -> None:
        """Health is a field of its own: trouble with the store changes nothing about what serves."""
        text = None if problem is None else told(problem)
        if text is not None and text != self._status.last_error:
            _log.warning("%s: %s", self.model, text)
        self._set(last_error=text)

    def _found(self, latest: Version | None) -> None:
        known = self._status.published
        self._set(published=latest)
        if latest is not None and (known is None or known.number != latest.number):
            self._tell(EventKind.FOUND, latest)

    def _advance(self, published: list[Candidate[Version]]) -> Version | None:
        """Restore the version that policy names, or the next best one where that cannot be used."""
        pinned = self._status.pinned
        listed = {one.number for one in published}
        candidates = [one for one in self._residents() if one.number == pinned and pinned not in listed] + published
        passed_over = self._quarantine.files()
        self._look_again = None
        self._set(quarantined=self._quarantine.told())
        while not self._draining.is_set():
            one = next_restore(candidates, serving=self._serving, quarantined=passed_over, pinned=pinned)
            if one is None:
                return None
            if self._restore(one):
                return one.version
            passed_over[one.number] = one.files
        return None

    def _residents(self) -> list[Candidate[Version]]:
        return [Candidate(one.version, self._files[one.version.number]) for one in self.replica.residents]

    def _restore(self, one: Candidate[Version]) -> bool:
        """Whether it serves now."""
        self._set(restoring=one.number)
        self._tell(EventKind.RESTORING, one.version)
        began = time.monotonic()
        try:
            at_hand = any(one.same_as(resident) for resident in self._residents())
            restored = self.replica.take(one.number) if at_hand else self.replica.restore(one.version)
        except Exception as error:  # noqa: BLE001, no content of a store may end the follower
            self._set(restoring=None)
            self._failed(one, error)
            return False
        self.replica.warm(restored)
        self.replica.swap(restored)
        self._swapped(one, time.monotonic() - began)
        return True

    def _swapped(self, one: Candidate[Version], seconds: float) -> None:
        """Report after the swap, never before."""
        self._serving = one
        self._quarantine.forget(one.number)
        resident = tuple(have.version.number for have in self.replica.residents)
        self._files = {number: one.files if number == one.number else self._files[number] for number in resident}
        self._set(
            state=State.SERVING,
            serving=one.version,
            restoring=None,
            resident=resident,
            quarantined=self._quarantine.told(),
            swaps=self._status.swaps + 1,
            restore_seconds=seconds,
        )
        _log.info("%s: version %d serves, restored in %.1f ms", self.model, one.number, seconds * 1000)
        self._tell(EventKind.SWAPPED, one.version, restore_seconds=seconds)

    def _failed(self, one: Candidate[Version], error: Exception) -> None:
        """What is not complete yet is looked at again soon, and after a while like any other fault."""
        fault = fault_of(error)
        left = self._patience.left(one, time.monotonic()) if fault is Fault.UNFINISHED else None
        if fault is Fault.UNFORESEEN:
            _log.error("%s: version %d failed in a way nobody foresaw", self.model, one.number, exc_info=error)
        if left is None:
            self._set_aside(one, told(error), own_fault=fault is not Fault.NOT_ITS_OWN)
        else:
            _log.debug("%s: version %d is not complete yet: %s", self.model, one.number, told(error))
            self._look_again = left if self._look_again is None else min(left, self._look_again)

    def _set_aside(self, one: Candidate[Version], reason: str, *, own_fault: bool) -> None:
        """It is quarantined unless its files are others by now."""
        if identities(self._store, [one.version])[one.number] != one.files:
            _log.debug("%s: version %d was pruned or rewritten while it was read", self.model, one.number)
            self.notify()
            return
        news = self._quarantine.add(one.number, reason, since=self._clock(), files=one.files if own_fault else None)
        self._set(quarantined=self._quarantine.told())
        if news:
            _log.warning("%s: version %d is quarantined: %s", self.model, one.number, reason)
            self._tell(EventKind.QUARANTINED, one.version, reason=reason)

    def _set(self, **changes: Any) -> None:
        self._status = replace(self._status, **changes)

    def _tell(self, kind: EventKind, version: Version, *, reason: str = "", restore_seconds: float = 0.0) -> None:
        self._subscribers.tell(
            Event(
                kind=kind,
                model=self.model,
                version=version,
                at=self._clock(),
                reason=reason,
                restore_seconds=restore_seconds,
            )
        )
