"""The state object of a bucket: which versions are there, and who may change them. A value, its JSON and its limits.

The state is the only object that is ever replaced. A publisher commits by replacing it with compare-and-swap. An S3
ETag is a digest of the content, so two equal states would have the same ETag, and compare-and-swap could not tell them
apart. `sequence` and `nonce` make every state unique.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from paramsync import moments
from paramsync.errors import RemoteError
from paramsync.moments import Move

NAME = "state.json"
FORMAT = 1
LIMIT = 256 << 10  # most bytes of a state; a state has about a tenth of this limit, unless operators chose old versions

MOST_VERSIONS = 100  # most versions in a bucket: their entries and the names of their objects fit into LIMIT

_VERSIONS = 256
_OBJECTS = 1 << 12  # limit for the names in `objects`, and for the names in `condemned`
_CHOSEN = 1 << 11  # limit for the objects that the versions chosen by operators need; a version needs some 200 at most
_LABELS = 64
_NUMBER = 1 << 63
_OBJECT = re.compile(r"[a-z]+/[0-9]{1,19}/[A-Za-z0-9][A-Za-z0-9._-]{0,199}")
_LABEL = re.compile(r"[\w.-]{1,64}")
_RANDOM = re.compile(r"[0-9a-f]{32}")
_DIGEST = re.compile(r"[0-9a-f]{64}")
_ENDED = re.compile("(finished|died)?")


@dataclass(frozen=True, slots=True)
class Listed:
    """A version in the bucket: its manifest, with the manifest's SHA-256.

    `at` is when the publisher listed the version, in seconds since the epoch; 0 if an earlier release did. It is only
    shown to operators.
    """

    number: int
    manifest: str
    digest: str
    at: float = 0.0


@dataclass(frozen=True, slots=True)
class State:
    """The content of the state object, which also has a checksum.

    run        identity of the training run: random, made with the first state
    epoch      number of the publisher; a publisher that starts raises it, and so fences off all earlier publishers
    sequence   number of the state; every write raises it
    nonce      random text of the writer of this state
    committed  nonce of the last state that a publisher wrote; operators' writes keep it, so that the publisher can
               still recognise its own write
    versions   ascending by number; the last is the newest
    objects    names of data objects, each with the numbers of the first and the last version that needs it
    condemned  names of objects that no version needs any more, to be deleted
    choices    operators' choices for all followers, such as `pinned` and `labels`; publishers keep them. `source` has
               the choices in the bucket from which this bucket is copied
    ended      how the last publisher ended, "finished" or "died"; "" while a publisher runs, or if its end is not known
    ended_at   when the last publisher finished, or when its death became known, in seconds since the epoch
    """

    run: str
    epoch: int
    sequence: int
    nonce: str
    committed: str
    versions: tuple[Listed, ...] = ()
    objects: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    condemned: tuple[str, ...] = ()
    choices: Mapping[str, Any] = field(default_factory=dict)
    ended: str = ""
    ended_at: float = 0.0

    @property
    def newest(self) -> Listed | None:
        return self.versions[-1] if self.versions else None

    @property
    def pinned(self) -> int | None:
        """The version that all followers should serve; None means the newest."""
        pinned: int | None = self.choices.get("pinned")
        return pinned

    @property
    def labels(self) -> Mapping[str, int]:
        """The version of each label, for all followers."""
        labels: Mapping[str, int] = self.choices.get("labels", {})
        return labels

    @property
    def move(self) -> Move | None:
        """The order that all followers change to the pin at one moment; None if they change at once."""
        return None if self.choices.get("move") is None else moments.from_values(self.choices["move"])

    def pinned_at(self, now: float) -> int | None:
        """Return the version that is pinned at a time, before or after the moment of `move`."""
        move = self.move
        return self.pinned if move is None or move.at <= now else move.before

    @property
    def wanted(self) -> Listed | None:
        """The version that followers should fetch: the pinned version, or else the newest."""
        if self.pinned is None:
            return self.newest
        return next((version for version in self.versions if version.number == self.pinned), None)

    @property
    def live(self) -> frozenset[str]:
        """The names of all objects that some version needs."""
        return frozenset((*self.objects, *(version.manifest for version in self.versions)))

    def commit(self, nonce: str, **changes: Any) -> State:
        """Return the state that a publisher writes after this one."""
        return replace(self, sequence=self.sequence + 1, nonce=nonce, committed=nonce, **changes)

    def choose(self, nonce: str, choices: Mapping[str, Any]) -> State:
        """Return the state that an operator writes after this one.

        Raises RemoteError if the chosen versions would leave no room in the state for later versions.
        """
        after = replace(self, sequence=self.sequence + 1, nonce=nonce, choices=choices)
        if after._kept() > max(_CHOSEN, self._kept()):
            numbers = ", ".join(map(str, sorted(after.chosen)))
            raise RemoteError(f"{NAME}: has no room to keep one more version: unpin or unlabel one of {numbers}")
        return after

    @property
    def of_source(self) -> State:
        """This state with the choices that operators made in its source, the bucket from which this one is copied.

        Without a source, it has no choices. Servers that start while the source is away follow these choices.
        """
        return replace(self, choices=self.choices.get("source", {}))

    @property
    def chosen(self) -> set[int]:
        """The versions that operators chose here or in the source, which publishers keep."""
        own = chosen(self.pinned, self.labels, self.move)
        return own | self.of_source.chosen if "source" in self.choices else own

    def _kept(self) -> int:
        """Return how many objects are needed by versions that operators chose."""
        chosen = self.chosen
        return sum(any(first <= number <= last for number in chosen) for first, last in self.objects.values())

    def to_json(self) -> bytes:
        """Return the content of the object. Raises RemoteError for a state that no reader would accept."""
        values = {
            "format": FORMAT,
            "run": self.run,
            "epoch": self.epoch,
            "sequence": self.sequence,
            "nonce": self.nonce,
            "committed": self.committed,
            "versions": [asdict(version) for version in self.versions],
            "objects": dict(self.objects),
            "condemned": self.condemned,
            "choices": dict(self.choices),
            "ended": self.ended,
            "ended_at": self.ended_at,
        }
        content = json.dumps({**values, "checksum": _checksum(values)}).encode()
        from_json(content)
        return content


def chosen(pinned: int | None, labels: Mapping[str, int], move: Move | None) -> set[int]:
    """Return the labelled versions, the pinned one, and the version that is pinned until the moment of the move."""
    pins = (pinned, None if move is None else move.before)
    return {*labels.values(), *(number for number in pins if number is not None)}


def from_json(content: bytes) -> State:
    """Read a state object. Raises RemoteError if it is malformed."""
    if len(content) > LIMIT:
        raise _wrong(f"at most {LIMIT} bytes", len(content))
    try:
        values = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise foreign("an empty object" if not content.strip() else "no JSON") from error
    if not isinstance(values, dict) or not isinstance(written := values.get("format"), int):
        raise foreign("other JSON")
    if written != FORMAT:
        advice = ", of a newer paramsync: upgrade this one" if written > FORMAT else ""
        raise RemoteError(f"{NAME}: expected format {FORMAT}, found format {written}{advice}")
    state = State(
        run=_text(values, "run", _RANDOM),
        epoch=_number(values, "epoch"),
        sequence=_number(values, "sequence"),
        nonce=_text(values, "nonce", _RANDOM),
        committed=_text(values, "committed", _RANDOM),
        versions=tuple([_listed(version) for version in _list(values, "versions", _VERSIONS)]),
        objects=_objects(values.get("objects")),
        condemned=tuple([_name(name) for name in _list(values, "condemned", _OBJECTS)]),
        choices=_choices(_mapping(values.get("choices", {}))),
        ended=_text({"ended": values.get("ended", "")}, "ended", _ENDED),
        ended_at=_time(values, "ended_at"),
    )
    numbers = [version.number for version in state.versions]
    if numbers != sorted(set(numbers)):
        raise _wrong("versions in ascending order", numbers)
    if both := state.live.intersection(state.condemned):
        raise _wrong("condemned names that no version needs", min(both))
    for name, (first, last) in state.objects.items():
        if not any(first <= number <= last for number in numbers):
            raise _wrong("objects that a listed version needs", name)
    # Without a checksum, a flipped bit in the epoch could make followers ignore all later states.
    if (checksum := values.pop("checksum", None)) != _checksum(values):
        raise _wrong("the checksum of this content", checksum)
    return state


def _checksum(values: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(values).encode()).hexdigest()


def _listed(value: Any) -> Listed:
    values = _mapping(value)
    return Listed(
        number=_number(values, "number"),
        manifest=_text(values, "manifest", _OBJECT),
        digest=_text(values, "digest", _DIGEST),
        at=_time(values, "at"),
    )


def _objects(value: Any) -> dict[str, tuple[int, int]]:
    values = _mapping(value)
    if len(values) > _OBJECTS:
        raise _wrong(f"at most {_OBJECTS} objects", len(values))
    needed = {}
    for name in values:
        first, last = _list(values, name, 2) if isinstance(values[name], list) and len(values[name]) == 2 else (None, 0)
        needed[_name(name)] = _number({name: first}, name), _number({name: last}, name)
    return needed


def _choices(values: dict[str, Any]) -> dict[str, Any]:
    """Check the choices of operators. Keys of a newer paramsync are kept."""
    try:
        _ = None if values.get("move") is None else moments.from_values(values["move"])
    except ValueError as error:
        raise RemoteError(f"{NAME}: {error}") from error
    if values.get("pinned") is not None:
        _number(values, "pinned")
    if "source" in values:
        _choices({key: value for key, value in _mapping(values["source"]).items() if key != "source"})
    labels = _mapping(values.get("labels", {}))
    if len(labels) > _LABELS:
        raise _wrong(f"at most {_LABELS} labels", len(labels))
    for label in labels:
        if not _LABEL.fullmatch(label):
            raise _wrong("a label of 1 to 64 letters, digits, '_', '.' and '-'", label)
        _number(labels, label)
    return values


def _name(name: Any) -> str:
    """Check the name of a data object, which must not lead out of the state's folder."""
    return _text({"name": name}, "name", _OBJECT)


