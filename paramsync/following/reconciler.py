"""Reconciler: updates a replica, round by round, to what its store has and what operators ask for."""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable, Hashable, Iterable, Mapping
from typing import Any
from weakref import WeakKeyDictionary

from paramsync.following.faults import Fault, describe, fault_of, free_frames
from paramsync.following.operator_requests import OperatorRequest, OperatorRequests
from paramsync.following.pins_file import Choices
from paramsync.following.policy import Backoff, Failures, newest, next_restore, served_before, stand_in, upcoming
from paramsync.following.report import Report
from paramsync.following.residents import Residents
from paramsync.moments import Moments, too_far
from paramsync.remote import copy_note
from paramsync.sources import diagnosis
from paramsync.sources.source import Look, Progress
from paramsync.status import State
from paramsync.version import Candidate, InMemory, Version

_log = logging.getLogger("paramsync.follower")
_LOOK_SECONDS = 0.1  # how long the look at the store is delayed after a swap at a moment
_CLOCK_SECONDS = 1.0  # how often the clock is read while a version waits for its moment: the clock may be set


class _OvertakenError(Exception):
    """Ends a restore that a request, a moment or a change of the store overtook, or that runs while `ended` is set."""


class Reconciler:
    """The rounds of one replica, on one thread.

    The follower sets `ended` to stop the rounds. Setting `rung` requests another round; the follower clears `rung`
    before each round.
    """

    def __init__(
        self,
        replica: Residents[Any],
        requests: OperatorRequests,
        report: Report,
        *,
        clock: Callable[[], float],
        ended: threading.Event,
        rung: threading.Event,
        serve_damaged: bool = False,
    ) -> None:
        self.look_again: float | None = None  # seconds until the next round, if sooner than the poll
        self._replica = replica
        self._requests = requests
        self._report = report
        self._clock = clock
        self._ended = ended.is_set
        self._rung = rung
        self._serve_damaged = serve_damaged
        self._serving: Candidate | None = None
        self._files: WeakKeyDictionary[InMemory, Hashable] = WeakKeyDictionary()
        # the files of each version at its last damage check
        self._examined: WeakKeyDictionary[InMemory, Hashable] = WeakKeyDictionary()
        self._damaged: InMemory | None = None  # a damaged version that serves because there is no other version
        self._failures = Failures()
        self._wanted: set[int] = set()  # versions that this round restored, tried to restore, or postponed
        self._looks = Backoff()
        self._error = ""  # the error of the last look at the store
        self._note: copy_note.CopyNote | None = None  # the last note that could be read, if the store is a copy
        self._newest: list[InMemory] = []  # the newest versions of the store, which stay in memory
        self._moments = Moments()
        self._waiting: list[InMemory] = []  # versions that wait in memory for their moments, the earliest first
        self._candidates: list[Candidate] = []  # the versions among which the last round chose
        self._moved_at: float | None = None  # the moment of the move that this round makes, if any
        self._follows_since: float | None = None  # when this follower began, or was last pinned or unpinned

    def run_once(self) -> Version | None:
        """Run one round. Returns the version to which the round swapped, if any.

        1. Handle requests that need only versions in memory, and swap to a version in memory whose moment has come.
           This comes first because a look at the store may take long. If a moment led to the swap and no caller waits,
           the round ends here, and the next round comes soon: other followers of this machine swap at the same moment,
           and need the processors.
        2. Look at the store.
        3. Set the labels of versions in memory. This comes before the restores, because a pin may interrupt a restore.
        4. Restore the version to serve and swap to it. If the version cannot be used, quarantine it and try the next
           best version.
        5. Restore labelled versions, versions whose moments are to come, and others that are to be in memory.
        6. Answer the requests that are fulfilled.
        7. Free versions that nobody needs any more.
        """
        self.look_again = None
        self._requests.now = self._clock()
        swapped = None
        if (urgent := self._requests.urgent(self._report.now())) or self._is_time():
            swapped = self._round(urgent, None)
        if swapped is not None and not urgent and not self._requests.any_open:
            self._soon(_LOOK_SECONDS)
        else:
            fresh = self._requests.fresh()
            swapped = self._round(fresh, self._look()) or swapped
            self._report_error()
            self.tend()
        if (left := self._moments.left(*self._now())) is not None:
            self._soon(min(left, _CLOCK_SECONDS))
        return swapped

    def tend(self) -> None:
        """Free versions that nobody needs any more."""
        self._replica.tend()
        self._report.set_memory(self._replica)
        self._replica.reason = self._report.now().short_reason

    def release(self) -> None:
        """Drop all versions. Set `ended` first, so that a round that still runs keeps no version."""
        self._newest, self._waiting, self._damaged = [], [], None
        self._replica.release()

    def _look(self) -> Look:
        path = self._replica.source.path
        note = copy_note.read(path)
        if note is None and copy_note.is_there(path):
            note = self._note  # a damaged note must not lift the pin of all followers
        self._note = note
        self._report.set(bucket=None if note is None else note.status)
        self._requests.fleet = Choices() if note is None else Choices(pinned=note.pinned, labels=note.labels)
        self._requests.fleet_move = None if note is None else note.move
        look = self._replica.source.look()
        error = "" if look.problem is None else describe(look.problem)
        if look.published is not None and look.numbers is not None:
            self._report.set_published(look.latest, [candidate.version for candidate in look.published])
            self._failures.keep(look.numbers)
            error = error or self._missing(look.numbers)
        if look.problem is not None and fault_of(look.problem) is Fault.THE_MACHINES:
            now = time.monotonic()
            self._looks.failed(now)
            self._soon(self._looks.left(now))
        else:
            self._looks = Backoff()
        # in a copy of a bucket, the mirror holds the lock, and the note says how the publisher ended
        self._report.set_publisher(look.publisher if note is None else note.publisher)
        absent = look.latest is None and look.problem is None
        absence = diagnosis.absence(self._replica.source.path) if absent else ""
        self._report.set_waiting(absence, unread=look.problem is not None)
        self._error = error
        self._report_error()
        return look

    def _report_error(self) -> None:
        bucket, wrong_clock = self._report.now().bucket, ""
        if self._serving is not None:
            wrong_clock = too_far(self._serving.version, self._clock()) or ("" if bucket is None else bucket.clock)
        self._report.set_error(self._error or self._failures.reason or self._replica.trouble or wrong_clock)

    def _now(self) -> tuple[float, float]:
        return self._clock(), time.monotonic()

    def _is_time(self) -> bool:
        """Return whether the moment of a move, or of a version that waits in memory, has come."""
        numbers = {*(resident.version.number for resident in self._waiting), None}
        return self._moments.left(*self._now(), only=numbers) == 0.0

    def _soon(self, seconds: float) -> None:
        self.look_again = seconds if self.look_again is None else min(seconds, self.look_again)

    def _missing(self, published: list[int]) -> str:
        """Return a text about the chosen versions that are neither in the store nor in memory; "" if there are none."""
        there = {*published, *self._report.now().resident}
        chosen = {f"the label {label!r} names": number for label, number in self._requests.labels.items()}
        if self._requests.pinned is not None:
            chosen = {"pinned to": self._requests.pinned, **chosen}
        store = self._replica.source.path
        lost = [f"{how} version {number}" for how, number in chosen.items() if number not in there]
        lost += [f"a configuration names version {number}" for number in self._requests.beside if number not in there]
        return f"{', '.join(lost)}, which store {store} does not have" if lost else ""

    def _round(self, fresh: Iterable[OperatorRequest], store: Look | None) -> Version | None:
        """Admit requests, restore and swap, and answer requests. Without `store`, use only versions in memory."""
        look, whole = store or Look(), store is not None
        latest = look.latest.number if look.latest is not None and look.problem is None else None
        move = self._moments.move = self._requests.next_move(latest)
        published = [candidate.version for candidate in look.published or []]
        self._moments.update([*(resident.version for resident in self._residents), *published], *self._now())
        self._requests.is_waiting = is_waiting = None in self._moments.coming
        self._requests.refuse_unknown(self._report.now(), look.numbers)
        for number in self._requests.admit(fresh, self._report.now(), look.numbers, latest):
            self._failures.pardon(number)
        pinned = self._requests.pinned
        if self._follows_since is None or pinned != self._report.now().pinned:
            is_moved = move is not None and not is_waiting and move.at >= (self._follows_since or math.inf)
            self._moved_at = move.at if move is not None and is_moved else None
            self._follows_since = self._clock() if self._moved_at is None else self._moved_at
        self._report.set(pinned=pinned, quarantined=self._failures.quarantined())
        if failing := self._replica.failing():
            self._drop(failing)
        if damaged := self._damages(look.published or []):
            self._drop(damaged, damaged=True)
        self._label()
        swapped = None
        self._wanted.clear()
        try:
            swapped = self._advance(look, pinned)
            self._label()  # label again, because the new serving version may have labels
            self._bring_beside(look.published)
            if look.published is not None:
                self._failures.settle(look.published, self._wanted)
                self._report.set(quarantined=self._failures.quarantined())
        except _OvertakenError:
            whole = False
            self._report.set(restoring=None)
            self._rung.set()
        else:
            self._moved_at = None
        self._requests.settle(self._report.status, look.numbers, whole=whole)
        if self._requests.pinned != pinned:  # the request's pin failed, so the earlier choice stays
            self._report.set(pinned=self._requests.pinned)
            self._rung.set()
        return swapped

    def _advance(self, look: Look, pinned: int | None) -> Version | None:
        """Swap to the version that the policy names, or to the next best if that version cannot be used."""
        published, serving = look.published or [], self._serving
        if look.problem is not None and serving is not None and pinned is None:
            # The look failed in part and may have missed newer versions, so lower numbers do not prove that the store
            # started over.
            published = [candidate for candidate in published if candidate.number >= serving.number]
        if serving is not None and any(candidate.same_as(serving) for candidate in published):
            self._failures.pardon(serving.number)  # the files of the serving version can be read again
        numbers = {candidate.number for candidate in published}
        wanted = {pinned, self._requests.pinned_next, *(resident.version.number for resident in self._waiting)}
        if serving is not None and not published:
            # otherwise an older version that waits would look as if the store had started over
            wanted.add(serving.number)
        kept = [  # versions in memory that this look does not list
            Candidate(resident.version, self._files.get(resident))
            for resident in self._residents
            if resident.version.number not in numbers and (serving is None or resident.version.number in wanted)
        ]
        candidates = sorted([*kept, *published], key=lambda candidate: candidate.number)
        self._candidates = candidates
        passed_over = self._failures.files()
        while not self._ended():
            candidate = next_restore(
                candidates,
                serving=serving,
                quarantined=passed_over,
                pinned=pinned,
                waiting=self._moments.coming,
                starts_over=not self._replica.source.signed,
            )
            if candidate is None:
                return None
            began = time.monotonic()
            resident = self._resident(candidate) or self._restored(candidate)
            if self._ended():
                return None
            if resident is not None:
                self._swap(candidate, resident, time.monotonic() - began, back=self._requests.going_back)
                return candidate.version
            passed_over[candidate.number] = candidate.files
        return None

    def _resident(self, candidate: Candidate) -> InMemory | None:
        """Return the version in memory that was restored from these files, if any."""
        residents = self._residents
        same = (known for known in residents if candidate.same_as(Candidate(known.version, self._files.get(known))))
        return next(same, None)

    def _restored(self, candidate: Candidate, *, until: Callable[[], bool] = lambda: False) -> InMemory | None:
        """Restore a version without a swap. Returns None if the restore fails or the version is postponed.

        `until` says whether to abandon the restore. Raises _OvertakenError.
        """
        number, version = candidate.number, candidate.version

        def tell(progress: Progress) -> None:
            self._report.set_progress(version, progress)
            if self._ended() or until() or self._is_time() or self._requests.overtaking(self._report.now()):
                raise _OvertakenError

        self._wanted.add(number)
        if left := self._failures.left(candidate, time.monotonic()):
            self._soon(left)
            return None
        self._report.begin_restore(version)
        began = time.monotonic()
        try:
            resident: InMemory = self._replica.restore(version, tell)
        except _OvertakenError:
            raise
        except Exception as error:  # noqa: BLE001, no content of a store may end the follower
            self._report.set(restoring=None)
            free_frames(error)
            self._failed(candidate, error)
            return None
        if self._ended():
            raise _OvertakenError
        self._files[resident] = candidate.files
        self._failures.forget(number)
        self._report.set(quarantined=self._failures.quarantined())
        self._report.end_restore(version, time.monotonic() - began)
        return resident

    def _swap(self, candidate: Candidate, resident: InMemory, seconds: float, *, back: bool) -> None:
        self._replica.swap(resident)
        moment = self._moved_at or self._moments.of(resident.version)
        if self._serving is None or self._follows_since is None or (moment or 0.0) < self._follows_since:
            moment = None  # the moment came before this follower began, or before the last pin or unpin
        self._waiting = [other for other in self._waiting if other.version.number > candidate.number]
        left = None if self._serving is None else self._serving.number
        self._serving = candidate
        self._report.set(before=served_before(self._report.now().before, left=left, now=candidate.number, back=back))
        if self._damaged is not None:
            self._replica.drop([self._damaged])
            self._damaged = None
        self._report.set_memory(self._replica)
        signed_by = resident.version.signed_by if self._replica.source.signed else ""
        self._report.swap(
            resident.version, seconds, not_served=resident.graph.refused, signed_by=signed_by, moment=moment
        )

    @property
    def _residents(self) -> list[InMemory]:
        """The versions in memory, without the damaged version that may still serve."""
        return [resident for resident in self._replica.residents if resident is not self._damaged]

    def _damages(self, published: Iterable[Candidate]) -> dict[InMemory, str]:
        """Return the versions in memory that are damaged, and how each is damaged.

        Examines suspects, and versions whose files changed since the last examination. If one of these is damaged,
        examines all other versions too, because they may share its files.
        """
        suspects = {self._replica.suspects.pop() for _ in range(len(self._replica.suspects))}
        files = {candidate.number: candidate.files for candidate in published}
        examined = {resident: self._examined.get(resident, self._files.get(resident)) for resident in self._residents}
        now = {resident: files.get(resident.version.number, before) for resident, before in examined.items()}
        suspects |= {resident for resident in examined if now[resident] != examined[resident]}
        damages: dict[InMemory, str] = {}
        for resident in sorted(examined, key=lambda resident: resident not in suspects):
            if (resident in suspects or damages) and (damage := self._replica.damage(resident)):
                damages[resident] = describe(damage)
            self._examined[resident] = now[resident]
        return damages

    def _drop(self, bad: Mapping[InMemory, str], *, damaged: bool = False) -> None:
        """Quarantine versions that turned bad after their restore, and stop answering from them.

        1. Report each bad version.
        2. If a bad version serves, swap to another version in memory. If there is no other version, nothing serves
           until the next restore; with `serve_damaged`, a damaged version goes on serving until then.
        3. Drop the bad versions.
        """
        numbers = {resident.version.number for resident in bad}
        for resident, reason in bad.items():
            files = self._files.get(resident)
            candidate = Candidate(resident.version, files)
            if self._failures.quarantine(candidate, reason, since=self._clock(), own_fault=files is not None):
                self._report.add_quarantined(resident.version, reason, self._failures.quarantined())
        self._newest = [resident for resident in self._newest if resident not in bad]
        self._waiting = [resident for resident in self._waiting if resident not in bad]
        before = tuple(number for number in self._report.now().before if number not in numbers)
        self._report.set(before=before)
        serving = next(iter(self._replica.view.recent), None)
        if serving in bad:
            good = {resident.version.number: resident for resident in self._residents if resident not in bad}
            number = stand_in(good.keys() - self._moments.coming.keys() or good, pinned=self._requests.pinned)
            self._serving = None
            if number is not None:
                candidate = Candidate(good[number].version, self._files.get(good[number]))
                self._swap(candidate, good[number], 0.0, back=number in before)
            elif damaged and self._serve_damaged:
                self._damaged = serving
                self._report.set(state=State.DAMAGED)
            else:
                self._report.serve_nothing()
        # The drop comes after the report, so that workers see the reason why nothing serves.
        if gone := [resident for resident in bad if resident is not self._damaged]:
            self._replica.drop(gone)
        self._report.set_memory(self._replica)

    def _label(self) -> None:
        """Point every label at its version, if the version is in memory.

        If the store rewrites a labelled version, the label stays at the old content of the version until an operator
        gives the label again.
        """
        labels, given = {}, self._replica.view.labels
        for label, number in self._requests.labels.items():
            resident = given.get(label)
            if resident is None or resident.version.number != number or label in self._requests.labelling:
                resident = self._by_number(number) or resident
            if resident is not None:
                labels[label] = resident
        self._replica.arrange(labels=labels)
        self._report.set_memory(self._replica)

    def _bring_beside(self, published: list[Candidate] | None) -> None:
        """Restore the versions that stay in memory beside the serving version. Raises _OvertakenError.

        Labelled versions come first, then versions that a configuration names, then versions whose moments are to come,
        then the newest versions of the store. Versions that are no longer wanted are dropped before the newest are
        restored. While the store cannot be read, or a version is pinned, the newest versions in memory stay the same.
        """
        requests, given = self._requests, self._replica.labels
        candidates = {candidate.number: candidate for candidate in published or []}
        for label, number in requests.labels.items():
            if given.get(label) != number and (resident := self._beside(candidates, number)) is not None:
                self._replica.arrange(labels={**self._replica.view.labels, label: resident})
        residents = (self._beside(candidates, number) for number in requests.held)
        held = [resident for resident in residents if resident is not None]
        count = requests.latest
        if count is None:
            self._newest = []
        self._bring_upcoming(held)
        while count is not None and published is not None and requests.pinned is None:
            wanted = newest(published, quarantined=self._failures.files(), count=count)
            there = [(candidate, self._resident(candidate)) for candidate in wanted]
            self._newest = [resident for _, resident in there if resident is not None]
            self._hold(held)
            missing = next((candidate for candidate, resident in there if resident is None), None)
            if missing is None:
                return
            # A change of the store ends this restore, unless a caller waits for the versions that a change needs.
            new = self._restored(missing, until=lambda: self._rung.is_set() and not requests.preparing)
            if new is not None:
                self._newest.append(new)
                self._hold(held)
            elif missing.number not in self._failures.files():
                return  # the next round tries this version again

    def _bring_upcoming(self, held: list[InMemory]) -> None:
        """Restore the versions whose moments are to come, the earliest first. Raises _OvertakenError."""
        failed: set[int] = set()
        while True:
            coming = upcoming(
                self._candidates,
                serving=self._serving,
                quarantined=self._failures.files(),
                coming=self._moments.coming,
                pinned=self._requests.pinned,
                pinned_next=self._requests.pinned_next,
                starts_over=not self._replica.source.signed,
            )
            there = [(candidate, self._resident(candidate)) for candidate in coming]
            self._waiting = [resident for _, resident in there if resident is not None]
            self._hold(held)
            missing = next((each for each, there in there if there is None and each.number not in failed), None)
            if missing is None:
                break
            new = self._restored(missing)
            if new is None:
                failed.add(missing.number)
            else:
                self._waiting.append(new)
                self._hold(held)
        number = next((resident.version.number for resident in self._waiting), None)
        at = None if number is None else self._moments.coming.get(number, self._moments.coming.get(None))
        self._report.set_next(number, at)

    def _hold(self, held: list[InMemory]) -> None:
        count, serving = self._requests.latest, self._replica.residents[:1]
        most = self._replica.resident if count is None else count
        others = sum(resident not in serving for resident in self._newest)
        recent = most if count is None else max(1, count - others)
        beside = [*dict.fromkeys((*held, *self._waiting, *self._newest))]
        self._replica.arrange(beside=beside, recent=recent, most=most)
        self._report.set_memory(self._replica)

    def _by_number(self, number: int | None) -> InMemory | None:
        return next((resident for resident in self._residents if resident.version.number == number), None)

    def _beside(self, candidates: Mapping[int, Candidate], number: int) -> InMemory | None:
        """Return the version with this number, restored if it is not in memory; None if it cannot be restored."""
        if (resident := self._by_number(number)) is not None:
            return resident
        candidate = candidates.get(number)
        if candidate is None or self._failures.files().get(number) == candidate.files or self._ended():
            return None
        return self._restored(candidate)

    def _failed(self, candidate: Candidate, error: Exception) -> None:
        """Quarantine or postpone a version that could not be restored, by the rules in `policy`."""
        number, fault = candidate.number, fault_of(error)
        if fault is Fault.THE_MACHINES:
            self._postpone(candidate, error)
            return
        left = self._failures.incomplete(candidate, time.monotonic()) if fault is Fault.UNFINISHED else None
        if fault is Fault.UNFORESEEN:
            known = {"model": self._report.now().model, "version": number}
            text = "%s: version %d failed in a way nobody foresaw"
            _log.error(text, self._report.name, number, exc_info=error, extra=known)
        if left is None:
            self._set_aside(candidate, describe(error), own_fault=fault is not Fault.NOT_ITS_OWN)
        else:
            _log.debug("%s: version %d is not complete yet: %s", self._report.name, number, describe(error))
            self._soon(left)

    def _postpone(self, candidate: Candidate, error: Exception) -> None:
        reason = f"version {candidate.number} is tried again: {describe(error)}"
        self._soon(self._failures.postpone(candidate, reason, time.monotonic()))

    def _set_aside(self, candidate: Candidate, reason: str, *, own_fault: bool) -> None:
        """Quarantine a version, unless its files changed during the restore."""
        number = candidate.number
        try:
            is_another = self._replica.source.identity(candidate.version) != candidate.files
        except OSError as error:
            self._postpone(candidate, error)
            return
        if is_another:
            _log.debug("%s: version %d was pruned or rewritten while it was read", self._report.name, number)
            self._rung.set()
        elif self._failures.quarantine(candidate, reason, since=self._clock(), own_fault=own_fault):
            self._report.add_quarantined(candidate.version, reason, self._failures.quarantined())
