"""Specs of tensors and signatures, and the check that a checkpoint fits the parameters of a graph.

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
_SHOWN = 8  # the most names in a message

Shape = tuple[int | None, ...] | None
"""A dimension that is None may have any size. A shape that is None may have any rank."""


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """The name of a tensor, and the dtype and shape that it may have."""

    name: str
    dtype: str
    shape: Shape
    tensor: str = field(default="", compare=False)
    """The name in the source, such as x:0; empty for a parameter."""

    def accepts(self, dtype: str, shape: Shape | Sequence[int]) -> bool:
        if dtype != self.dtype or self.shape is None or shape is None:
            return dtype == self.dtype and self.shape is None
        return len(shape) == len(self.shape) and all(
            expected in (None, size) for expected, size in zip(self.shape, shape, strict=True)
        )

    def __str__(self) -> str:
        return described(self.dtype, self.shape)


@dataclass(frozen=True, slots=True)
class Signature:
    """The inputs and outputs of one function of a graph, by the names that callers use."""

    inputs: Mapping[str, TensorSpec]
    outputs: Mapping[str, TensorSpec]
    method_name: str = ""
    """The purpose that a SavedModel declares, such as tensorflow/serving/classify; not part of the digest."""


def described(dtype: str, shape: Shape | Sequence[int]) -> str:
    """Write a dtype and shape for people, such as float32 [?, 784]."""
    dimensions = "?" if shape is None else ", ".join("?" if size is None else str(size) for size in shape)
    return f"{dtype} [{dimensions}]" if shape is not None else f"{dtype} of any shape"


def spec_of(message: graph_pb2.Parameter | graph_pb2.Endpoint) -> TensorSpec:
    tensor = (message.source or message.tensor) if isinstance(message, graph_pb2.Endpoint) else ""
    return TensorSpec(message.name, dtypes.name(message.dtype), from_proto(message.shape), tensor)


def from_proto(shape: bundle_pb2.TensorShape) -> Shape:
    return None if shape.unknown_rank else tuple(None if dim.size < 0 else dim.size for dim in shape.dim)


# Parameters in a checkpoint ------------------------------------------------------------------------------------------

KeysOf = Callable[[Bundle, list[str], Mapping[str, str]], dict[str, str]]
"""Finds a bundle's keys for names, some of which are not keys of it. The last argument is `Wanting.called`."""


class Wanting(Protocol):
    """The attributes of a graph that determine which tensors a checkpoint must contain."""

    @property
    def parameters(self) -> Sequence[TensorSpec]: ...

    @property
    def called(self) -> Mapping[str, str]:
        """The framework's name of a parameter's variable, by parameter, if the name is known."""


def located(
    graph: Wanting, bundle: Bundle, *, where: str | None = None, keys_of: KeysOf = lambda *_: {}
) -> tuple[str, ...]:
    """Return the keys of all parameters in a checkpoint, in the order of `graph.parameters`. Reads no data.

    Raises ParameterError for a parameter that is missing, ambiguous, or of another dtype or shape.
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
    """Raise ParameterError unless `found` has all parameters with the right dtypes and shapes, and `extra` is empty.

    `kind` returns the dtype and shape of a value in `found`.
    """
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
        if not spec.accepts(dtype, shape):
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
    """List the first few names, sorted, for a message."""
    ordered = sorted(names)
    return f"{', '.join(map(_readable, ordered[:_SHOWN])) or 'nothing'}{' and more' if len(ordered) > _SHOWN else ''}"
