"""Version: the identity of one published set of parameters, as an immutable record."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from types import MappingProxyType


@dataclass(frozen=True, slots=True, kw_only=True)
class Version:
    """One published set of parameters. Times are seconds since the epoch.

    `committed_at` is None until the version is visible in its store. `graph` is "" where the store does not say which
    graph its parameters belong to (one that TensorFlow itself wrote). `bytes` counts the tensors, `bytes_written` those
    that the version before did not have already, in files that the two share. `checksum` is the digest of the
    checksums of all tensors: two versions with the same one have the same parameters.
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
    metrics: Mapping[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        object.__setattr__(self, "metrics", MappingProxyType(dict(self.metrics)))

    def to_json(self) -> str:
        """The record as it stands in a store."""
        values = {one.name: getattr(self, one.name) for one in fields(self)}
        return json.dumps(values | {"metrics": dict(self.metrics)}, indent=1) + "\n"

    @classmethod
    def from_json(cls, text: str) -> Version:
        """Read a record. Unknown keys are ignored, so that older readers accept newer records.

        Raises ValueError where the text is no record: not JSON, a key missing, a value of another type.
        """
        values = json.loads(text)
        if not isinstance(values, dict):
            raise ValueError(f"expected a JSON object, found {type(values).__name__}")
        for name, (kinds, required) in _JSON.items():
            if name not in values and not required:
                continue
            value = values.get(name)
            if isinstance(value, bool) or not isinstance(value, kinds):
                raise ValueError(f"{name}: expected {kinds}, found {value!r}")
        if not all(isinstance(value, (int, float)) for value in values.get("metrics", {}).values()):
            raise ValueError(f"metrics: expected numbers, found {values['metrics']!r}")
        return cls(**{name: values[name] for name in _JSON if name in values})


_NUMBER = (int, float)
_JSON: dict[str, tuple[tuple[type, ...], bool]] = {  # name: types it may have, whether it must be there
    "number": ((int,), True),
    "step": ((int,), True),
    "prefix": ((str,), True),
    "graph": ((str,), False),
    "step_done_at": (_NUMBER, True),
    "snapshot_at": (_NUMBER, True),
    "committed_at": ((*_NUMBER, type(None)), False),
    "bytes": ((int,), False),
    "bytes_written": ((int,), False),
    "checksum": ((str,), False),
    "metrics": ((dict,), False),
}
