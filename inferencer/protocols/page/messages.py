"""Turns the program's values into the JSON of /api. docs/reference.md lists the fields."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

from paramsync.remote.bucket_status import stages
from paramsync.rpc.server import plain
from paramsync.status import Status
from paramsync.version import Version

from ..sync.messages import of_status as message_of
from .advice import advice

_EXACT = (1 << 53) - 1  # JavaScript rounds larger whole numbers
_TEXT = 4000  # most characters of a reason
_NAME = 200  # most characters of a metric's name
_METRICS = 16  # most metrics of a version
_IN_STORE = 50  # how many versions of a store are listed: the newest
_QUARANTINED = 20  # how many versions in quarantine are listed: the newest


def text(value: Any) -> bytes:
    """Write compact JSON. Raises ValueError for NaN, which JSON lacks."""
    return json.dumps(value, separators=(",", ":"), allow_nan=False).encode()


def short(words: str) -> str:
    return words if len(words) <= _TEXT else f"{words[:_TEXT]}..."


def number(value: int) -> int | str:
    """Return a version's number, as text if JavaScript would round the number."""
    return value if abs(value) <= _EXACT else str(value)


def maybe_number(value: int | None) -> int | str | None:
    return None if value is None else number(value)


def of_metrics(metrics: Mapping[str, float]) -> dict[str, float | None]:
    """Return the first metrics of a version. Values that are not finite become None."""
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
    """Return the status of a model: the fields of its gRPC message, and fields for the page only."""
    progress, copied = status.restoring_progress, None if status.bucket is None else status.bucket.copied
    shown: dict[str, Any] = _exact(plain(message_of(status)))
    if copied is not None:
        shown["bucket"]["copied"]["stages"] = stages(copied)
    return shown | {
        "published": of_version(status.published),
        "serving": of_version(status.serving),
        "parts": {model: of_version(version) for model, version in status.parts},
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
        "in_store": [number(one) for one in status.in_store[-_IN_STORE:]],
    }


def _exact(value: Any) -> Any:
    """Cut long texts in a JSON value, and turn numbers that JavaScript would round into text."""
    if isinstance(value, dict):
        return {key: _exact(one) for key, one in value.items()}
    if isinstance(value, list):
        return [_exact(one) for one in value]
    if isinstance(value, str):
        return short(value)
    return number(value) if type(value) is int else value


def _share(done: int, total: int) -> float | None:
    return round(done / total, 3) if total else None
