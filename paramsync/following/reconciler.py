"""Reconciler: in rounds, a replica comes to serve what its store has and operators ask for."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Hashable, Iterable
from typing import Any
from weakref import WeakKeyDictionary

from paramsync.following.faults import Fault, fault_of, let_go, told
from paramsync.following.operator_request import OperatorRequest
from paramsync.following.operator_requests import Known, OperatorRequests
from paramsync.following.policy import next_restore, served_before
from paramsync.following.prefetch_versions import PrefetchedVersions
from paramsync.following.quarantine import Backoff, MachineFailures, Quarantine, UnfinishedVersions
from paramsync.following.report import Report
from paramsync.following.residents import Residents
from paramsync.inference.view import InMemory
from paramsync.sources import diagnosis
from paramsync.sources.source import Look, Progress
from paramsync.version import Candidate, Version

_log = logging.getLogger("paramsync.follower")


class _OvertakenError(Exception):
    """Something else is wanted more than the version that is being restored."""


class Reconciler:
    """The rounds of one replica, on one thread. `ended` tells whether they are over, `notify` asks for another round,
    and `asked` tells whether somebody has asked since the last one began."""

    def __init__(
        self,
        replica: Residents[Any],
        requests: OperatorRequests,
        report: Report,
        *,
        clock: Callable[[], float],
        ended: Callable[[], bool],
        notify: Callable[[], None],
        asked: Callable[[], bool],
    ) -> None:
        self.look_again: float | None = None  # seconds, where that is sooner than the next poll
        self._replica = replica
        self._requests = requests
        self._report = report
        self._clock = clock
        self._ended = ended
        self._notify = notify
        self._asked = asked
        self._serving: Candidate[Version] | None = None
        self._before: tuple[int, ...] = ()  # what served before that, the last one first
        self._files: WeakKeyDictionary[InMemory, Hashable] = WeakKeyDictionary()
        self._quarantine = Quarantine()
        self._unfinished = UnfinishedVersions()
        self._machine_failures = MachineFailures()
        self._wanted: set[int] = set()  # the versions that this round would restore, or did
        self._looks = Backoff()
        self._problem: str | None = None  # of the last look
        self._beside = PrefetchedVersions(
            replica, requests, self._quarantine, in_memory=self._resident, restored=self._restored_beside
        )

    def run_once(self) -> Version | None:
        """One round. Returns the version that came to serve, if one did.

        1. Requests about versions in memory are met without a look at the store, however long that takes.
        2. The store is looked at. Labels of versions in memory are given and taken away, before anything that a pin
           could interrupt. The version to serve is restored and swapped to if it is another one; one that cannot be
           used is quarantined, and the next best one is taken. Then labelled versions are restored, then what else is
           to be in memory.
        3. Callers are told which requests are fulfilled.
        4. Versions that nobody needs any more are let go.
        """
        steered = None
        self.look_again = None
        if urgent := self._requests.urgent(self._report.now().resident, self._before):
            steered = self._round(urgent, None)
        fresh = self._requests.fresh()
        swapped = self._round(fresh, self._look())
        self._report.problem(self._problem or self._machine_failures.reason)
        self.tend()
        return swapped or steered

    def tend(self) -> None:
        """Let go of what nobody needs any more."""
        self._replica.tend()
        self._report.memory(self._replica)
        self._replica.obstacle = self._report.now().obstacle

    def _look(self) -> Look:
        found = self._replica.source.look()
        problem = None if found.problem is None else told(found.problem)
        if found.numbers is not None:
            self._report.found(found.latest, found.numbers)
            self._quarantine.keep(found.numbers)
            self._unfinished.keep(found.numbers)
            problem = problem or self._missing(found.numbers)
        if found.problem is not None and fault_of(found.problem) is Fault.THE_MACHINES:
            now = time.monotonic()
            self._looks.failed(now)
            self._soon(self._looks.left(now))
        else:
            self._looks = Backoff()
        absent = found.latest is None and found.problem is None
        self._report.waiting(diagnosis.absence(self._replica.source.path) if absent else None)
        self._problem = problem
        self._report.problem(problem or self._machine_failures.reason)
        return found

    def _soon(self, seconds: float) -> None:
        self.look_again = seconds if self.look_again is None else min(seconds, self.look_again)

    def _missing(self, published: list[int]) -> str | None:
        """Which versions were chosen and are nowhere."""
        there = {*published, *self._report.now().resident}
        chosen = {f"the label {label!r} names": number for label, number in self._requests.labels.items()}
        if self._requests.pinned is not None:
            chosen = {"pinned to": self._requests.pinned, **chosen}
        store = self._replica.source.path
        lost = [f"{how} version {number}" for how, number in chosen.items() if number not in there]
        lost += [f"a configuration names version {number}" for number in self._requests.beside if number not in there]
        return f"{', '.join(lost)}, which store {store} does not have" if lost else None

    def _round(self, fresh: Iterable[OperatorRequest], looked: Look | None) -> Version | None:
        """Without a look, only versions in memory count."""
        found, whole = looked or Look(), looked is not None
        latest = found.latest.number if found.latest is not None and found.problem is None else None
        known = Known(published=found.numbers, latest=latest, before=self._before)
        for number in self._requests.admit(fresh, self._report.now(), known):
            self._quarantine.forget(number)
            self._machine_failures.forget(number)
        pinned = self._requests.pinned
        self._report.pinned(pinned)
        self._report.quarantine(self._quarantine)
        self._label()
        swapped = None
        self._wanted.clear()
        try:
            swapped = self._advance(found, pinned)
            self._label()  # a version written again is labelled anew where it came to serve
            self._restore_labelled(found.published or [])
            self._beside.bring(self._held(found.published or []), found.published)
            self._report.memory(self._replica)
            if found.published is not None:
                self._machine_failures.keep(self._wanted)
                self._quarantine.forget_rewritten(found.published)
                self._report.quarantine(self._quarantine)
        except _OvertakenError:
            whole = False
            self._report.gave_up()
            self._notify()
        self._requests.settle(self._report.status, found.numbers, whole=whole)
        if self._requests.pinned != pinned:  # a pin that failed
            self._report.pinned(self._requests.pinned)
            self._notify()
        return swapped

    def _advance(self, found: Look, pinned: int | None) -> Version | None:
        """Swap to the version that policy names, or to the next best one where that cannot be used."""
        published = found.published or []
        if found.problem is not None and self._serving is not None and pinned is None:
            # newer versions cannot be seen now: the store did not start over with lower numbers
            published = [one for one in published if one.number >= self._serving.number]
        if self._serving is not None and any(one.same_as(self._serving) for one in published):
            self._quarantine.forget(self._serving.number)  # its files could not be read for a while
        gone = pinned is not None and pinned not in {one.number for one in published}
        candidates: list[Candidate[Version]] = [*(self._in_memory(pinned) if gone else ()), *published]
        passed_over = self._quarantine.files()
        while not self._ended():
            one = next_restore(candidates, serving=self._serving, quarantined=passed_over, pinned=pinned)
            if one is None:
                return None
            began = time.monotonic()
            resident = self._resident(one) or self._restored(one)
            if self._ended():
                return None
            if resident is not None:
                self._swap(one, resident, time.monotonic() - began)
                return one.version
            passed_over[one.number] = one.files
        return None

    def _in_memory(self, number: int | None) -> list[Candidate[Version]]:
        """That version, if it is there, whatever became of its files since."""
        resident = self._by_number(number)
        return [] if resident is None else [Candidate(resident.version, self._files.get(resident))]

    def _resident(self, one: Candidate[Version]) -> InMemory | None:
        """That version with these files, where it is in memory."""
        known = ((have, Candidate(have.version, self._files.get(have))) for have in self._replica.residents)
        return next((have for have, candidate in known if one.same_as(candidate)), None)

    def _restored_beside(self, one: Candidate[Version]) -> InMemory | None:
        """Restore a prefetched version: news ends it, unless somebody waits for it."""
        return self._restored(one, until=lambda: self._asked() and not self._requests.preparing)

    def _restored(self, one: Candidate[Version], *, until: Callable[[], bool] = lambda: False) -> InMemory | None:
        """That version, brought in aside; None where that cannot be done, or not yet again. Raises _OvertakenError."""

        def tell(progress: Progress) -> None:
            self._report.progress(one.version, progress)
            if self._ended() or until() or self._requests.overtaking(self._report.now().resident, self._before):
                raise _OvertakenError

        self._wanted.add(one.number)
        if left := self._machine_failures.left(one, time.monotonic()):
            self._soon(left)
            return None
        self._report.restoring(one.version)
        began = time.monotonic()
        try:
            resident: InMemory = self._replica.restore(one.version, tell)
        except _OvertakenError:
            raise
        except Exception as error:  # noqa: BLE001, no content of a store may end the follower
            self._report.gave_up()
            let_go(error)
            self._failed(one, error)
            return None
        self._files[resident] = one.files
        self._quarantine.forget(one.number)
        self._machine_failures.forget(one.number)
        self._report.quarantine(self._quarantine)
        self._report.restored(one.version, time.monotonic() - began)
        return resident

    def _swap(self, one: Candidate[Version], resident: InMemory, seconds: float) -> None:
        self._replica.swap(resident)
        left = None if self._serving is None else self._serving.number
        self._before = served_before(self._before, left=left, now=one.number, back=self._requests.going_back)
        self._serving = one
        self._report.memory(self._replica)
        self._report.swapped(one.version, seconds, not_served=resident.graph.refused)

    def _label(self) -> None:
        """Have every label lead to the version it should lead to, where that is in memory."""
        wanted, labelling = self._requests.labels, self._requests.labelling
        given = self._replica.labels
        for label in given.keys() - wanted.keys():
            self._replica.unlabel(label)
        for label, number in wanted.items():
            resident = self._by_number(number)
            if resident is not None and (given.get(label) != number or label in labelling):
                self._replica.label(label, resident)
        self._report.memory(self._replica)

    def _restore_labelled(self, published: list[Candidate[Version]]) -> None:
        """Bring in labelled versions that are not in memory. Raises _OvertakenError."""
        given = self._replica.labels
        for label, number in self._requests.labels.items():
            if given.get(label) != number:
                resident = self._by_number(number) or self._labelled(number, published)
                if resident is not None:
                    self._replica.label(label, resident)
        self._report.memory(self._replica)

    def _held(self, published: list[Candidate[Version]]) -> list[InMemory]:
        """What a change is about to need, or said is to stay, where that can be in memory. Raises _OvertakenError."""
        there = (self._by_number(number) or self._labelled(number, published) for number in self._requests.held)
        return [resident for resident in there if resident is not None]

    def _by_number(self, number: int | None) -> InMemory | None:
        return next((one for one in self._replica.residents if one.version.number == number), None)

    def _labelled(self, number: int, published: list[Candidate[Version]]) -> InMemory | None:
        """Restore a version for its label alone. A rewritten one keeps the label it has: this is for new labels."""
        passed_over = self._quarantine.files()
        for one in published:
            if one.number == number and passed_over.get(number) != one.files and not self._ended():
                return self._restored(one)
        return None

    def _failed(self, one: Candidate[Version], error: Exception) -> None:
        """Decide on quarantine. An incomplete version is looked at again soon; after a while that is a fault too.

        A failure of this machine is tried again, and never held against the version.
        """
        fault = fault_of(error)
        if fault is Fault.THE_MACHINES:
            self._postpone(one, error)
            return
        left = self._unfinished.left(one, time.monotonic()) if fault is Fault.UNFINISHED else None
        if fault is Fault.UNFORESEEN:
            _log.error("%s: version %d failed in a way nobody foresaw", self._report.called, one.number, exc_info=error)
        if left is None:
            self._set_aside(one, told(error), own_fault=fault is not Fault.NOT_ITS_OWN)
        else:
            _log.debug("%s: version %d is not complete yet: %s", self._report.called, one.number, told(error))
            self._soon(left)

    def _postpone(self, one: Candidate[Version], error: Exception) -> None:
        now = time.monotonic()
        self._machine_failures.add(one, f"version {one.number} is tried again: {told(error)}", now)
        self._soon(self._machine_failures.left(one, now))

    def _set_aside(self, one: Candidate[Version], reason: str, *, own_fault: bool) -> None:
        """Quarantine a version, unless its files are others by now."""
        try:
            is_another = self._replica.source.identity(one.version) != one.files
        except OSError as error:
            self._postpone(one, error)
            return
        if is_another:
            _log.debug("%s: version %d was pruned or rewritten while it was read", self._report.called, one.number)
            self._notify()
            return
        news = self._quarantine.add(one.number, reason, since=self._clock(), files=one.files if own_fault else None)
        if news:
            self._report.quarantined(one.version, reason, self._quarantine)
        else:
            self._report.quarantine(self._quarantine)
