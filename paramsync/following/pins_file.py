"""PinsFile: the pin and labels of a model, which survive a restart."""

from __future__ import annotations

import json
import logging
import secrets
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from urllib.parse import quote

from paramsync.errors import CorruptCheckpointError, InputError
from paramsync.host import files
from paramsync.status import Status
from paramsync.version import NUMBERS

MOST_LABELS = 256  # labels that a model may have
_LABEL = 200  # characters that a label may have; a character takes at most four bytes
_log = logging.getLogger("paramsync.kept")
_LIMIT = 1 << 22  # bytes: eight times the largest file of one process; a larger file is not ours
_ERRORS = (OSError, ValueError, RecursionError, CorruptCheckpointError)


def check_label(where: str, label: str) -> str:
    """Return the label if status, metrics and the pins file can hold it. Raises InputError otherwise."""
    if not label:
        raise InputError(where, expected="a name, such as stable", found="none")
    if len(label) > _LABEL or not label.isprintable():
        expected = f"a name of at most {_LABEL} characters that can be printed"
        raise InputError(where, expected=expected, found=files.shown(label))
    return label


@dataclass(frozen=True, slots=True, kw_only=True)
class Choices:
    """The choices of operators for one model."""

    pinned: int | None = None  # None: follow the newest version
    labels: Mapping[str, int] = field(default_factory=dict)  # the version of each label
    beside: tuple[int, ...] = ()  # other versions to keep in memory


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """A configuration's settings for one model's pin, labels and memory; applied all at once, or not at all."""

    pinned: int | None = None  # the version to pin; None: do not change the pin
    unpin: bool = False
    labels: Mapping[str, int] = field(default_factory=dict)  # labels to give, or to move to another version
    without: Collection[str] = ()  # labels to take away, if they exist
    beside: tuple[int, ...] | None = None  # other versions to keep in memory; None: the same as before
    # how many of the newest versions stay in memory; None: the versions that served last stay
    latest: int | None = None

    @property
    def versions(self) -> list[int]:
        """The versions that have to be in memory for this change."""
        pinned = () if self.pinned is None else (self.pinned,)
        return sorted({*pinned, *self.labels.values(), *(self.beside or ())})

    def of(self, choices: Choices) -> Choices:
        """Return the choices after this change."""
        labels = {label: number for label, number in choices.labels.items() if label not in self.without}
        pinned = None if self.unpin else choices.pinned if self.pinned is None else self.pinned
        beside = choices.beside if self.beside is None else self.beside
        return replace(choices, pinned=pinned, labels={**labels, **self.labels}, beside=beside)

    def is_so(self, status: Status, latest: int | None, beside: tuple[int, ...]) -> bool:
        """Return whether the change is already in effect. `latest` and `beside` are the current values."""
        choices = Choices(pinned=status.pinned, labels=dict(status.labels), beside=beside)
        return latest == self.latest and self.of(choices) == choices


