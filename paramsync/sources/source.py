"""Source: where the versions of a model come from, whatever wrote them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Sequence
from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import Any, Literal, Protocol, TypeAlias

from paramsync.checkpoint.reader import Bundle
from paramsync.graphs.locating import Wanting
from paramsync.inference.view import InMemory, R_co
from paramsync.version import Candidate, Version


@dataclass(frozen=True, slots=True)
class Progress:
    """`phase` is "mapping", "verifying" or "warming"; the totals are 0 until they are known."""

    phase: str
    _: KW_ONLY
    bytes_done: int = 0
    bytes_total: int = 0
    variables_done: int = 0
    variables_total: int = 0


ProgressCallback: TypeAlias = Callable[[Progress], None]
"""Called now and then during a restore, from any thread. What it raises ends the restore, and is raised there."""


def ignore_progress(progress: Progress) -> None:
    """The callback of callers that show no progress."""


Verification = Literal["auto", "checksums", "sizes"]
"""What is checked of parameters before they serve: all bytes ("checksums"), or only their index ("sizes").

"auto" checks all bytes, except in files in this machine's memory that are as our publisher left them, and in files that
were verified for another version that serves.
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
    """Rings when there may be something new. One thread calls `arm` before each look, and `close`."""

    def arm(self) -> None: ...
    def close(self) -> None: ...


class GraphSpec(Wanting, Protocol):
    """What has to be known of a graph to check a checkpoint for it."""

    @property
    def embeddings(self) -> Collection[str]:
        """Names of parameters of which it only looks up rows."""


class Build(Protocol[R_co]):
    """What a checkpoint becomes. `graph` is always one that its own `graph` gave."""

    def graph(self, version: Version) -> GraphSpec:
        """Raises GraphError, UnfinishedMetaError, UnsafeGraphError, CorruptCheckpointError, OSError."""

    def keys(self, version: Version, graph: Any, bundle: Bundle) -> tuple[str, ...]:
        """Where its parameters are. Raises ParameterError."""

    def build(self, version: Version, graph: Any, bundle: Bundle, keys: Sequence[str]) -> R_co:
        """The version in memory; the bundle was checked."""


class Source(Protocol[R_co]):
    """Where the versions of a model come from. One thread uses it, the follower's; `path` is for everybody."""

    @property
    def path(self) -> Path: ...

    def look(self) -> Look:
        """What is published now. Errors that files cause are returned, not raised."""

    def identity(self, version: Version) -> Hashable:
        """A value that identifies the files of a version, as a look gives it: another one once they were rewritten."""

    def restore(self, version: Version, tell: ProgressCallback) -> R_co:
        """Brings a version into memory and checks it; what serves does not change.

        Raises UnfinishedError where its writer may not be done, CorruptCheckpointError, ParameterError,
        UnsafeGraphError, GraphError, UnknownVersionError, StoreError, OSError.
        """

    def let_pages_go(self, idle: Sequence[InMemory]) -> None:
        """Evict the pages of these versions while another one is restored. They stay whole, and go on answering."""

    def tend(self, used: Sequence[InMemory]) -> None:
        """Do after a swap what need not be done before it. `used` are the versions that serve or have a label now."""

    def bell(self, ring: Callable[[], None]) -> Bell:
        """A bell for what is published here. It calls `ring` from any thread."""
