"""Graphs and versions in the form sent to workers: a message, and descriptors of files."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from google.protobuf.message import DecodeError

from paramsync.checkpoint.reader import Bundle
from paramsync.errors import GraphError
from paramsync.graphs.specs import TensorSpec, spec_of
from paramsync.v1 import graph_pb2
from paramsync.version import Version

from ..processes.messages import GraphMessage, VersionMessage
from .child import ChildProcess

_MAP_SECONDS = 5.0  # how long a worker may take to map a version
_MAP_BYTES = 100 << 20  # a worker may take one more second for each 100 MB


@dataclass(eq=False)
class SharedGraph:
    """A graph as a file in memory. The file is kept for workers that start later.

    After a trial has built the graph, `describe` fills in the graph's parameters.
    """

    key: int
    content: int
    """The descriptor of the file."""
    allowed: tuple[str, ...] = ()
    refused: Mapping[str, str] = field(default_factory=dict)
    parameters: Sequence[TensorSpec] = ()
    called: Mapping[str, str] = field(default_factory=dict)
    embeddings: Collection[str] = ()
    trial: ChildProcess | None = None
    """The process that has built the graph and will call it."""
    works: bool = False
    """Whether the trial has called the graph without a fault."""

    @property
    def message(self) -> GraphMessage:
        return GraphMessage(self.key, self.allowed, self.refused)

    def describe(self, content: bytes, embeddings: Collection[str]) -> SharedGraph:
        """Read the parameters from the graph's file, and return this object. Raises GraphError.

        `embeddings` are parameters of which the graph only looks up rows.
        """
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
            self.trial.kill()


@dataclass(eq=False)
class SharedVersion:
    """A version in the form sent to workers: a message, and descriptors of its files, which hold the files' locks."""

    graph: SharedGraph
    message: VersionMessage
    descriptors: tuple[int, ...]
    held: Bundle | None = None
    """Keeps the files in the store from being overwritten; None for an imported version."""
    keys: Sequence[str] = ()
    """The tensors whose files others could damage; empty if the files are copies of our own."""

    @property
    def version(self) -> Version:
        return self.message.version

    @property
    def files(self) -> list[int]:
        """The descriptors to send with the message."""
        return [self.graph.content, *self.descriptors]

    @property
    def seconds(self) -> float:
        """How long a worker may take to map the version."""
        return _MAP_SECONDS + sum(self.message.sizes) / _MAP_BYTES

    def __del__(self) -> None:
        for descriptor in self.descriptors:
            os.close(descriptor)
