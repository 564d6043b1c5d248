"""Quantiles of values that are counted in buckets, as Prometheus' histogram_quantile computes them."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise


def quantile(bounds: Sequence[float], counts: Sequence[int], share: float) -> float | None:
    """Return a quantile, as if the values of each bucket were spread evenly; None if nothing was counted.

    `bounds` are the buckets' upper bounds. `counts` has one more element, for values above the last bound. If the
    quantile is among these values, the last bound is returned.
    """
    wanted = share * sum(counts)
    if not wanted:
        return None
    below = 0.0
    for (low, high), count in zip(pairwise([0.0, *bounds]), counts, strict=False):
        if below + count >= wanted:
            return low + (high - low) * (wanted - below) / count
        below += count
    return bounds[-1]
