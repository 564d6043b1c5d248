"""Metrics: counts requests and calls. Each count costs a few additions."""

from __future__ import annotations

import time
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from paramsync.errors import ParamsyncError, UnknownModelError

from .counts import REQUEST_SECONDS, Calls, Followed, Histogram
from .served import Models, ServedModel

if TYPE_CHECKING:
    from .spans import RequestSpans

OK = "OK"
OLDER = "older"
"""The version label that all of a model's versions beyond APART share."""

APART = 8
"""How many versions of each model have labels of their own: the versions that answered most recently."""

# A process is broken after so many unforeseen failures in a row, for at least so many seconds.
_FAILURES, _FAILING_SECONDS = 20, 10.0

_Called = tuple[str, str, str]  # model, signature, version
_Answered = tuple[str, str, str, str, str]  # model, signature, version, protocol, code


@dataclass(slots=True)
class Statistics:
    """Statistics of one version of a model. Seconds are sums over requests."""

    succeeded: int = 0
    succeeded_seconds: float = 0.0
    failed: int = 0
    failed_seconds: float = 0.0
    calls: int = 0
    rows: int = 0
    computed: int = 0
    computed_seconds: float = 0.0
    last: float = 0.0


@dataclass(slots=True)
class Load:
    """Counts of all requests for one model."""

    answered: Histogram = field(default_factory=lambda: Histogram(REQUEST_SECONDS))
    refused: int = 0


