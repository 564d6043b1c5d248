"""The status of a mirror and its bucket. Followers read it in a local copy, publishers from a pipe."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, dataclass, fields, replace
from typing import Any

_NUMBER = 1 << 63


@dataclass(frozen=True, slots=True, kw_only=True)
class Copied:
    """The version that a mirror copied last, and when it reached each stage. Times are in seconds since the epoch.

    in_bucket_at  when the bucket had the version; None if the mirror that uploaded it did not record this
    here_at       when it was in the local copy; for a publisher, when its mirror knew that the bucket has the version
    served_at     when it began to serve; None while another version serves
    way           "whole" or "delta"
    deltas        how many deltas were copied
    bytes         bytes over the network
    size          bytes of the whole version
    seconds       duration of the transfer
    traceparent   trace of its publication
    """

    number: int
    step_done_at: float
    published_at: float
    in_bucket_at: float | None = None
    here_at: float
    served_at: float | None = None
    way: str
    deltas: int
    bytes: int
    size: int
    seconds: float
    traceparent: str = ""


def stages(copied: Any) -> dict[str, float]:
    """Return the seconds that each stage took for a version after its training step. `copied` is a value or a message.

    A difference that is negative, because the clocks of two hosts differ, counts as 0.
    """
    at = [copied.step_done_at, copied.published_at, copied.in_bucket_at or copied.here_at, copied.here_at]
    at += [copied.served_at] if copied.served_at else []
    names = ("publish", "upload", "download", "serve")
    return {name: max(0.0, end - start) for name, start, end in zip(names, at, at[1:], strict=False)}


@dataclass(frozen=True, slots=True, kw_only=True)
class BucketStatus:
    """The status of a mirror between a local store and a bucket. Counts are since the mirror started.

    address        the address that is followed at present
    addresses      of all buckets with the same versions, in order, separated by commas
    reason         why versions are not copied at present; "" while they are
    over           whether the mirror ended for good: another publisher has begun, or somebody emptied the bucket
    answered_at    when the bucket last answered, in seconds since the epoch
    newest         the newest version in the bucket
    behind         number of versions that wait to be copied
    waiting_since  when the oldest waiting version was published, in seconds since the epoch; for a publisher, when the
                   last copy was made, if that was later
    failures       failed attempts to look for a version or to copy it
    clock          how the clock of a follower's host, or of the uploading host, differs from the bucket's; "" if not
                   much
    """

    address: str
    reason: str = ""
    over: bool = False
    answered_at: float | None = None
    newest: int | None = None
    behind: int = 0
    waiting_since: float | None = None
    copied: Copied | None = None
    whole_bytes: int = 0
    delta_bytes: int = 0
    failures: int = 0
    addresses: str = ""
    clock: str = ""

    def ageless(self) -> BucketStatus:
        """This status without `answered_at` and `served_at`, for comparing two statuses."""
        copied = None if self.copied is None else replace(self.copied, served_at=None)
        return replace(self, answered_at=None, copied=copied)


def from_values(values: Any) -> BucketStatus:
    """Read a status from the values that `asdict` made. Raises ValueError."""
    status = _read(BucketStatus, values)
    copied = status.pop("copied", None)
    return BucketStatus(**status, copied=None if copied is None else Copied(**_read(Copied, copied)))


_KINDS: dict[str, tuple[type, ...]] = {"str": (str,), "bool": (bool,), "int": (int,), "float": (int, float)}


def _read(kind: type[BucketStatus | Copied], values: Any) -> dict[str, Any]:
    """Return the known fields, checked. Keys of a newer paramsync are left out."""
    if not isinstance(values, Mapping):
        raise ValueError(f"expected fields by name, found {type(values).__name__}")
    read: dict[str, Any] = {field.name: values[field.name] for field in fields(kind) if field.name in values}
    for field in fields(kind):
        wanted, _, absent = str(field.type).partition(" | ")
        value: Any = read.get(field.name, None if field.default is MISSING else field.default)
        if wanted == "Copied" or (value is None and absent):
            continue
        if type(value) not in _KINDS[wanted] or (wanted in ("int", "float") and not 0 <= value < _NUMBER):
            raise ValueError(f"{field.name}: expected {wanted}, found {value!r:.50}")
    return read
