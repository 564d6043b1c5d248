"""How long publishing blocks training, with a bucket and without a bucket, and how much slower steps get meanwhile."""

from __future__ import annotations

import json
import time
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

from bench import stall
from bench.mirror.changing import mirror, newest, wait
from bench.settings import Settings
from bench.training import Ours, Training

_WAYS = {"ours": "a directory", "mirrored": "a directory with a mirror", "bucket": "a bucket"}


def run(given: Settings, folder: Path) -> dict[str, Any]:
    """Publish in each of the _WAYS by turns, while training changes all parameters."""
    mirrored, bucket = (partial(kind, address=f"{given.address}/{time.time_ns()}") for kind in (_Mirrored, _ToBucket))
    figures = stall.measure(given, folder, {"ours": Ours, "mirrored": mirrored, "bucket": bucket})
    rows = [
        {
            "publishing to": way,
            **{key: figures[f"{name}_{key}"] for key in ("stall_ms_p50", "stall_ms_p99", "inflation_pct")},
            "step_ms": figures["step_ms"],
        }
        for name, way in _WAYS.items()
        if name not in figures["absent"]
    ]
    return {"rows": {"stall": rows}, "absent": figures["absent"]}


class _Mirrored(Ours):
    """Publishes to a directory, which `paramsync mirror` copies to a bucket."""

    def __init__(self, training: Training, folder: Path, address: str) -> None:
        super().__init__(training, folder)
        self._folder, self._log = folder, folder.with_suffix(".log")
        self._stack = ExitStack()
        mirror(self._stack, str(folder), address, self._log)

    def wait(self) -> None:
        super().wait()
        wait(lambda: self._copied() == newest(self._folder), lambda: f"a copy: {self._log.read_text()[-500:]}")

    def close(self) -> None:
        self._stack.close()
        super().close()

    def _copied(self) -> int | None:
        lines = self._log.read_text().splitlines()
        number: int | None = json.loads(lines[-1]).get("version") if lines else None
        return number


class _ToBucket(Ours):
    """Publishes to a bucket, by the publisher's own mirror."""

    def wait(self) -> None:
        super().wait()
        wait(self._is_copied, lambda: f"a copy: {self._publisher.status().last_error}")

    def _is_copied(self) -> bool:
        published, child = self._publisher.status().published, self._publisher.mirror
        return published is not None and child is not None and child.newest == published.number