class PinsFile:
    """The small file with one model's pin and labels. Without a directory nothing is saved. One thread owns it.

    The file survives any end of the process, but not always a crash of the machine. If the directory cannot be written
    or the file is damaged, this is logged, and the model is served without the file.

    Several processes may share the file of a model: the last process to set the pin, or a label, wins.
    """

    def __init__(
        self, directory: Path | None, model: str, store: Path, *, given: Mapping[str, int] | None = None
    ) -> None:
        """`given` are the labels from the settings.

        A label that changed in the settings since the file was written overrides the file. A file that was written for
        another store is ignored, because that store has other versions.
        """
        self._model = model
        self._store = str(store.absolute())
        self._path = None if directory is None else directory / f"{quote(model, safe='')}.json"
        self._given = dict(given or {})
        self._known = Choices(labels=self._given)
        self._warned = False

    def read(self) -> Choices:
        """Return the choices in the file, updated by the labels that have changed in the settings.

        If the file is missing or cannot be used, return only the labels from the settings.
        """
        try:
            content = self._content()
        except _ERRORS as error:
            text = "%s: no pin and no label is known from before: %s: %s"
            _log.warning(text, self._model, self._path, error, extra={"model": self._model})
            return self._known
        if content is None:
            return self._known
        self._known, given = content
        if given != self._given:  # the next start must not see these settings as changed
            self._save(self._known)
        return self._known

    def write(self, choices: Choices) -> None:
        """Save the choices that changed. The file keeps all other choices, which another process may have saved."""
        if self._path is None or choices == self._known:
            return
        before, self._known = self._known, choices
        try:
            content = self._content()
        except _ERRORS:
            content = None
        now = before if content is None else content[0]
        pinned = now.pinned if choices.pinned == before.pinned else choices.pinned
        beside = now.beside if choices.beside == before.beside else choices.beside
        labels = _changed(now.labels, before.labels, choices.labels)
        self._save(Choices(pinned=pinned, labels=labels, beside=beside))

    def _content(self) -> tuple[Choices, Mapping[str, int]] | None:
        """Return the file's choices, updated as in `read`, and the settings' labels at the time of the last write.

        Returns None if there is no file, or the file is about another store. Raises _ERRORS for an unusable file.
        """
        if self._path is None:
            return None
        try:
            content = json.loads(files.content(self._path, limit=_LIMIT))
        except FileNotFoundError:
            return None
        choices, given = _choices(content), _labels(content, "given")
        if content.get("store") != self._store:
            text = "%s: pins and labels of another store do not count for %s"
            _log.info(text, self._model, self._store, extra={"model": self._model})
            return None
        return replace(choices, labels=_changed(choices.labels, given, self._given)), given

    def _save(self, choices: Choices) -> None:
        assert self._path is not None
        chosen = {"pinned": choices.pinned, "labels": dict(choices.labels), "beside": list(choices.beside)}
        record = {"model": self._model, "store": self._store, **chosen, "given": self._given}
        content = f"{json.dumps(record, indent=1, ensure_ascii=False)}\n".encode()
        try:
            _check_size(content)  # other processes may have added labels
            self._path.parent.mkdir(parents=True, exist_ok=True)
            with files.aside(self._path, writer=f"{secrets.token_hex(4)}-") as file:
                file.write(content)
            self._warned = False
        except (OSError, ValueError) as error:
            if not self._warned:
                self._warned = True
                text = "%s: pins and labels will not survive a restart: %s"
                _log.warning(text, self._model, error, extra={"model": self._model})


def _check_size(content: bytes) -> None:
    """Raise ValueError if the content is too large for `read`."""
    if len(content) > _LIMIT:
        raise ValueError(f"expected at most {_LIMIT} bytes, found {len(content)}; give each inferencer a --state")


def _changed(labels: Mapping[str, int], before: Mapping[str, int], now: Mapping[str, int]) -> dict[str, int]:
    """Apply to `labels` the difference between `before` and `now`."""
    same = {label: number for label, number in labels.items() if before.get(label) == now.get(label)}
    return same | {label: number for label, number in now.items() if before.get(label) != number}


def _choices(content: Any) -> Choices:
    """Read the choices from parsed JSON. Raises ValueError if the content is not as `_save` writes it."""
    if not isinstance(content, dict) or "labels" not in content:
        raise ValueError("expected an object with pinned and labels")
    pinned = content.get("pinned")
    if pinned is not None and not _is_number(pinned):
        raise ValueError(f"pinned: expected a version's number or null, found {files.shown(str(pinned))}")
    beside = content.get("beside", [])
    if not isinstance(beside, list) or not all(map(_is_number, beside)):
        raise ValueError("beside: expected a list of versions' numbers")
    return Choices(pinned=pinned, labels=_labels(content, "labels"), beside=tuple(beside))


def _labels(content: Mapping[str, Any], key: str) -> dict[str, int]:
    labels = content.get(key, {})
    if not isinstance(labels, dict):
        raise ValueError(f"{key}: expected an object, found {files.shown(str(labels))}")
    if not all(label.isprintable() and label and _is_number(number) for label, number in labels.items()):
        raise ValueError(f"{key}: expected a version's number for each label")
    return labels


def _is_number(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < NUMBERS
