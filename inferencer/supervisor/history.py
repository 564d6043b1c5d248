"""History of one model: the fate of each version, and operators' choices. Its size is bounded."""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass, field
from typing import Any

from paramsync.status import Event, EventKind, Status

from ..protocols.page.messages import maybe_number, number, of_metrics, of_status, short

MOST_VERSIONS = 400
_NEWEST = 200  # how many of the newest versions are never thinned out
MOST_HAPPENED = 200
MOST_SAMPLES = 300
_MOST_LABELS = 16  # one look reports at most this many changed labels


@dataclass
class History:
    """The history of one model. The owner holds a lock around each call."""

    _status: Status | None = None  # its lag and ages are computed only when JSON is made
    _found: int = 0
    _versions: dict[int, dict[str, Any]] = field(default_factory=dict)
    """The versions by number, in the form of the page. Times are in seconds since the epoch, None for events that did
    not happen."""
    _happened: deque[dict[str, Any]] = field(default_factory=lambda: deque(maxlen=MOST_HAPPENED))
    _step_done_at: float | None = None  # when the step of the last serving version was done
    _ages: list[float] = field(default_factory=list)  # the lowest and the highest age at swaps since the last sample
    _samples: deque[dict[str, Any]] = field(default_factory=lambda: deque(maxlen=MOST_SAMPLES))

    def hear(self, event: Event) -> None:
        """Record an event. Progress of a restore is left out, because the status shows it."""
        if event.kind is EventKind.RESTORING:
            return
        version = event.version
        seen = self._versions.get(version.number)
        if seen is None or seen["committed_at"] != version.committed_at:  # the version's files were written anew
            seen = self._versions[version.number] = {
                "nth": self._found,
                "number": number(version.number),
                "step": number(version.step),
                "step_done_at": version.step_done_at,
                "committed_at": version.committed_at,
                "restored_at": None,
                "served_at": None,
                "quarantined_at": None,
                "restore_seconds": None,
                "reason": "",
                "bytes": version.bytes,
                "metrics": of_metrics(version.metrics),
            }
            self._found += 1
        if event.kind is EventKind.RESTORED:
            seen |= {"restored_at": event.at, "restore_seconds": round(event.restore_seconds, 6)}
        elif event.kind is EventKind.SWAPPED:
            seen["served_at"] = event.at
            self._swapped(event.at, version.step_done_at)
        elif event.kind is EventKind.QUARANTINED:
            seen |= {"quarantined_at": event.at, "reason": short(event.reason)}
        if len(self._versions) > MOST_VERSIONS:
            self._thin()

    def _swapped(self, at: float, step_done_at: float) -> None:
        """Record the ages around a swap. The age is highest just before a swap, and lowest just after it."""
        before = step_done_at if self._step_done_at is None else self._step_done_at
        self._step_done_at = step_done_at
        self._ages = _ends([*self._ages, at - before, at - step_done_at])

    def _thin(self) -> None:
        """Remove every second older version, except quarantined ones. Then remove the oldest beyond the limit."""
        for old in sorted(self._versions)[:-_NEWEST][1::2]:
            if not self._versions[old]["reason"]:
                del self._versions[old]
        for old in sorted(self._versions)[:-MOST_VERSIONS]:
            del self._versions[old]

    def look(self, status: Status, now: float) -> None:
        """Record how the status differs from the previous status, apart from ages."""
        before, self._status = self._status, status
        if before is not None and before.ageless() != status.ageless():
            self._happened.extend({"at": now, **difference} for difference in _differences(before, status))

    def sample(self, values: dict[str, Any]) -> None:
        """Add a sample of the traffic, with the lowest and highest age of the serving version since the last sample."""
        ages, self._ages = self._ages, []
        if values["age"] is not None:
            low, high = _ends([*ages, values["age"]])
            values |= {"age_low": round(low, 3), "age_high": round(high, 3)}
        self._samples.append(values)

    def as_json(self, now: float, *, whole: bool) -> dict[str, Any]:
        """Return the history as JSON values, with ages at `now` (seconds since the epoch).

        If not `whole`, there are only the status and the last sample.
        """
        status = None if self._status is None else of_status(self._status.at(now, time.monotonic()))
        return {
            "status": status,
            "versions": [dict(seen) for seen in self._versions.values()] if whole else [],
            "happened": list(self._happened) if whole else [],
            "traffic": list(self._samples) if whole else list(self._samples)[-1:],
        }


def _ends(values: list[float]) -> list[float]:
    return [min(values), max(values)]


def _differences(before: Status, now: Status) -> list[dict[str, Any]]:
    """Return the choices and errors by which two statuses differ."""
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
        if was != is_now and len(found) < _MOST_LABELS:
            kind = "unlabelled" if is_now is None else "labelled"
            found.append({"kind": kind, "label": label, "number": maybe_number(was if is_now is None else is_now)})
    if now.reason and now.reason != before.reason:
        found.append({"kind": "error", "text": short(now.reason)})
    return found
