"""Counts and histograms. One thread adds to them; any thread may read them."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from paramsync.status import EventKind

if TYPE_CHECKING:
    from paramsync.following.follower import Follower

REQUEST_SECONDS = (
    0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0,
)  # fmt: skip
RESTORE_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
SWAP_SECONDS = (0.00001, 0.000025, 0.00005, 0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.1, 1.0)
BATCH = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)


class Histogram:
    """Counts each observation in the bucket of the smallest bound that is not below it. Hot paths inline `add`."""

    __slots__ = ("bounds", "buckets", "last", "sum")

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = bounds
        self.buckets = [0] * (len(bounds) + 1)
        self.sum = 0.0
        self.last = 0.0
        """The time of the last observation. The caller of `add` sets this attribute."""

    @property
    def count(self) -> int:
        return sum(self.buckets)

    def add(self, value: float) -> None:
        self.buckets[bisect_left(self.bounds, value)] += 1
        self.sum += value

    def take_in(self, other: Histogram) -> None:
        """Add the observations of another histogram with the same bounds."""
        self.buckets = [mine + theirs for mine, theirs in zip(self.buckets, other.buckets, strict=True)]
        self.sum += other.sum
        self.last = max(self.last, other.last)


class Calls:
    """The calls of one signature of one version. A call answers one or more requests."""

    __slots__ = ("last", "requests", "rows", "waited")

    def __init__(self) -> None:
        self.requests = Histogram(BATCH)
        self.rows = Histogram(BATCH)
        self.waited = 0.0
        """The sum, over all requests, of the seconds of their calls."""
        self.last = 0.0

    @property
    def count(self) -> int:
        return self.requests.count

    def add(self, requests: int, rows: int, seconds: float) -> None:
        self.requests.add(requests)
        self.rows.add(rows)
        self.waited += seconds * requests

    def take_in(self, other: Calls) -> None:
        self.requests.take_in(other.requests)
        self.rows.take_in(other.rows)
        self.waited += other.waited
        self.last = max(self.last, other.last)


@dataclass(frozen=True, slots=True)
class Scrubbed:
    """How many bytes of versions in memory were verified again, and when the last scrub ended (since the epoch)."""

    bytes: int = 0
    at: float | None = None


class Followed:
    """The durations of a follower's restores and swaps. Create it before the follower starts.

    The follower's thread adds to the histograms.
    """

    def __init__(self, follower: Follower[Any]) -> None:
        self.follower = follower
        self.restores = Histogram(RESTORE_SECONDS)
        self.swaps = Histogram(SWAP_SECONDS)
        self._restored: tuple[int, float] | None = None  # the version, and the seconds of its restore
        self._subscription = follower.subscribe(self._hear)

    def _hear(self) -> None:
        for event in self._subscription.take():
            number, seconds = event.version.number, event.restore_seconds
            if event.kind is EventKind.RESTORED:
                self.restores.add(seconds)
                self._restored = number, seconds
            elif event.kind is EventKind.SWAPPED:  # the event's seconds may include the restore
                part = self._restored is not None and self._restored[0] == number and self._restored[1] <= seconds
                self.swaps.add(seconds - self._restored[1] if part and self._restored is not None else seconds)
                self._restored = None
