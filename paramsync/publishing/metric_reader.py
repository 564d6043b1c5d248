"""MetricReader: metrics as numbers. One that cannot be read, or recorded, must not cost a version."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import SupportsFloat

from paramsync.host import files

_LONG = 200  # characters of a name

_log = logging.getLogger("paramsync.trainer")


class MetricReader:
    """Belongs to one thread. What is no number, or has no name to show, is left out, with one warning for each name."""

    def __init__(self) -> None:
        self._told: set[str] = set()

    def read(self, metrics: Mapping[str, SupportsFloat]) -> dict[str, float]:
        """The metrics as numbers; waits for those still being computed."""
        read = {}
        for name, value in metrics.items():
            try:
                _check(name)
                read[name] = float(value)
            except Exception as error:  # noqa: BLE001, a value of any kind, perhaps computed on another device
                self._warn(name, error)
        return read

    def _warn(self, name: str, error: Exception) -> None:
        if name not in self._told:
            self._told.add(name)
            _log.warning("metric %s is left out of all versions it is no number in: %.300s", files.shown(name), error)


def _check(name: object) -> None:
    if not isinstance(name, str) or not name.isprintable() or len(name) > _LONG:
        raise ValueError(f"expected a name of at most {_LONG} characters that can be shown")
