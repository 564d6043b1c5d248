"""Gives tensors in nested structures readable names, and describes them as Endpoints of a signature."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import tensorflow as tf

from paramsync.graphdef.reading import fresh
from paramsync.v1 import bundle_pb2, graph_pb2


def leaves(structure: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the path and value of every leaf, in the order of tf.nest. A path joins `name`, keys and positions."""
    children: Iterable[tuple[Any, Any]]
    if isinstance(structure, Mapping):
        children = ((key, structure[key]) for key in sorted(structure))
    elif isinstance(structure, tuple) and hasattr(structure, "_fields"):
        children = zip(structure._fields, structure, strict=True)
    elif isinstance(structure, list | tuple) and not isinstance(structure, tf.TensorShape):
        children = enumerate(structure)
    else:
        yield name, structure
        return
    for part, inner in children:
        yield from leaves(inner, f"{name}_{part}".lstrip("_"))


def components(name: str, spec: Any) -> list[str]:
    """Return a name for each tensor of which a value consists. `spec` is the value, or its TypeSpec."""
    if not isinstance(spec, tf.TypeSpec):
        spec = tf.type_spec_from_value(spec)
    count = len(tf.nest.flatten(spec, expand_composites=True))
    if isinstance(spec, tf.SparseTensorSpec):
        parts = ["indices", "values", "dense_shape"]
    elif isinstance(spec, tf.RaggedTensorSpec) and spec.ragged_rank:
        parts = ["values", *(f"row_splits_{depth}" if count > 2 else "row_splits" for depth in range(spec.ragged_rank))]
    elif count == 1:
        return [name]
    else:
        parts = [str(position) for position in range(count)]
    return [f"{name}_{part}" for part in parts]


def unique(names: Sequence[str]) -> list[str]:
    """Return the names, with a number after each repeated name."""
    taken: list[str] = []
    for name in names:
        taken.append(fresh(name, taken))
    return taken


def endpoint(name: str, tensor: str, dtype: int, shape: Any) -> graph_pb2.Endpoint:
    """Return an Endpoint. `shape` is a TensorShapeProto."""
    return graph_pb2.Endpoint(
        name=name, tensor=tensor, dtype=dtype, shape=bundle_pb2.TensorShape.FromString(shape.SerializeToString())
    )


def endpoint_of(name: str, spelled: str, tensor: tf.Tensor | tf.TensorSpec) -> graph_pb2.Endpoint:
    """Return an Endpoint with the dtype and shape of a tensor."""
    return endpoint(name, spelled, tensor.dtype.base_dtype.as_datatype_enum, tensor.shape.as_proto())
