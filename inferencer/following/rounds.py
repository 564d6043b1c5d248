"""Following: one round after another, what a store has and what operators ask becomes what a replica serves."""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Hashable, Iterable
from weakref import WeakKeyDictionary

from inferencer.following.faults import Fault, fault_of, told
from inferencer.following.patience import Patience
from inferencer.following.progress import Progress
from inferencer.following.quarantine import Quarantine
from inferencer.following.report import Report
from inferencer.following.wish import Wish
from inferencer.following.wishes import Known, Wishes
from inferencer.policy import Candidate, next_restore
from inferencer.replica import Replica
from inferencer.resident import Resident
from inferencer.sources import Look
from paramsync import way
from paramsync.version import Version

_log = logging.getLogger("paramsync.follower")
_BEFORE = 16  # versions that served before which a rollback knows of


class _OvertakenError(Exception):
    """What is being restored is not wanted any more, or not as much as something else."""


class Following:
    """What one thread does for a replica. `ended` tells whether that is over, `notify` asks for another round."""

    def __init__(
        self,
        replica: Replica,
        wishes: Wishes,
        report: Report,
        *,
        clock: Callable[[], float],
        ended: Callable[[], bool],
        notify: Callable[[], None],
    ) -> None:
        self.look_again: float | None = None  # seconds, where that is sooner than the next poll
        self._replica = replica
        self._wishes = wishes
        self._report = report
        self._clock = clock
        self._ended = ended
        self._notify = notify
        self._serving: Candidate[Version] | None = None
        self._before: deque[int] = deque(maxlen=_BEFORE)  # what served before that, the last one first
        self._files: WeakKeyDictionary[Resident, Hashable] = WeakKeyDictionary()
        self._quarantine = Quarantine()
        self._patience = Patience()

    def run_once(self) -> Version | None:
        """One round. Returns the version that came to serve, if one did.

        1. What is about versions in memory is done without a look at the store, however long that takes.
        2. The store is looked at, and the version to serve is restored and swapped to if it is another one. One that
           cannot be used is quarantined, and the next best one is taken.
        3. Labels are given, and whoever waits for what has come true is told.
        4. Versions that nobody needs any more are let go.
        """
        steered = None
        if urgent := self._wishes.urgent(self._report.now().resident, self._before):
            steered = self._round(urgent, Look())
        fresh = self._wishes.fresh()
        swapped = self._round(fresh, self._look())
        self.tend()
        return swapped or steered

    def tend(self) -> None:
        """Let go of what nobody needs any more."""
        way.give()
        self._replica.tend()
        self._report.memory(self._replica)

    def _look(self) -> Look:
        found = self._replica.source.look()
        problem = None if found.problem is None else told(found.problem)
        if found.numbers is not None:
            self._report.found(found.latest, found.numbers)
            self._quarantine.keep(found.numbers)
            self._patience.keep(found.numbers)
            problem = problem or self._missing(found.numbers)
        self._report.problem(problem)
        return found

    def _missing(self, published: list[int]) -> str | None:
        """What was chosen and is nowhere."""
        there = {*published, *self._report.now().resident}
        chosen = {f"the label {label!r} names": number for label, number in self._wishes.labels.items()}
        if self._wishes.pinned is not None:
            chosen = {"pinned to": self._wishes.pinned, **chosen}
        store = self._replica.source.path
        lost = [f"{how} version {number}" for how, number in chosen.items() if number not in there]
        return f"{', '.join(lost)}, which store {store} does not have" if lost else None

    def _round(self, fresh: Iterable[Wish], found: Look) -> Version | None:
        way.give()
        latest = found.latest.number if found.latest is not None and found.problem is None else None
        known = Known(published=found.numbers, latest=latest, before=self._before)
        for number in self._wishes.admit(fresh, self._report.now(), known):
            self._quarantine.forget(number)
        pinned = self._wishes.pinned
        self._report.pinned(pinned)
        self._report.quarantine(self._quarantine)
        swapped = None
        try:
            swapped = self._advance(found.published or [], pinned)
            self._label(found.published or [])
        except _OvertakenError:
            self._report.gave_up()
            self._notify()
        self._wishes.settle(self._report.status, found.numbers)
        if self._wishes.pinned != pinned:  # a pin that failed
            self._report.pinned(self._wishes.pinned)
            self._notify()
        return swapped

    def _advance(self, published: list[Candidate[Version]], pinned: int | None) -> Version | None:
        """Swap to the version that policy names, or to the next best one where that cannot be used."""
        if self._serving is not None and any(one.same_as(self._serving) for one in published):
            self._quarantine.forget(self._serving.number)  # for a while its files could not be read
        gone = pinned is not None and pinned not in {one.number for one in published}
        candidates: list[Candidate[Version]] = [*(self._in_memory(pinned) if gone else ()), *published]
        passed_over = self._quarantine.files()
        self.look_again = None
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

    def _resident(self, one: Candidate[Version]) -> Resident | None:
        """That version with these files, where it is in memory."""
        known = ((have, Candidate(have.version, self._files.get(have))) for have in self._replica.residents)
        return next((have for have, candidate in known if one.same_as(candidate)), None)

    def _restored(self, one: Candidate[Version]) -> Resident | None:
        """That version, brought in aside; None where that cannot be done. Raises _OvertakenError."""

        def tell(progress: Progress) -> None:
            way.give()
            self._report.progress(one.version, progress)
            if self._ended() or self._wishes.overtaking(self._report.now().resident, self._before):
                raise _OvertakenError

        way.give()
        self._report.restoring(one.version)
        began = time.monotonic()
        try:
            resident = self._replica.restore(one.version, tell)
        except _OvertakenError:
            raise
        except Exception as error:  # noqa: BLE001, no content of a store may end the follower
            self._report.gave_up()
            self._failed(one, error)
            return None
        self._files[resident] = one.files
        self._quarantine.forget(one.number)
        self._report.quarantine(self._quarantine)
        self._report.restored(one.version, time.monotonic() - began)
        return resident

    def _swap(self, one: Candidate[Version], resident: Resident, seconds: float) -> None:
        way.give()
        self._replica.swap(resident)
        if self._wishes.going_back:
            while self._before and self._before.popleft() != one.number:
                pass
        elif self._serving is not None and self._serving.number != one.number:
            self._before.appendleft(self._serving.number)
        self._serving = one
        self._report.memory(self._replica)
        self._report.swapped(one.version, seconds)

    def _label(self, published: list[Candidate[Version]]) -> None:
        """Have every label lead to the version it should lead to, where that is there. Raises _OvertakenError."""
        way.give()
        wanted, labelling = self._wishes.labels, self._wishes.labelling
        given = self._replica.labels
        for label in given.keys() - wanted.keys():
            self._replica.unlabel(label)
        for label, number in wanted.items():
            if given.get(label) != number or label in labelling:
                resident = self._by_number(number) or self._labelled(number, published)
                if resident is not None:
                    self._replica.label(label, resident)
        self._report.memory(self._replica)

    def _by_number(self, number: int | None) -> Resident | None:
        return next((one for one in self._replica.residents if one.version.number == number), None)

    def _labelled(self, number: int, published: list[Candidate[Version]]) -> Resident | None:
        """Restored for its label alone. One that was rewritten keeps the label it has, so that this is for new ones."""
        passed_over = self._quarantine.files()
        for one in published:
            if one.number == number and passed_over.get(number) != one.files and not self._ended():
                return self._restored(one)
        return None

    def _failed(self, one: Candidate[Version], error: Exception) -> None:
        """What is not complete yet is looked at again soon, and after a while like any other fault."""
        fault = fault_of(error)
        left = self._patience.left(one, time.monotonic()) if fault is Fault.UNFINISHED else None
        if fault is Fault.UNFORESEEN:
            _log.error("%s: version %d failed in a way nobody foresaw", self._replica.model, one.number, exc_info=error)
        if left is None:
            self._set_aside(one, told(error), own_fault=fault is not Fault.NOT_ITS_OWN)
        else:
            _log.debug("%s: version %d is not complete yet: %s", self._replica.model, one.number, told(error))
            self.look_again = left if self.look_again is None else min(left, self.look_again)

    def _set_aside(self, one: Candidate[Version], reason: str, *, own_fault: bool) -> None:
        """It is quarantined unless its files are others by now."""
        if self._replica.source.identity(one.version) != one.files:
            _log.debug("%s: version %d was pruned or rewritten while it was read", self._replica.model, one.number)
            self._notify()
            return
        news = self._quarantine.add(one.number, reason, since=self._clock(), files=one.files if own_fault else None)
        if news:
            self._report.quarantined(one.version, reason, self._quarantine)
        else:
            self._report.quarantine(self._quarantine)
