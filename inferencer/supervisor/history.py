"""History: what became of each version of one model, and what was chosen for it. Bounded; the older, the sparser."""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass, field
from typing import Any

from paramsync.status import Event, EventKind, Status

from ..protocols.page.messages import maybe_number, number, of_metrics, of_status, short

MOST_VERSIONS = 1000
_THINNED = 750  # of which so many stay at most once there were more
_WHOLE = 400  # and of these, the newest, all
MOST_HAPPENED = 200
MOST_SAMPLES = 600
_SHOWN = 16  # labels that one look may find changed


@dataclass(slots=True)
class VersionHistory:
    """One version, the `nth` that was heard of. Times are in seconds since the epoch, None for what did not happen."""

    nth: int
    number: int
    step: int
    step_done_at: float
    committed_at: float | None
    bytes: int
    metrics: dict[str, float | None]
    restored_at: float | None = None
    served_at: float | None = None
    quarantined_at: float | None = None
    restore_seconds: float | None = None
    reason: str = ""
    sequence: int = 0

    def as_json(self) -> dict[str, Any]:
        return {
            "nth": self.nth,
            "number": number(self.number),
            "step": number(self.step),
            "step_done_at": self.step_done_at,
            "committed_at": self.committed_at,
            "restored_at": self.restored_at,
            "served_at": self.served_at,
            "quarantined_at": self.quarantined_at,
            "restore_seconds": self.restore_seconds,
            "reason": self.reason,
            "bytes": self.bytes,
            "metrics": self.metrics,
        }


@dataclass
class History:
    """Of one model. Its owner has a lock, and numbers what changes by a `sequence` that only rises."""

    _status: Status | None = None  # without ages, which a message has as they are when it is made
    _status_sequence: int = 0
    _heard: int = 0
    _stride: int = 1
    _versions: dict[int, VersionHistory] = field(default_factory=dict)  # who changed last is last
    _happened: deque[dict[str, Any]] = field(default_factory=lambda: deque(maxlen=MOST_HAPPENED))
    _step_done_at: float | None = None  # of the version that served last
    _ages: list[float] = field(default_factory=list)  # at swaps since the last sample, the lowest and the highest
    _samples: deque[dict[str, Any]] = field(default_factory=lambda: deque(maxlen=MOST_SAMPLES))

    def hear(self, event: Event, sequence: int) -> None:
        """Progress of a restore is in the status."""
        if event.kind is EventKind.RESTORING:
            return
        version = event.version
        seen = self._versions.pop(version.number, None)
        if seen is None or seen.committed_at != version.committed_at:  # its files were written anew
            self._heard += 1
            seen = VersionHistory(
                self._heard - 1,
                version.number,
                version.step,
                version.step_done_at,
                version.committed_at,
                version.bytes,
                of_metrics(version.metrics),
            )
        if event.kind is EventKind.RESTORED:
            seen.restored_at, seen.restore_seconds = event.at, round(event.restore_seconds, 6)
        elif event.kind is EventKind.SWAPPED:
            seen.served_at = event.at
            self._swapped(event.at, version.step_done_at)
        elif event.kind is EventKind.QUARANTINED:
            seen.quarantined_at, seen.reason = event.at, short(event.reason)
        seen.sequence = sequence
        self._versions[version.number] = seen
        if len(self._versions) > MOST_VERSIONS:
            self._thin()

    def _swapped(self, at: float, step_done_at: float) -> None:
        """The age is highest just before a swap, and lowest just after it."""
        before = step_done_at if self._step_done_at is None else self._step_done_at
        self._step_done_at = step_done_at
        self._ages = _ends([*self._ages, at - before, at - step_done_at])

    def _thin(self) -> None:
        """Of those that are not among the newest, every second, fourth, eighth stays; what is wrong with one stays as
        long as there is room."""
        ascending = sorted(self._versions)
        while len(self._versions) > _THINNED and self._stride < 1 << 32:
            for one in ascending[:-_WHOLE]:
                if one in self._versions and self._versions[one].nth % self._stride and not self._versions[one].reason:
                    del self._versions[one]
            if len(self._versions) > _THINNED:
                self._stride *= 2
        for one in sorted(self._versions)[:-_THINNED]:
            del self._versions[one]

    def look(self, status: Status, sequence: int, now: float) -> bool:
        """Whether the status says something else than before, but for ages, which go on by themselves."""
        before, self._status = self._status, status.ageless()
        if before == self._status:
            return False
        self._status_sequence = sequence
        if before is not None:
            for what in _differences(before, status):
                self._happened.append({"sequence": sequence, "at": now, **what})
        return True

    def sample(self, values: dict[str, Any]) -> None:
        """With the lowest and the highest age since the last sample: what was swapped meanwhile, a sample misses."""
        ages, self._ages = self._ages, []
        if values["age"] is not None:
            low, high = _ends([*ages, values["age"]])
            values |= {"age_low": round(low, 3), "age_high": round(high, 3)}
        self._samples.append(values)

    def since(self, sequence: int, now: float) -> dict[str, Any]:
        """All that changed after that, with ages at this time since the epoch; empty where nothing did."""
        found: dict[str, Any] = {}
        if self._status is not None and self._status_sequence > sequence:
            found["status"] = of_status(self._status.at(now, time.monotonic()))
        versions = []
        for seen in reversed(self._versions.values()):
            if seen.sequence <= sequence:
                break
            versions.append(seen.as_json())
        for name, what in (
            ("versions", versions),
            ("happened", _after(self._happened, sequence)),
            ("traffic", _after(self._samples, sequence)),
        ):
            if what:
                found[name] = what[::-1]
        return found


def _ends(values: list[float]) -> list[float]:
    return [min(values), max(values)]


def _after(items: deque[dict[str, Any]], sequence: int) -> list[dict[str, Any]]:
    """The newest first."""
    found = []
    for item in reversed(items):
        if item["sequence"] <= sequence:
            break
        found.append(item)
    return found


def _differences(before: Status, now: Status) -> list[dict[str, Any]]:
    """What was chosen, or went wrong, between two statuses."""
    found: list[dict[str, Any]] = []
    served = None if before.serving is None else before.serving.number
    if now.pinned != before.pinned:
        if now.pinned is None:
            found.append({"kind": "unpinned", "number": maybe_number(before.pinned)})
        else:
            back = served is not None and now.pinned < served
            kind = "rolled back" if back else "pinned"
            found.append({"kind": kind, "number": number(now.pinned), "from": maybe_number(served)})
    for label in [*{**before.labels, **now.labels}]:
        was, is_now = before.labels.get(label), now.labels.get(label)
        if was != is_now and len(found) < _SHOWN:
            kind = "unlabelled" if is_now is None else "labelled"
            found.append({"kind": kind, "label": label, "number": maybe_number(was if is_now is None else is_now)})
    if now.last_error is not None and now.last_error != before.last_error:
        found.append({"kind": "error", "text": short(now.last_error)})
    return found
