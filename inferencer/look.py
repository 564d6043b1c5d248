"""One look at a store: what is published, with what identifies the files of each version, and what is wrong."""

from __future__ import annotations

from dataclasses import dataclass

from inferencer.identity import identities
from inferencer.policy import Candidate
from paramsync.errors import CorruptCheckpointError, ParamsyncError
from paramsync.store import Store
from paramsync.version import Version


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """`published` ascends up to the latest; it is None where the store cannot be read."""

    latest: Version | None = None
    published: list[Candidate[Version]] | None = None
    problem: Exception | None = None

    @property
    def numbers(self) -> list[int] | None:
        return None if self.published is None else [one.number for one in self.published]


def look(store: Store) -> Look:
    """Raises nothing that a store can be the cause of."""
    problem: Exception | None = None
    latest = None
    try:
        try:
            latest = store.latest()
        except CorruptCheckpointError as error:  # older versions may be sound
            problem = error
        versions = store.versions()
        files = identities(store, versions)
    except (ParamsyncError, OSError) as error:
        return Look(problem=error)
    if latest is None and problem is not None and versions:
        latest = versions[-1]
    published = [
        Candidate(one, files[one.number]) for one in versions if latest is not None and one.number <= latest.number
    ]
    return Look(latest=latest, published=published, problem=problem)
