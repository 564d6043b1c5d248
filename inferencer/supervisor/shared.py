"""Graphs and versions that the workers have: the messages they get, files as descriptors, and what is known of them."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from google.protobuf.message import DecodeError

from paramsync.checkpoint.reader import Bundle
from paramsync.errors import GraphError
from paramsync.graphs.specs import TensorSpec, spec_of
from paramsync.v1 import graph_pb2
from paramsync.version import Version

from ..processes.messages import GraphMessage, VersionMessage

if TYPE_CHECKING:
    from .trial import Trial

_MAP_SECONDS = 5.0  # in which a worker maps a version, and so many bytes more in each second
_MAP_BYTES = 100 << 20


@dataclass(eq=False)
class SharedGraph:
    """A graph as a file in memory, for workers that start later too, and what has to be known of it here.

    It is known once `describe` was called, after the graph could be built in a process of its own.
    """

    key: int
    content: int
    """A descriptor."""
    allowed: tuple[str, ...] = ()
    refused: Mapping[str, str] = field(default_factory=dict)
    parameters: Sequence[TensorSpec] = ()
    called: Mapping[str, str] = field(default_factory=dict)
    embeddings: Collection[str] = ()
    trial: Trial | None = None
    """The process where it was built, and is to be called."""
    works: bool = False
    """Whether that call returned."""

    @property
    def message(self) -> GraphMessage:
        return GraphMessage(self.key, self.allowed, self.refused)

    def describe(self, content: bytes, embeddings: Collection[str]) -> SharedGraph:
        """Read its parameters; `embeddings` are those of which it looks up rows. Returns itself. Raises GraphError."""
        try:
            message = graph_pb2.Graph.FromString(content)
        except DecodeError as error:
            raise GraphError(f"the graph file is not readable: {error}") from error
        self.parameters = tuple(spec_of(parameter) for parameter in message.parameters)
        self.called = {parameter.name: parameter.variable for parameter in message.parameters if parameter.variable}
        self.embeddings = embeddings
        return self

    def __del__(self) -> None:
        os.close(self.content)
        if self.trial is not None:
            self.trial.close()


@dataclass(eq=False)
class SharedVersion:
    """A version as workers get it: the message, and the files, each held by a lock of its own."""

    graph: SharedGraph
    message: VersionMessage
    descriptors: tuple[int, ...]
    held: Bundle | None = None
    """Keeps its files from being overwritten, where they are in a store."""
    keys: Sequence[str] = ()
    """The tensors of these files that somebody could damage: none of a copy."""

    @property
    def version(self) -> Version:
        return self.message.version

    @property
    def files(self) -> list[int]:
        """The descriptors that go with the message."""
        return [self.graph.content, *self.descriptors]

    @property
    def seconds(self) -> float:
        """The time in which a worker has to map it."""
        return _MAP_SECONDS + sum(self.message.sizes) / _MAP_BYTES

    def __del__(self) -> None:
        for descriptor in self.descriptors:
            os.close(descriptor)
