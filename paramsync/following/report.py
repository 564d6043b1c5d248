"""Report: a follower's status of its model, and events for subscribers."""

from __future__ import annotations

import logging
import math
import statistics
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from paramsync.following.policy import Publications
from paramsync.following.residents import Residents
from paramsync.host.files import Repeats
from paramsync.remote import copy_note
from paramsync.sources.source import Progress
from paramsync.status import EVERY_KIND, Event, EventKind, Quarantined, State, Status, waits_until
from paramsync.store.store import LastPublisher, PublisherState
from paramsync.version import Version

_log = logging.getLogger("paramsync.follower")
MOST_UNREAD = 256  # events that a subscriber may leave unread
_MOST_PROGRESS = 64  # a subscriber with this many unread events gets no more events of progress
_BETWEEN = 0.05  # seconds between events about the progress of one restore
_BETWEEN_SWAPS = 10.0  # seconds between log lines about swaps
_ENDED = 8  # how many freed versions the status still lists


class Subscription:
    """The queue in which a subscriber gets a follower's events of the given kinds. Safe to use from any thread.

    `wake` is called on the follower's thread after each event: it must return at once and must not raise. A subscriber
    with _MOST_PROGRESS unread events gets no events of progress until it has read some. A subscriber with MOST_UNREAD
    unread events has fallen behind, and gets no more events at all.
    """

    def __init__(
        self, wake: Callable[[], None], leave: Callable[[Subscription], None], kinds: Collection[EventKind]
    ) -> None:
        self._events: deque[Event] = deque()
        self._kinds = kinds
        self._wake = wake
        self._leave = leave
        self.fell_behind = False

    def put(self, event: Event) -> None:
        if event.kind not in self._kinds:
            return
        if event.kind is EventKind.RESTORING and event.progress is not None and len(self._events) >= _MOST_PROGRESS:
            return
        self.fell_behind = self.fell_behind or len(self._events) >= MOST_UNREAD
        if not self.fell_behind:
            self._events.append(event)
        self._wake()

    def take(self) -> list[Event]:
        """Return all events since the last call, oldest first."""
        taken = []
        while True:
            try:
                taken.append(self._events.popleft())
            except IndexError:
                return taken

    def close(self) -> None:
        self._leave(self)


# The report, which the follower's thread writes -----------------------------------------------------------------------


