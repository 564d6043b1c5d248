"""Graph: a pure function of parameters and inputs, its signatures, its digest; kept as bytes without weights."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import tensorflow as tf
from google.protobuf.message import DecodeError

from paramsync import dtypes
from paramsync.errors import GraphError, InputError, UnknownSignatureError
from paramsync.graphs.digest import digest
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


class Graph:
    """A pure function. Immutable; any number of threads may call it at once, with any parameters, without a lock."""

    def __init__(self, message: graph_pb2.Graph) -> None:
        """Build the functions that a graph file describes. Raises GraphError where they cannot be built."""
        graph_def = _parsed(tf.compat.v1.GraphDef, message.graph_def, "graph_def")
        nodes = [one.node for one in message.parameters]
        self._message = message
        self.parameters = tuple(_spec(one) for one in message.parameters)
        self.signatures: Mapping[str, Signature] = {
            name: Signature(
                inputs={one.name: _spec(one) for one in signature.inputs},
                outputs={one.name: _spec(one) for one in signature.outputs},
            )
            for name, signature in message.signatures.items()
        }
        try:
            self.digest = _digest(graph_def, message)
            self._functions = {
                name: _Function(graph_def, signature, nodes) for name, signature in message.signatures.items()
            }
        except (ValueError, TypeError, KeyError, tf.errors.OpError) as error:
            raise GraphError(f"the graph cannot be built: {error}") from error
        if message.digest and message.digest != self.digest:
            raise GraphError(f"the graph is not the one it says it is: expected {message.digest}, found {self.digest}")

    @classmethod
    def from_bytes(cls, content: bytes) -> Graph:
        return cls(_parsed(graph_pb2.Graph, content, "graph file"))

    def to_bytes(self) -> bytes:
        message = graph_pb2.Graph()
        message.CopyFrom(self._message)
        message.digest = self.digest
        return message.SerializeToString(deterministic=True)

    def __call__(
        self,
        parameters: Sequence[tf.Tensor],
        inputs: Mapping[str, tf.Tensor],
        *,
        signature: str = DEFAULT_SIGNATURE,
        outputs: Collection[str] = (),
    ) -> dict[str, tf.Tensor]:
        """The outputs named, or all of them. `parameters` come in the order of `self.parameters`.

        Inputs are those of `check_inputs`, which the caller has called where it does not trust them.
        """
        results = self._functions[signature](parameters, inputs)
        return {name: results[name] for name in outputs} if outputs else results

    def check_inputs(
        self, signature: str, inputs: Mapping[str, tf.Tensor | npt.NDArray[np.generic]], outputs: Collection[str] = ()
    ) -> None:
        """Raise UnknownSignatureError or InputError where a call with these arguments could not succeed."""
        if signature not in self.signatures:
            raise UnknownSignatureError(signature, self.signatures)
        wanted = self.signatures[signature]
        if inputs.keys() != wanted.inputs.keys():
            raise InputError("inputs", expected=_listed(wanted.inputs), found=_listed(inputs))
        for name, spec in wanted.inputs.items():
            value = inputs[name]
            shape = tuple(value.shape)
            dtype = value.dtype.name if isinstance(value, tf.Tensor) else _dtype_name(value)
            if not spec.accepts(dtype, shape):
                raise InputError(f"input {name!r}", expected=spec, found=described(dtype, shape))
        unknown = [name for name in outputs if name not in wanted.outputs]
        if unknown:
            raise InputError("output filter", expected=f"some of {_listed(wanted.outputs)}", found=_listed(unknown))


class _Function:
    """One signature, ready to be called with parameters of the caller's choice."""

    def __init__(self, graph_def: Any, signature: graph_pb2.Signature, parameter_nodes: Sequence[str]) -> None:
        self._inputs = [one.name for one in signature.inputs]
        self._outputs = [one.name for one in signature.outputs]
        placeholders = [*(one.tensor for one in signature.inputs), *(f"{node}:0" for node in parameter_nodes)]
        kinds = {node.name: node.attr for node in graph_def.node if node.op == "Placeholder"}

        def build(*arguments: tf.Tensor) -> list[tf.Tensor]:
            return list(
                tf.graph_util.import_graph_def(
                    graph_def,
                    input_map=dict(zip(placeholders, arguments, strict=True)),
                    return_elements=[one.tensor for one in signature.outputs],
                    name="",
                )
            )

        attributes = [kinds[name.removesuffix(":0")] for name in placeholders]
        specs = [tf.TensorSpec(tf.TensorShape(one["shape"].shape), one["dtype"].type) for one in attributes]
        # wrap_function registers the functions of the graph's library, which a tf.function does not
        self._function = tf.compat.v1.wrap_function(build, specs)
        self._types = [tensor.dtype for tensor in self._function.outputs]
        stateful = any(operation.op_def.is_stateful for operation in self._function.graph.get_operations())
        self._call = tf.raw_ops.StatefulPartitionedCall if stateful else tf.raw_ops.PartitionedCall

    def __call__(self, parameters: Sequence[tf.Tensor], inputs: Mapping[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        arguments = [*(inputs[name] for name in self._inputs), *parameters]
        results = self._call(args=arguments, Tout=self._types, f=self._function)
        return dict(zip(self._outputs, results, strict=True))


def described(dtype: str, shape: Shape | Sequence[int]) -> str:
    """How a dtype and shape are written for people: float32 [?, 784]."""
    dimensions = "?" if shape is None else ", ".join("?" if size is None else str(size) for size in shape)
    return f"{dtype} [{dimensions}]" if shape is not None else f"{dtype} of any shape"


def _dtype_name(value: npt.NDArray[np.generic]) -> str:
    number = dtypes.from_numpy(value.dtype)
    return str(value.dtype) if number is None else dtypes.name(number)


def _listed(names: Collection[str]) -> str:
    return ", ".join(sorted(names)) or "none"


def _spec(one: graph_pb2.Parameter | graph_pb2.Endpoint) -> TensorSpec:
    return TensorSpec(one.name, dtypes.name(one.dtype), from_proto(one.shape))


def from_proto(shape: bundle_pb2.TensorShape) -> Shape:
    return None if shape.unknown_rank else tuple(None if dim.size < 0 else dim.size for dim in shape.dim)


def _digest(graph_def: Any, message: graph_pb2.Graph) -> str:
    named = {one.node: f"parameter {one.name}" for one in message.parameters}
    results = []
    for name, signature in message.signatures.items():
        named |= {one.tensor.removesuffix(":0"): f"input {one.name}" for one in signature.inputs}
        results += [(f"{name} {one.name}", one.tensor) for one in signature.outputs]
    return digest(graph_def, named, results)


def _parsed(kind: Any, content: bytes, what: str) -> Any:
    try:
        return kind.FromString(content)
    except DecodeError as error:
        raise GraphError(f"the {what} is not readable: {error}") from error
