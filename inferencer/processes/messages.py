"""Messages between the supervisor and its workers, trials and importers: graphs, versions and models."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from paramsync.status import Status
from paramsync.version import Version

from ..settings.settings import AnySettings


@dataclass(frozen=True, slots=True)
class GraphMessage:
    """A graph. The graph's bytes come in a file. `key` is the graph's number in this server."""

    key: int
    allowed: tuple[str, ...] = ()
    refused: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ParameterPlace:
    """The place of a parameter: the index of its file in the message, and the offset of its first byte."""

    file: int
    offset: int
    dtype: int
    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class VersionMessage:
    """A version. Its graph and its data come as descriptors of files. `key` is the version's number in this server."""

    key: int
    version: Version
    graph: GraphMessage
    sizes: tuple[int, ...]
    """Bytes of each file."""
    parameters: Sequence[ParameterPlace | Any]
    """The place or the values of each parameter, in the graph's order."""
    ranges: Sequence[tuple[int, int, int]] = ()
    """Ranges of bytes to map before the version serves, each with the file's index, the first byte and the end."""


@dataclass(frozen=True, slots=True)
class Imported:
    """An imported version: the importer has written its graph and its values into two files."""

    digest: str
    refused: Mapping[str, str]
    embeddings: frozenset[str]
    size: int
    """Bytes of the file of values."""
    parameters: Sequence[ParameterPlace | Any]


@dataclass(frozen=True, slots=True)
class Joining:
    """The outcome of joining two models. `versions` is the pair that answers, if any. `reason` says why a newer pair
    does not answer; it is empty if the newest pair answers."""

    reason: str
    versions: tuple[Version, Version] | None = None


@dataclass(frozen=True, slots=True)
class ModelMessage:
    """The settings and status of one model, and the keys of the versions that answer for it.

    `recent` are the versions that served last, the serving version first. `labels` are the versions with a label.
    `beside` are versions that are kept in addition.
    """

    settings: AnySettings
    status: Status
    recent: tuple[int, ...] = ()
    labels: Mapping[str, int] = field(default_factory=dict)
    beside: tuple[int, ...] = ()
    awaited: bool = False
    """Whether the server is ready only once this model serves."""
