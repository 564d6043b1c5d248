"""Specs: what the tensors of a graph are called and may be, its signatures, and which checkpoint has its parameters.

Needs no TensorFlow.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from paramsync import dtypes
from paramsync.checkpoint.reader import Bundle
from paramsync.errors import ParameterError
from paramsync.host.files import shown
from paramsync.v1 import bundle_pb2, graph_pb2

DEFAULT_SIGNATURE = "serving_default"
_SHOWN = 8  # names in a message

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
                and all(expected in (None, size) for expected, size in zip(self.shape, shape, strict=True))
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


def spec_of(message: graph_pb2.Parameter | graph_pb2.Endpoint) -> TensorSpec:
    tensor = (message.source or message.tensor) if isinstance(message, graph_pb2.Endpoint) else ""
    return TensorSpec(message.name, dtypes.name(message.dtype), from_proto(message.shape), tensor)


def from_proto(shape: bundle_pb2.TensorShape) -> Shape:
    return None if shape.unknown_rank else tuple(None if dim.size < 0 else dim.size for dim in shape.dim)


# Parameters in a checkpoint ------------------------------------------------------------------------------------------

KeysOf = Callable[[Bundle, list[str], Mapping[str, str]], dict[str, str]]
"""The keys of names that are none themselves, as far as they are found."""


class Wanting(Protocol):
    """What a graph says of its parameters."""

    @property
    def parameters(self) -> Sequence[TensorSpec]: ...

    @property
    def called(self) -> Mapping[str, str]:
        """What the framework calls the variable of each, where that is known."""


def located(
    graph: Wanting, bundle: Bundle, *, where: str | None = None, keys_of: KeysOf = lambda *_: {}
) -> tuple[str, ...]:
    """The key of each parameter, in the order of `graph.parameters`, in a checkpoint that has all of them.

    Raises ParameterError for what is not there, does not fit or could be one of several; no data is read before.
    """
    names = [spec.name for spec in graph.parameters]
    keys = {name: name for name in names}
    if not all(name in bundle.entries for name in names):
        keys |= keys_of(bundle, names, graph.called)
    found = {**bundle.entries, **{name: bundle.entries[key] for name, key in keys.items() if key in bundle.entries}}
    where = where or str(bundle.prefix)
    check(graph.parameters, found, lambda entry: (dtypes.name(entry.dtype), entry.shape), where=where)
    return tuple(keys[name] for name in names)


def check(
    parameters: Sequence[TensorSpec],
    found: Mapping[str, Any],
    kind: Callable[[Any], tuple[str, Shape]],
    *,
    where: str,
    extra: Iterable[str] = (),
) -> None:
    """Raise ParameterError where what was found, of this `kind`, is not what a graph needs for its parameters."""
    missing = [spec.name for spec in parameters if spec.name not in found]
    if missing:
        there = listed([*found, *extra])
        raise ParameterError(where, expected=f"{listed(missing)} ({len(missing)} missing)", found=there)
    if extra := list(extra):
        expected = listed(spec.name for spec in parameters)
        raise ParameterError(where, expected=expected, found=f"{listed(extra)} too ({len(extra)} not needed)")
    wrong = []
    for spec in parameters:
        dtype, shape = kind(found[spec.name])
        if shape is None or not spec.accepts(dtype, [-1 if size is None else size for size in shape]):
            wrong.append((f"{_readable(spec.name)} {spec}", described(dtype, shape)))
    if wrong:
        more = f" ({len(wrong)} differ)" if len(wrong) > 1 else ""
        raise ParameterError(
            where,
            expected=", ".join(wanted for wanted, _ in wrong[:_SHOWN]) + more,
            found=", ".join(kind_found for _, kind_found in wrong[:_SHOWN]),
        )


def _readable(name: str) -> str:
    return name if name.isprintable() else shown(name)


def listed(names: Iterable[str]) -> str:
    """Some names, in order, as a message shows them."""
    ordered = sorted(names)
    return f"{', '.join(map(_readable, ordered[:_SHOWN])) or 'nothing'}{' and more' if len(ordered) > _SHOWN else ''}"
