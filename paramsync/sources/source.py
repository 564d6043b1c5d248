"""Source: where the versions of a model come from, whatever wrote them."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol

from paramsync.inference.resident import Resident
from paramsync.sources.progress import Tell
from paramsync.version import Candidate, Version

Verification = Literal["auto", "checksums", "sizes"]
"""What is checked of parameters before they serve: all their bytes, or only what the index says of them.

With "auto" all bytes, unless they are in files in this machine's memory that are as our publisher left them, or were
verified for a version that serves and has the same files.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """`published` ascends up to the latest; it is None where the store cannot be read."""

    latest: Version | None = None
    published: list[Candidate[Version]] | None = None
    problem: Exception | None = None

    @property
    def numbers(self) -> list[int] | None:
        return None if self.published is None else [one.number for one in self.published]


class Bell(Protocol):
    """What rings when there may be something new. One thread calls `arm` before each look, and `close`."""

    def arm(self) -> None: ...
    def close(self) -> None: ...


class Source(Protocol):
    """Where the versions of a model come from. One thread uses it, the follower's; `path` is for everybody."""

    @property
    def path(self) -> Path: ...

    def look(self) -> Look:
        """What is published now. Raises nothing that the files can be the cause of."""

    def identity(self, version: Version) -> Hashable:
        """What identifies the files of a version now, as a look does: another value once they were rewritten."""

    def restore(self, version: Version, tell: Tell) -> Resident:
        """Brings a version in aside and checks it; nothing that serves changes.

        Raises UnfinishedError where whoever writes it may not be done, CorruptCheckpointError, ParameterError,
        UnsafeGraphError, GraphError, UnknownVersionError, StoreError, OSError.
        """

    def let_pages_go(self, idle: Sequence[Resident]) -> None:
        """Have these versions take as little memory as they can while another one is restored.

        They stay whole, and answer at any moment.
        """

    def tend(self, used: Sequence[Resident]) -> None:
        """What need not be done before a swap. `used` are the versions that serve or have a label now."""

    def prepare(self, serving: Resident) -> bool:
        """Do a portion, of milliseconds, of what the restore of a version after this one would have to do.

        Returns False where nothing is left to do.
        """

    def close(self) -> None:
        """Keep nothing open between two looks. Versions in memory stay whole; a later look opens what it needs."""

    def bell(self, ring: Callable[[], None]) -> Bell:
        """A bell for what is published here. It calls `ring` from any thread."""