class Report:
    """Reports what has happened. Any thread may use `status` and `subscribe`; the follower's thread uses
    the rest, unless a method says otherwise."""

    def __init__(self, model: str, store: Path, *, pinned: int | None, clock: Callable[[], float]) -> None:
        # guards changes of the next field; no thread holds the lock while it delivers an event
        self._lock = threading.Lock()
        self._subscriptions: tuple[Subscription, ...] = ()
        self._clock = clock
        self._status = Status(model=model, store=store, pinned=pinned)
        self._progress: Progress | None = None
        self._told_at = 0.0
        self._publications = Publications()
        self._swaps = SwapLog(model)
        self._repeats = Repeats()  # suppresses repeated errors
        self._on_trial = False
        self._error = ""  # the error of the last look at the store, or of this machine
        self._waiting = ""  # why the store has no version

    def set_on_trial(self, trial: bool) -> None:
        """Set whether the model is a new configuration on trial, beside a model of the same name.

        Safe from any thread.
        """
        self._on_trial = trial

    @property
    def name(self) -> str:
        """The name of the model in log lines."""
        status = self._status
        return f"{status.model} (new configuration on trial, store {status.store})" if self._on_trial else status.model

    def subscribe(self, wake: Callable[[], None], kinds: Collection[EventKind] = EVERY_KIND) -> Subscription:
        """Subscribe to events of these kinds, until the subscription is closed."""
        subscription = Subscription(wake, self._unsubscribe, kinds)
        with self._lock:
            self._subscriptions = (*self._subscriptions, subscription)
        return subscription

    def _unsubscribe(self, left: Subscription) -> None:
        with self._lock:
            self._subscriptions = tuple(other for other in self._subscriptions if other is not left)

    def status(self) -> Status:
        """Return the status, with lags and ages as of now."""
        status = self._status
        progress = self._progress if status.restoring is not None else None
        bucket = status.bucket
        if bucket is not None:
            bucket = replace(bucket, answered_at=copy_note.answered_at(status.store))
        return replace(status, restoring_progress=progress, bucket=bucket).at(self._clock(), time.monotonic())

    def now(self) -> Status:
        """Return the status without lags and ages."""
        return self._status

    def set_error(self, text: str) -> None:
        """Report an error of the store or of this machine; "" if there is none. The serving version stays."""
        if not text:
            self._repeats.over()
        elif text != self._error and (line := self._repeats.text(text)) is not None:
            _log.warning("%s: %s", self.name, line, extra={"model": self._status.model})
        self._error = text
        self.set(reason=self._reason)

    @property
    def _reason(self) -> str:
        status = self._status
        waits = "" if status.next is None or status.serving is not None else waits_until(status.next, status.next_at)
        if (
            waits and status.bucket is not None and status.bucket.clock
        ):  # a wrong clock may delay the moment by up to LATEST_MOMENT
            waits += f"; {status.bucket.clock}"
        return self._error or self._waiting or waits

    def set_waiting(self, reason: str, *, unread: bool) -> None:
        """Report why the store has no version; "" if it has one. `unread` says that the store could not be read."""
        if reason and reason != self._waiting:
            _log.warning("%s: waits for a version: %s", self.name, reason, extra={"model": self._status.model})
        self._waiting = reason
        lost = unread or (bool(reason) and self._status.serving is not None)
        self.set(reason=self._reason, store_lost=lost)

    def set_published(self, latest: Version | None, published: Sequence[Version]) -> None:
        self._log_swaps()
        known = self._status.published
        news = latest is not None and (known is None or known.number != latest.number)
        now = time.monotonic()
        serving = self._status.serving
        in_memory = () if serving is None else (serving.number, *self._status.resident)
        self._publications.update(published, in_memory, now)
        self.set(published=latest, in_store=tuple(version.number for version in published))
        if news:
            self.set(found_at=now)
        self._compare()
        if latest is not None and news:
            self._tell(EventKind.FOUND, latest)

    def set_publisher(self, publisher: LastPublisher | None) -> None:
        """Set the publisher's state, and estimate when a dead publisher died.

        If the publisher was alive at the previous look at the store, it died about now. Otherwise the time of its
        latest version is the best estimate.
        """
        before, latest = self._status.publisher, self._status.published
        if publisher is None or publisher.state is not PublisherState.DIED:
            self.set(publisher=publisher)
        elif before is not None and before.state is PublisherState.TRAINING:
            self.set(publisher=replace(publisher, since=self._clock()))
        elif before is None or before.state is PublisherState.FINISHED or before.began != publisher.began:
            published_at = 0.0 if latest is None else latest.committed_at or 0.0
            self.set(publisher=replace(publisher, since=max(publisher.since, published_at)))

    def _compare(self) -> None:
        """Compare the serving version with the published versions."""
        serving = self._status.serving
        overdue, count = self._publications.newer(None if serving is None else serving.number)
        self.set(overdue=overdue, lag_versions=None if serving is None else count)

    def begin_restore(self, version: Version) -> None:
        self._progress = None
        self._told_at = time.monotonic()
        self.set(restoring=version.number)
        self._tell(EventKind.RESTORING, version)

    def set_progress(self, version: Version, progress: Progress) -> None:
        """Set the progress of the restore. Sends at most one event in _BETWEEN seconds. Safe from any thread."""
        known = self._progress
        if known is not None and not progress.bytes_total:  # later phases report no totals: keep the last totals
            progress = replace(known, phase=progress.phase)
        self._progress = progress
        now = time.monotonic()
        if now - self._told_at >= _BETWEEN:
            self._told_at = now
            self._tell(EventKind.RESTORING, version, progress=progress)

    def end_restore(self, version: Version, seconds: float) -> None:
        self.set(restoring=None, restores=self._status.restores + 1)
        self._tell(EventKind.RESTORED, version, restore_seconds=seconds, progress=self._progress)

    def swap(
        self,
        version: Version,
        seconds: float,
        *,
        not_served: Mapping[str, str],
        signed_by: str,
        moment: float | None,
    ) -> None:
        """Set the serving version.

        `not_served` has the reason for each signature that is left out. `signed_by` is the trusted key; "" if there is
        none. `moment` is when the version was to serve; None if it has no moment, or one that this follower could not
        meet.
        """
        swaps = self._status.swaps + 1
        skew = None if moment is None else self._clock() - moment
        if self._status.next == version.number:
            self.set(next=None, next_at=None)
        self.set(swap_skew_seconds=skew)
        serves = {"serving": version, "served_at": time.monotonic(), "signed_by": signed_by, "not_served": not_served}
        self.set(state=State.SERVING, **serves, swaps=swaps, restore_seconds=seconds)
        self._compare()
        self._swaps.add(version.number, seconds)
        self._log_swaps()
        self._tell(EventKind.SWAPPED, version, restore_seconds=seconds)

    def set_next(self, version: int | None, at: float | None) -> None:
        """Set the version in memory that waits for its moment, and this moment."""
        self.set(next=version, next_at=at)
        self.set(reason=self._reason)

    def serve_nothing(self) -> None:
        """Note that nothing serves any more."""
        self.set(state=State.WAITING, serving=None, signed_by="")
        self._compare()

    def _log_swaps(self) -> None:
        """Log swaps, unless the model is on trial, because a model on trial answers no requests yet."""
        if not self._on_trial:
            self._swaps.flush()

    def add_quarantined(self, version: Version, reason: str, quarantine: tuple[Quarantined, ...]) -> None:
        """Report one more quarantined version; `quarantine` is all of them."""
        self.set(quarantined=quarantine, quarantines=self._status.quarantines + 1)
        known = {"model": self._status.model, "version": version.number, "step": version.step}
        _log.warning("%s: version %d is quarantined: %s", self.name, version.number, reason, extra=known)
        self._tell(EventKind.QUARANTINED, version, reason=reason)

    def set_memory(self, replica: Residents[Any]) -> None:
        """Set the versions in memory, and the dropped versions that are not freed yet."""
        before = self._status
        resident = tuple(dict.fromkeys(version.version.number for version in replica.residents))
        leaving = tuple(number for number in dict.fromkeys(replica.leaving) if number not in resident)
        left = [
            number for number in (*before.resident, *before.leaving) if number not in resident and number not in leaving
        ]
        self.set(
            resident=resident,
            leaving=leaving,
            labels=replica.labels,
            ended=_latest([*before.ended, *left], without={*resident, *leaving}),
        )

    def set(self, **changes: Any) -> None:
        """Set fields of the status."""
        if any(getattr(self._status, name) != value for name, value in changes.items()):  # often no field changes
            self._status = replace(self._status, **changes)

    def _tell(self, kind: EventKind, version: Version, **more: Any) -> None:
        event = Event(kind=kind, model=self._status.model, version=version, at=self._clock(), **more)
        for subscription in self._subscriptions:
            subscription.put(event)