class Metrics:
    """The counts of one process. Lives on one event loop; `prometheus.Exposition` reads them on any thread, without
    locks.

    Labels are bounded: unknown names are counted under "", and a model's versions beyond APART under OLDER.
    """

    def __init__(self, models: Models | None = None, *, clock: Callable[[], float] = time.time) -> None:
        """If `models` is None, every name is unknown."""
        self.models = models
        self.waiting: Callable[[], int] = lambda: 0
        """How many requests wait for a call now. The batcher sets it."""
        self.spans: RequestSpans | None = None
        """Makes a span for each request, if traces are on."""
        self.requests: defaultdict[_Answered, Histogram] = defaultdict(partial(Histogram, REQUEST_SECONDS))
        self.calls: defaultdict[_Called, Calls] = defaultdict(Calls)
        self._failures = 0  # unforeseen failures in a row
        self._failing_since = 0.0
        self._clock = clock

    # On the path of requests ------------------------------------------------------------------------------------------

    def answered(
        self,
        *,
        model: str,
        signature: str,
        version: str,
        protocol: str,
        code: str,
        seconds: float,
        unforeseen: bool = False,
    ) -> None:
        """Count a request that was answered or refused. `code` is the name of a gRPC status. `unforeseen` means that
        this process is at fault."""
        histogram = self.requests.get((model, signature, version, protocol, code))
        if histogram is None:
            histogram = self.requests[(*self._known(model, signature, version), protocol, code)]
        histogram.buckets[bisect_left(REQUEST_SECONDS, seconds)] += 1
        histogram.sum += seconds
        histogram.last = self._clock()
        if code == OK:
            self._failures = 0
        elif unforeseen:
            self._failing_since = self._failing_since if self._failures else histogram.last
            self._failures += 1

    def called(
        self, *, model: str, signature: str, version: str = "", requests: int, rows: int, seconds: float
    ) -> None:
        """Count a call of a version: the numbers of its requests and of their rows."""
        calls = self.calls.get((model, signature, version))
        if calls is None:
            calls = self.calls[self._known(model, signature, version)]
        calls.add(requests, rows, seconds)
        calls.last = self._clock()

    def _known(self, model: str, signature: str, version: str) -> _Called:
        """Return the labels, with "" for names that exist only in the request. Makes room for a new version."""
        try:
            # Only workers count requests, and a worker's models have `take`, which the type Models lacks.
            served: Any = None if self.models is None else self.models.find(model)
        except UnknownModelError:
            served = None
        if served is None:
            return "", "", ""
        apart = self._apart(model)
        new = version not in apart and version not in ("", OLDER)
        try:
            resident = served.take(int(version) if new else None)
        except (ParamsyncError, ValueError):  # the version has left meanwhile, or never existed
            return model, "", OLDER if new else version
        if new and len(apart) >= APART:
            self._fold(model, min(apart, key=apart.__getitem__))
        return model, signature if signature in resident.graph.signatures else "", version

    def _apart(self, model: str) -> dict[str, float]:
        """Return the versions of a model that have labels of their own, each with the time of its last answer."""
        last: dict[str, float] = {}
        series: Iterable[tuple[tuple[str, ...], Histogram | Calls]] = [*self.requests.items(), *self.calls.items()]
        for key, counts in series:
            if key[0] == model and key[2] not in ("", OLDER):
                last[key[2]] = max(counts.last, last.get(key[2], 0.0))
        return last

    def _fold(self, model: str, version: str) -> None:
        """Count this version under OLDER from now on."""
        for answered in [key for key in self.requests if (key[0], key[2]) == (model, version)]:
            self.requests[(model, answered[1], OLDER, *answered[3:])].take_in(self.requests.pop(answered))
        for called in [key for key in self.calls if (key[0], key[2]) == (model, version)]:
            self.calls[model, called[1], OLDER].take_in(self.calls.pop(called))

    @property
    def failing(self) -> str:
        """Why this process must be replaced: many requests failed with unforeseen errors over a while, and none was
        answered meanwhile. Otherwise empty."""
        seconds = self._clock() - self._failing_since
        if self._failures < _FAILURES or seconds < _FAILING_SECONDS:
            return ""
        return (
            f"{self._failures} requests in a row failed in ways nobody foresaw, for {seconds:.0f} s; the log has them"
        )

    # Of several processes ---------------------------------------------------------------------------------------------

    def take_in(self, requests: Mapping[_Answered, Histogram], calls: Mapping[_Called, Calls]) -> None:
        """Add the counts of another process."""
        for answered, histogram in requests.items():
            self.requests[answered].take_in(histogram)
        for called, counts in calls.items():
            self.calls[called].take_in(counts)

    def fold(self) -> None:
        """Count each model's oldest versions beyond APART under OLDER."""
        for model in {key[0] for key in [*self.requests, *self.calls]}:
            while len(apart := self._apart(model)) > APART:
                self._fold(model, min(apart, key=apart.__getitem__))

    # Reading -----------------------------------------------------------------------------------------------

    def statistics(self, model: str) -> Mapping[str, Statistics]:
        """Return the statistics of each version that has labels of its own, by number."""
        statistics = {version: Statistics(last=last) for version, last in self._apart(model).items()}
        for (owner, _, version, _, code), histogram in list(self.requests.items()):
            if owner != model or version not in statistics:
                continue
            if code == OK:
                statistics[version].succeeded += histogram.count
                statistics[version].succeeded_seconds += histogram.sum
            else:
                statistics[version].failed += histogram.count
                statistics[version].failed_seconds += histogram.sum
        for (owner, _, version), calls in list(self.calls.items()):
            if owner == model and version in statistics:
                statistics[version].calls += calls.count
                statistics[version].rows += int(calls.rows.sum)
                statistics[version].computed += int(calls.requests.sum)
                statistics[version].computed_seconds += calls.waited
        return statistics

    def loads(self) -> Mapping[str, Load]:
        """Sum up all requests of each model."""
        loads: defaultdict[str, Load] = defaultdict(Load)
        for (model, _, _, _, code), histogram in list(self.requests.items()):
            if code == OK:
                loads[model].answered.take_in(histogram)
            else:
                loads[model].refused += histogram.count
        return loads

    def followed(self) -> list[Followed]:
        """Return the durations of restores and swaps of all followers."""
        return [model.followed for model in self.models or () if isinstance(model, ServedModel)]
