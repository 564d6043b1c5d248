"""Traffic: each version's requests per second and their durations, computed from the workers' counts."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any, TypeAlias

from paramsync.program.quantiles import quantile

from ..serving.counts import REQUEST_SECONDS, Histogram
from ..serving.metrics import OK, OLDER

_Key = tuple[str, str, str, str, str]
_Series: TypeAlias = "tuple[str, str, bool]"  # model, version, and whether the requests succeeded


class Traffic:
    """Computes rates from two looks at counts that only rise. Only one thread may use it."""

    def __init__(self) -> None:
        self._before: Mapping[_Series, Histogram] = {}
        self._at: float | None = None

    def look(self, counts: Iterable[Mapping[_Key, Histogram]], now: float) -> dict[str, dict[str, Any]]:
        """Return the traffic of each model since the last look.

        `rate` is requests per second, `failed` is failures per second. `versions` has for each version its requests per
        second, the median and 99th percentile of their seconds (None without requests), and its failures per second.

        The first look returns nothing, because rates need two looks. A count that fell, for example because a worker
        was replaced, counts as no traffic.
        """
        total: defaultdict[_Series, Histogram] = defaultdict(partial(Histogram, REQUEST_SECONDS))
        for requests in counts:
            for (model, _, version, _, code), histogram in requests.items():
                total[model, version, code == OK].take_in(histogram)
        seconds = None if self._at is None else now - self._at
        before, self._before, self._at = self._before, total, now
        return {} if not seconds or seconds <= 0 else _rates(before, total, seconds)


def _rates(
    before: Mapping[_Series, Histogram], now: Mapping[_Series, Histogram], seconds: float
) -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = {}
    sums = Counter[tuple[str, bool]]()
    for (model, version, well), histogram in now.items():
        earlier = before.get((model, version, well), Histogram(REQUEST_SECONDS))
        # Sum over all versions: counts that only move from a version to OLDER then cancel out.
        sums[model, well] += histogram.count - earlier.count
        new = [max(0, one - other) for one, other in zip(histogram.buckets, earlier.buckets, strict=True)]
        count = sum(new)
        if version not in ("", OLDER) and count:
            versions = found.setdefault(model, {}).setdefault("versions", {})
            facts = versions.setdefault(version, [0.0, None, None, 0.0])
            if well:
                latencies = [round(quantile(REQUEST_SECONDS, new, share) or 0.0, 6) for share in (0.5, 0.99)]
                facts[:3] = [round(count / seconds, 3), *latencies]
            else:
                facts[3] = round(count / seconds, 3)
    for model, version, well in before.keys() - now.keys():
        sums[model, well] -= before[model, version, well].count
    for (model, well), count in sums.items():
        found.setdefault(model, {})["rate" if well else "failed"] = round(max(0, count) / seconds, 3)
    return found
