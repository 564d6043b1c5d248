"""What the tensors and operations of a source are called in the graph of its copy."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import tensorflow as tf


@dataclass(frozen=True, slots=True)
class Names:
    """From names of tensors or operations in the source to those in the copy's graph; None for what is not there."""

    source: tf.Graph
    scope: str
    replaced: Mapping[str, str]
    copied: frozenset[str]
    kept: frozenset[str]

    def __call__(self, name: str) -> str | None:
        return self.replaced[name] if name in self.replaced else self.own(name)

    def own(self, name: str) -> str | None:
        """The same for what reads `name` in the source, or gives it: what is replaced is there under its own name."""
        operation = name.partition(":")[0]
        if operation in self.copied:
            return f"{self.scope}/{name}"
        return name if operation in self.kept else None
