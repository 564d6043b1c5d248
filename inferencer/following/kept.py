"""What operators chose for a model, kept in a file so that it is still so after a restart."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote

from paramsync import files
from paramsync.errors import CorruptCheckpointError
from paramsync.layout import NUMBERS

_log = logging.getLogger("paramsync.kept")
_LIMIT = 1 << 20  # bytes; a larger file is none of ours


@dataclass(frozen=True, slots=True, kw_only=True)
class Choices:
    """The version to stay at, None to follow the newest, and the version that each label leads to."""

    pinned: int | None = None
    labels: Mapping[str, int] = field(default_factory=dict)


class Kept:
    """One small file for each model in a directory; without a directory nothing is kept. One thread owns it.

    It survives the end of the process, however it ends; not always that of the machine. A directory that cannot be
    written costs one warning, and a file that is damaged another: neither keeps a model from being served.
    """

    def __init__(self, directory: Path | None, model: str, store: Path) -> None:
        """What was kept of a model with another store does not count: its versions are others."""
        self._model = model
        self._store = str(store.absolute())
        self._path = None if directory is None else directory / f"{quote(model, safe='')}.json"
        self._warned = False

    def read(self) -> Choices:
        """What was kept, as far as it can be understood."""
        if self._path is None:
            return Choices()
        try:
            found = json.loads(files.content(self._path, limit=_LIMIT))
            choices = _choices(found)
            if found.get("store") != self._store:
                _log.info("%s: what was pinned and labelled in another store is forgotten", self._model)
                return Choices()
        except FileNotFoundError:
            return Choices()
        except (OSError, ValueError, RecursionError, CorruptCheckpointError) as error:
            _log.warning("%s: no pin and no label is known from before: %s: %s", self._model, self._path, error)
            return Choices()
        return choices

    def write(self, choices: Choices) -> None:
        """All at once: a reader finds what was before or what is now."""
        if self._path is None:
            return
        found = {"model": self._model, "store": self._store, "pinned": choices.pinned, "labels": dict(choices.labels)}
        content = json.dumps(found, indent=1)
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            with files.aside(self._path) as file:
                file.write(content.encode() + b"\n")
            self._warned = False
        except OSError as error:
            if not self._warned:
                self._warned = True
                _log.warning("%s: pins and labels will not survive a restart: %s", self._model, error)


def _choices(found: Any) -> Choices:
    """Raises ValueError for what was not written here."""
    if not isinstance(found, dict) or not isinstance(labels := found.get("labels"), dict):
        raise ValueError("expected an object with pinned and labels")
    pinned = found.get("pinned")
    if not all(label.isprintable() and label and _is_number(number) for label, number in labels.items()):
        raise ValueError("expected a version's number for each label")
    if pinned is not None and not _is_number(pinned):
        raise ValueError(f"pinned: expected a version's number or null, found {files.shown(str(pinned))}")
    return Choices(pinned=pinned, labels=labels)


def _is_number(found: Any) -> bool:
    return isinstance(found, int) and not isinstance(found, bool) and 0 <= found < NUMBERS
