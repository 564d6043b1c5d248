"""What workers get of a graph and of a version: a message, and files as descriptors."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ..processes.messages import GraphMessage, VersionMessage

if TYPE_CHECKING:
    from .trial import Trial

_MAP_SECONDS = 5.0  # in which a worker maps a version, and so many bytes more in each second
_MAP_BYTES = 100 << 20


@dataclass(eq=False)
class SharedGraph:
    """A graph as a file in memory, for workers that start later too."""

    key: int
    content: int
    """A descriptor."""
    allowed: tuple[str, ...] = ()
    refused: Mapping[str, str] = field(default_factory=dict)
    trial: Trial | None = None
    """Where it was built, and is still to be called."""
    works: bool = False
    """Whether it was called there."""

    @property
    def message(self) -> GraphMessage:
        return GraphMessage(self.key, self.allowed, self.refused)

    def __del__(self) -> None:
        os.close(self.content)
        if self.trial is not None:
            self.trial.close()


@dataclass(eq=False)
class SharedFiles:
    """A version as workers get it: the message, and the files, each held by a lock of its own."""

    graph: SharedGraph
    message: VersionMessage
    descriptors: tuple[int, ...]

    @property
    def seconds(self) -> float:
        """In which a worker maps it."""
        return _MAP_SECONDS + sum(self.message.sizes) / _MAP_BYTES

    def __del__(self) -> None:
        for descriptor in self.descriptors:
            os.close(descriptor)