class SwapLog:
    """Logs at most one line in _BETWEEN_SWAPS seconds; a line may stand for several swaps. Belongs to one thread."""

    def __init__(self, model: str, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._model = model
        self._clock = clock
        self._number = 0
        self._seconds: list[float] = []  # durations of the restores of swaps that were not logged
        self._made_at = clock()
        self._logged_at = -math.inf

    def add(self, number: int, seconds: float) -> None:
        self._number = number
        self._seconds.append(seconds)

    def flush(self) -> None:
        """Log the swaps that are due."""
        now = self._clock()
        if not self._seconds or now - self._logged_at < _BETWEEN_SWAPS:
            return
        took = statistics.median(self._seconds) * 1000
        known = {"model": self._model, "version": self._number}
        if len(self._seconds) == 1:
            _log.info("%s: version %d serves, after %.1f ms", self._model, self._number, took, extra=known)
        else:
            since = now - max(self._logged_at, self._made_at)
            text = "%s: version %d serves, the last of %d swaps in %.0f s, each after %.1f ms (median)"
            _log.info(text, self._model, self._number, len(self._seconds), since, took, extra=known)
        self._seconds.clear()
        self._logged_at = now


def _latest(numbers: list[int], *, without: Collection[int]) -> tuple[int, ...]:
    """Return the last _ENDED numbers, each once, in the order of their last occurrence."""
    kept = [number for number in reversed(dict.fromkeys(reversed(numbers))) if number not in without]
    return tuple(kept[-_ENDED:])
