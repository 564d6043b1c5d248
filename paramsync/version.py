"""The record of one published set of parameters, and how it is read and written as JSON."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field, fields
from types import MappingProxyType
from typing import Any, Generic, Protocol, TypeVar


@dataclass(frozen=True, slots=True, kw_only=True)
class Version:
    """One published set of parameters. Times are seconds since the epoch.

    committed_at   None until the version is visible in its store
    graph          the digest of its graph; "" where the store does not say it, as in stores that TensorFlow wrote
    bytes          of all tensors
    bytes_written  of the tensors in files that the version shares with none before
    checksum       the digest of the checksums of all tensors: equal for versions with the same parameters
    finite         whether the publisher found no NaN and no infinity in the values with these checksums
    seal           of its data files at that time, see `paramsync.checkpoint.data_file`; "" where they are not in memory
    """

    number: int
    step: int
    prefix: str
    graph: str = ""
    step_done_at: float
    snapshot_at: float
    committed_at: float | None = None
    bytes: int = 0
    bytes_written: int = 0
    checksum: str = ""
    finite: bool = False
    seal: str = ""
    metrics: Mapping[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        object.__setattr__(
            self, "metrics", MappingProxyType({name: float(value) for name, value in self.metrics.items()})
        )

    def to_json(self) -> str:
        """The text of the record in a store."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return json.dumps(values | {"metrics": dict(self.metrics)}, indent=1) + "\n"

    @classmethod
    def from_json(cls, text: str) -> Version:
        """Read a record. Unknown keys are ignored, so that older readers accept newer records.

        Raises ValueError for a text that is no record: not JSON, a key missing, a value of another type or range.
        """
        values = json.loads(text)
        if not isinstance(values, dict):
            raise ValueError(f"expected a JSON object, found {type(values).__name__}")
        missing = [name for name in _REQUIRED if name not in values]
        if missing:
            raise ValueError(f"expected {', '.join(missing)}, found {', '.join(map(repr, values)) or 'nothing'}")
        found: dict[str, Any] = {}
        for name, read in _READ.items():
            if name in values:
                try:
                    found[name] = read(values[name])
                except (ValueError, TypeError, OverflowError, AttributeError) as error:
                    raise ValueError(f"{name}: {error}") from error
        return cls(**found)


def _whole(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not -(1 << 63) <= value < 1 << 63:
        raise ValueError("expected a whole number of 64 bits")
    return value


def _number(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"expected a number, found {type(value).__name__}")
    return float(value)


def _moment(value: object) -> float:
    seconds = _number(value)
    if not math.isfinite(seconds):
        raise ValueError("expected seconds since the epoch")
    return seconds


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(f"expected text, found {type(value).__name__}")
    return value


def _truth(value: object) -> bool:
    if not isinstance(value, bool):
        raise TypeError(f"expected true or false, found {type(value).__name__}")
    return value


_REQUIRED = ("number", "step", "prefix", "step_done_at", "snapshot_at")
_READ: Mapping[str, Callable[[Any], Any]] = {
    "number": _whole,
    "step": _whole,
    "prefix": _text,
    "graph": _text,
    "step_done_at": _moment,
    "snapshot_at": _moment,
    "committed_at": lambda value: None if value is None else _moment(value),
    "bytes": _whole,
    "bytes_written": _whole,
    "checksum": _text,
    "finite": _truth,
    "seal": _text,
    "metrics": lambda value: {_text(name): _number(number) for name, number in value.items()},
}


class Numbered(Protocol):
    @property
    def number(self) -> int: ...


V = TypeVar("V", bound=Numbered)


@dataclass(frozen=True)
class Candidate(Generic[V]):
    """A version, and the identity of its files, which changes when they are rewritten."""

    version: V
    files: Hashable

    @property
    def number(self) -> int:
        return self.version.number

    def same_as(self, other: Candidate[V] | None) -> bool:
        """Whether both are one version with the same files."""
        return other is not None and (self.number, self.files) == (other.number, other.files)
