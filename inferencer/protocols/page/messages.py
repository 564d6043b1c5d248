"""Turns the program's values into the JSON of /api. docs/reference.md lists the fields."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

from paramsync.status import Status
from paramsync.version import Version

from .advice import advice

_EXACT = (1 << 53) - 1  # the largest whole number that JavaScript holds
_TEXT = 4000  # characters of a reason
_NAME = 200  # characters of a metric's name
_METRICS = 16  # of a version
_IN_STORE = 50  # the newest versions
_QUARANTINED = 20  # the newest versions


def text(value: Any) -> bytes:
    """Compact JSON. Raises ValueError for NaN, which JSON lacks."""
    return json.dumps(value, separators=(",", ":"), allow_nan=False).encode()


def short(words: str) -> str:
    return words if len(words) <= _TEXT else f"{words[:_TEXT]}..."


def number(value: int) -> int | str:
    """A version's number, as text if a browser would round it."""
    return value if abs(value) <= _EXACT else str(value)


def maybe_number(value: int | None) -> int | str | None:
    return None if value is None else number(value)


def of_metrics(metrics: Mapping[str, float]) -> dict[str, float | None]:
    """Metrics of a version; None for values that are not finite."""
    some = list(metrics.items())[:_METRICS]
    return {name[:_NAME]: value if math.isfinite(value) else None for name, value in some}


def of_version(version: Version | None) -> dict[str, Any] | None:
    if version is None:
        return None
    return {
        "number": number(version.number),
        "step": number(version.step),
        "step_done_at": version.step_done_at,
        "committed_at": version.committed_at,
        "bytes": version.bytes,
        "metrics": of_metrics(version.metrics),
    }


def of_status(status: Status) -> dict[str, Any]:
    """The status of one model."""
    progress, back = status.restoring_progress, status.back
    return {
        "model": status.model,
        "store": str(status.store),
        "state": status.state.value,
        "published": of_version(status.published),
        "serving": of_version(status.serving),
        "signed_by": status.signed_by,
        "parts": {model: of_version(version) for model, version in status.parts},
        "pinned": maybe_number(status.pinned),
        "publisher": None if status.publisher is None else status.publisher.state.value,
        "publisher_since": None if status.publisher is None else status.publisher.since,
        "rollback_to": None if back is None else number(back.number),
        "rollback_served": back is not None and back.served,
        "resident": [number(one) for one in status.resident],
        "labels": {label: number(one) for label, one in status.labels.items()},
        "restoring": maybe_number(status.restoring),
        "restored_share": _share(progress.bytes_done, progress.bytes_total) if progress is not None else None,
        "quarantined": [
            {
                "number": number(case.number),
                "reason": short(case.reason),
                "advice": advice(case.reason),
                "since": case.since,
            }
            for case in status.quarantined[-_QUARANTINED:]
        ],
        "not_served": {name: short(why) for name, why in status.not_served.items()},
        "reason": short(status.reason),
        "in_store": [number(one) for one in status.in_store[-_IN_STORE:]],
        "swaps": status.swaps,
        "restores": status.restores,
        "quarantines": status.quarantines,
        "restore_seconds": status.restore_seconds,
        "lag_seconds": status.lag_seconds,
        "lag_steps": status.lag_steps,
        "lag_versions": status.lag_versions,
        "since_publication_seconds": status.since_publication_seconds,
        "serving_age_seconds": status.serving_age_seconds,
    }


def _share(done: int, total: int) -> float | None:
    return round(done / total, 3) if total else None
