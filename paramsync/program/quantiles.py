"""Quantiles of values that are counted in buckets, as Prometheus' histogram_quantile computes them."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise


def quantile(bounds: Sequence[float], counts: Sequence[int], share: float) -> float | None:
    """A quantile, as if the values of a bucket were spread evenly over the bucket; None if nothing was counted.

    `bounds` are the buckets' upper bounds. One more count is of values above the last bound, which then is the result.
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