def _list(values: Mapping[str, Any], key: str, limit: int) -> list[Any]:
    found = values.get(key)
    if not isinstance(found, list) or len(found) > limit:
        raise _wrong(f"{key}: a list of at most {limit}", found)
    return found


def _mapping(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise _wrong("a JSON object", value)
    return value


def _number(values: Mapping[str, Any], key: str) -> int:
    found = values.get(key)
    if type(found) is not int or not 0 <= found < _NUMBER:
        raise _wrong(f"{key}: a whole number of 63 bits", found)
    return found


def _time(values: Mapping[str, Any], key: str) -> float:
    found = values.get(key, 0.0)
    if type(found) not in (int, float) or not 0 <= found < _NUMBER:
        raise _wrong(f"{key}: seconds since the epoch", found)
    return float(found)


def _text(values: Mapping[str, Any], key: str, pattern: re.Pattern[str]) -> str:
    found = values.get(key)
    if not isinstance(found, str) or not pattern.fullmatch(found):
        raise _wrong(f"{key}: text like {pattern.pattern}", found)
    return found


def foreign(found: str) -> RemoteError:
    """Return the error for a state object that no publisher wrote."""
    return RemoteError(
        f"{NAME}: expected the state of a publisher, found {found}, of somebody else: use another folder"
    )


def _wrong(expected: str, found: object) -> RemoteError:
    shown = repr(found)
    return RemoteError(f"{NAME}: expected {expected}, found {shown if len(shown) < 100 else shown[:100] + '...'}")
