"""From timings to the figures that are reported."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from bench.settings import Settings
from bench.timing import Timings


def collect(
    settings: Settings,
    *,
    size: int,
    timings: Timings,
    names: Sequence[str],
    peers: Sequence[str] = (),
    absent: Mapping[str, str],
    quotients: Mapping[str, tuple[str, str]],
) -> dict[str, Any]:
    """All figures of a run: `<name>_ms` is a median, None for what was not measured; a quotient is one of two medians.

    Every peer is also compared with ours.
    """
    quotients = {**quotients, **{f"{peer}_over_ours": (peer, "ours") for peer in peers}}
    medians = {name: timings.median(name) for name in ("memcpy", *names, *peers)}
    return {
        "benchmark": settings.benchmark,
        "bytes": size,
        **{f"{name}_ms": median for name, median in medians.items()},
        **{key: _quotient(medians[over], medians[under]) for key, (over, under) in quotients.items()},
        "absent": {**absent, **timings.absent},
        "samples_ms": dict(timings.samples),
    }


def _quotient(over: float | None, under: float | None) -> float | None:
    return over / under if over is not None and under else None
