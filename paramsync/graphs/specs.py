"""Specs: what the tensors of a graph are called and may be, and its signatures. Needs no TensorFlow."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from paramsync import dtypes
from paramsync.v1 import bundle_pb2, graph_pb2

DEFAULT_SIGNATURE = "serving_default"

Shape = tuple[int | None, ...] | None
"""None for a dimension of any size; None instead of the tuple for any rank."""


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """What a tensor is called, and what it may be."""

    name: str
    dtype: str
    shape: Shape
    tensor: str = field(default="", compare=False)
    """What the graph that it was captured from calls it, such as x:0; of a parameter empty."""

    def accepts(self, dtype: str, shape: Sequence[int]) -> bool:
        return dtype == self.dtype and (
            self.shape is None
            or (
                len(shape) == len(self.shape)
                and all(mine in (None, theirs) for mine, theirs in zip(self.shape, shape, strict=True))
            )
        )

    def __str__(self) -> str:
        return described(self.dtype, self.shape)


@dataclass(frozen=True, slots=True)
class Signature:
    """What one function of a graph takes and gives, by the names callers use."""

    inputs: Mapping[str, TensorSpec]
    outputs: Mapping[str, TensorSpec]
    method_name: str = ""
    """What a SavedModel said it is for; it changes nothing of what is computed, and is no part of the digest."""


def described(dtype: str, shape: Shape | Sequence[int]) -> str:
    """How a dtype and shape are written for people: float32 [?, 784]."""
    dimensions = "?" if shape is None else ", ".join("?" if size is None else str(size) for size in shape)
    return f"{dtype} [{dimensions}]" if shape is not None else f"{dtype} of any shape"


def spec_of(one: graph_pb2.Parameter | graph_pb2.Endpoint) -> TensorSpec:
    tensor = (one.source or one.tensor) if isinstance(one, graph_pb2.Endpoint) else ""
    return TensorSpec(one.name, dtypes.name(one.dtype), from_proto(one.shape), tensor)


def from_proto(shape: bundle_pb2.TensorShape) -> Shape:
    return None if shape.unknown_rank else tuple(None if dim.size < 0 else dim.size for dim in shape.dim)
