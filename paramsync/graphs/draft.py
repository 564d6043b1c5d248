"""Draft: what a source holds, before it is lifted: a graph whose variables are handles, and what they are called."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import tensorflow as tf

from paramsync.graphs.graph import Graph
from paramsync.v1 import graph_pb2


@dataclass(frozen=True, slots=True)
class Part:
    """Where a part lies in the whole of a partitioned variable."""

    whole: tuple[int, ...]
    offsets: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Parameter:
    """A variable: its key in a checkpoint, and the node that gives its handle or reference.

    `spec` is of the value that the node stands for. Parts of one partitioned variable share its name.
    """

    name: str
    node: str
    spec: tf.TensorSpec
    part: Part | None = None


@dataclass(frozen=True, slots=True)
class Table:
    """A lookup table: the node that gives its handle, and its contents."""

    node: str
    keys: tf.Tensor
    values: tf.Tensor


@dataclass(frozen=True, slots=True)
class Draft:
    """A graph as it was found. Whatever does not lead to an output of a signature is of no interest."""

    graph_def: Any
    parameters: Sequence[Parameter]
    signatures: Mapping[str, graph_pb2.Signature]
    tables: Sequence[Table] = field(default=())


def finish(draft: Draft) -> Graph:
    """The pure function. Raises GraphError, which names what cannot be pure and why."""
    raise NotImplementedError
