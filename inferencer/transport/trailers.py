"""The trailing metadata of every answer: which version answered, and how old it is."""

from __future__ import annotations

from typing import TYPE_CHECKING

from paramsync.version import Version

if TYPE_CHECKING:
    from paramsync.inference.resident import Resident

VERSION = "paramsync-version"
AGE = "paramsync-age-ms"

Trailers = tuple[tuple[str, str], ...]


def trailers(resident: Resident, now: float) -> Trailers:
    """`now` is in seconds since the epoch. The age is absent if the time of the step is unknown."""
    parts = resident.parts
    if not parts:
        said, done = str(resident.version.number), _done_at(resident.version)
    else:
        said = ",".join(f"{name}={version.number}" for name, version in parts)
        times = [_done_at(version) for _, version in parts]
        done = None if None in times else min(time for time in times if time is not None)
    if done is None:
        return ((VERSION, said),)
    return ((VERSION, said), (AGE, str(max(0, int((now - done) * 1000)))))


def _done_at(version: Version) -> float | None:
    """When its step was done or, if that was not recorded, when the version became visible."""
    return version.step_done_at if version.step_done_at > 0 else version.committed_at
