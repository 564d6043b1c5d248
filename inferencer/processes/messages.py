"""What the supervisor tells its workers of graphs, versions and models."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from paramsync.status import Status
from paramsync.version import Version

from ..settings.settings import AnySettings


@dataclass(frozen=True, slots=True)
class GraphMessage:
    """A graph, whose bytes come as a file. `key` tells it from all others of this server."""

    key: int
    allowed: tuple[str, ...] = ()
    refused: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ParameterPlace:
    """Where a parameter lies: in which file, from which byte on."""

    file: int
    offset: int
    dtype: int
    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class VersionMessage:
    """A version. Its files come as descriptors, after that of its graph. `key` tells it from all others of a server."""

    key: int
    version: Version
    graph: GraphMessage
    sizes: tuple[int, ...]
    """Bytes of each file."""
    parameters: Sequence[ParameterPlace | Any]
    """In the order of the graph's parameters: where each lies, or its values."""
    ranges: Sequence[tuple[int, int, int]] = ()
    """What is brought into the page table before it serves: the number of a file, from where, to where."""


@dataclass(frozen=True, slots=True)
class Imported:
    """A version that others wrote, as it was written into two files: its graph, and the values of its parameters."""

    digest: str
    refused: Mapping[str, str]
    embeddings: frozenset[str]
    size: int
    """Bytes of the values."""
    parameters: Sequence[ParameterPlace | Any]


@dataclass(frozen=True, slots=True)
class Joining:
    """What came of joining two models: the versions that answer as one, if any, and why others do not."""

    reason: str
    versions: tuple[Version, Version] | None = None


@dataclass(frozen=True, slots=True)
class ModelMessage:
    """Which versions, by their keys, one model is answered from."""

    settings: AnySettings
    status: Status
    recent: tuple[int, ...] = ()
    labels: Mapping[str, int] = field(default_factory=dict)
    beside: tuple[int, ...] = ()
    awaited: bool = False
    """Whether the server counts as ready only once it serves."""
