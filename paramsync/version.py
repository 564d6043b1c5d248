"""Version, the record of one published set of parameters, and View, the versions in memory that answer requests."""

from __future__ import annotations

import json
import math
import weakref
from collections.abc import Callable, Hashable, Mapping
from dataclasses import MISSING, dataclass, field, fields
from types import MappingProxyType
from typing import Any, Generic, Protocol, TypeVar

from paramsync.errors import UnknownLabelError, UnknownVersionError

NUMBERS = 10**18  # all version numbers are smaller, so that they fit an int64


@dataclass(frozen=True, slots=True, kw_only=True)
class Version:
    """One published set of parameters. Times are seconds since the epoch.

    committed_at   None until the version is visible in its store
    serve_at       when followers are to serve the version; None: as soon as they have it
    graph          digest of its graph; "" if unknown, as in stores that TensorFlow wrote
    bytes          size of all tensors
    bytes_written  size of the tensors in files that no earlier version has
    checksum       digest of the checksums of all tensors: equal for versions with the same parameters
    finite         True if the publisher checked all values, and found no NaN and no infinity
    precision      "bfloat16" if float32 values were rounded to bfloat16, else ""
    seal           identifies the data files as the publisher left them in memory (`checkpoint.data_file`); else ""
    digest         cryptographic digest of all tensors (`paramsync.checkpoint.digests`); "" without a signature
    graph_file     SHA-256 of the graph's file; "" without a signature
    publications   number of versions published in this store so far; 0 if unknown
    traceparent    trace of its publication in W3C's form; "" if it was not traced
    signed_by      id of the key that made `signature`
    signature      covers all fields except `publications` and `traceparent` (`paramsync.store.signing`)
    """

    number: int
    step: int
    prefix: str
    graph: str = ""
    step_done_at: float
    snapshot_at: float
    committed_at: float | None = None
    serve_at: float | None = None
    bytes: int = 0
    bytes_written: int = 0
    checksum: str = ""
    finite: bool = False
    precision: str = ""
    seal: str = ""
    digest: str = ""
    graph_file: str = ""
    publications: int = 0
    traceparent: str = ""
    signed_by: str = ""
    signature: str = ""
    metrics: Mapping[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        object.__setattr__(
            self, "metrics", MappingProxyType({name: float(value) for name, value in self.metrics.items()})
        )

    def to_json(self) -> str:
        """Return the text of the record in a store."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return json.dumps(values | {"metrics": dict(self.metrics)}, indent=1) + "\n"

    @classmethod
    def from_json(cls, text: str) -> Version:
        """Read a record. Unknown keys are ignored, so that older readers accept newer records.

        Raises ValueError if the text is not JSON, a key is missing, or a value has a wrong type or range.
        """
        values = json.loads(text)
        if not isinstance(values, dict):
            raise ValueError(f"expected a JSON object, found {type(values).__name__}")
        required = [
            field.name for field in fields(cls) if field.default is MISSING and field.default_factory is MISSING
        ]
        if missing := [name for name in required if name not in values]:
            raise ValueError(f"expected {', '.join(missing)}, found {', '.join(map(repr, values)) or 'nothing'}")
        read: dict[str, Any] = {}
        for name, kind in ((known.name, str(known.type)) for known in fields(cls)):
            if name in values:
                try:
                    read[name] = _read(kind, values[name])
                except (ValueError, OverflowError) as error:
                    raise ValueError(f"{name}: {error}") from error
        return cls(**read)


_KINDS = {
    "int": (int, "a whole number of 64 bits"),
    "float": (float, "a number"),
    "str": (str, "text"),
    "bool": (bool, "true or false"),
}


def _read(kind: str, value: Any) -> Any:
    """Convert a value from JSON to the type of a field. Raises ValueError, OverflowError."""
    if kind == "float | None":
        return None if value is None else _read("float", value)
    if kind == "float":
        if not math.isfinite(seconds := _typed(kind, value)):
            raise ValueError("expected seconds since the epoch")
        return seconds
    if kind != "Mapping[str, float]":
        return _typed(kind, value)
    if not isinstance(value, dict):
        raise ValueError(f"expected numbers by name, found {type(value).__name__}")
    return {name: _typed("float", number) for name, number in value.items()}


def _typed(kind: str, value: Any) -> Any:
    wanted, words = _KINDS[kind]
    if wanted is float and type(value) is int:
        value = float(value)
    if type(value) is not wanted or (isinstance(value, int) and not -(1 << 63) <= value < 1 << 63):
        raise ValueError(f"expected {words}, found {type(value).__name__}")
    return value


@dataclass(frozen=True)
class Candidate:
    """A version, and the identity of its files. The identity changes when the files are rewritten."""

    version: Version
    files: Hashable

    @property
    def number(self) -> int:
        return self.version.number

    def same_as(self, other: Candidate | None) -> bool:
        """Return whether both are the same version with the same files."""
        return other is not None and (self.number, self.files) == (other.number, other.files)


class InMemory(Protocol):
    """A version in memory, complete and checked, in this process or in the workers."""

    @property
    def version(self) -> Version: ...

    @property
    def graph(self) -> Any:
        """The graph. Its `refused` has the reason for each signature that is not served."""


R = TypeVar("R", bound=InMemory)
R_co = TypeVar("R_co", bound=InMemory, covariant=True)


@dataclass(frozen=True, eq=False)
class View(Generic[R]):
    """The versions in memory that answer requests. A change makes a new View."""

    recent: tuple[R, ...] = ()  # the serving version, then the versions that served before, the latest first
    labels: Mapping[str, R] = field(default_factory=dict)
    beside: tuple[R, ...] = ()  # other versions that stay in memory
    residents: tuple[R, ...] = field(init=False)
    numbered: Mapping[int, R] = field(init=False)

    def __post_init__(self) -> None:
        residents = tuple(dict.fromkeys((*self.recent, *self.beside, *self.labels.values())))
        object.__setattr__(self, "residents", residents)
        # If files are rewritten, a labelled version and its successor share a number. A request for this number then
        # gets the version that served last.
        object.__setattr__(self, "numbered", {resident.version.number: resident for resident in reversed(residents)})

    def take(self, model: str, version: int | None = None, label: str = "") -> R:
        """Return the version with this label or number, by default the serving version, which must exist.

        Raises UnknownVersionError, UnknownLabelError.
        """
        if label:
            if label not in self.labels:
                raise UnknownLabelError(model, label, self.labels)
            return self.labels[label]
        if version is None:
            return self.recent[0]
        if version not in self.numbered:
            raise UnknownVersionError(f"model {model!r}", version, self.numbered)
        return self.numbered[version]

    def mapped(self, change: Callable[[R], R | None]) -> View[R]:
        """Return a view in which `change` replaces each version. Versions that it changes to None are left out."""
        changed = {resident: change(resident) for resident in self.residents}
        return View(
            tuple([new for resident in self.recent if (new := changed[resident]) is not None]),
            {label: new for label, resident in self.labels.items() if (new := changed[resident]) is not None},
            tuple([new for resident in self.beside if (new := changed[resident]) is not None]),
        )


class Leaving(Generic[R]):
    """Keeps the parts of each version that left the View. They are freed once no request refers to the version.

    Freeing the parts takes milliseconds on the thread that drops the last reference to them. Because the parts are kept
    here, only `tend` frees them, so that no request is delayed. Only one thread may call `tend`; any thread may call
    the other methods.
    """

    def __init__(self) -> None:
        self._kept: dict[weakref.ref[R], tuple[int, tuple[Any, ...]]] = {}

    def add(self, resident: R, *parts: Any) -> None:
        """Keep the parts of a version. The caller drops its reference to the version."""
        self._kept[weakref.ref(resident)] = resident.version.number, parts

    @property
    def numbers(self) -> tuple[int, ...]:
        """The numbers of versions to which requests may still refer."""
        return tuple(number for number, _ in [*self._kept.values()])

    def tend(self) -> bool:
        """Free the parts of versions to which no request refers any more. Returns whether any versions are left."""
        for reference in [*self._kept]:
            if reference() is None:
                del self._kept[reference]
        return bool(self._kept)
