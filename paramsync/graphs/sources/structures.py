"""Nested structures of tensors as flat lists, with names that people recognise."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import tensorflow as tf

SEPARATOR = "_"


def leaves(structure: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    """Every leaf and its path, keys and positions joined to `name`; in the order of tf.nest: by key in a mapping."""
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
        yield from leaves(inner, f"{name}{SEPARATOR}{part}".lstrip(SEPARATOR))


def components(name: str, spec: Any) -> list[str]:
    """The names of the tensors that one leaf, a value or the spec of one, consists of."""
    if not isinstance(spec, tf.TypeSpec):
        spec = tf.type_spec_from_value(spec)
    count = len(tf.nest.flatten(spec, expand_composites=True))
    if isinstance(spec, tf.SparseTensorSpec):
        parts = ["indices", "values", "dense_shape"]
    elif isinstance(spec, tf.RaggedTensorSpec) and count == 2:
        parts = ["values", "row_splits"]
    elif isinstance(spec, tf.RaggedTensorSpec) and count == spec.ragged_rank + 1:
        parts = ["values", *(f"row_splits{SEPARATOR}{depth}" for depth in range(spec.ragged_rank))]
    elif count == 1:
        return [name]
    else:
        parts = [str(position) for position in range(count)]
    return [f"{name}{SEPARATOR}{part}" for part in parts]


def unique(names: Sequence[str]) -> list[str]:
    """The names, with a number after those that come again."""
    taken: list[str] = []
    for name in names:
        candidate, number = name, 0
        while candidate in taken:
            number += 1
            candidate = f"{name}{SEPARATOR}{number}"
        taken.append(candidate)
    return taken
