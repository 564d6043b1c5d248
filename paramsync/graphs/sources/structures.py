"""Nested structures of tensors as flat lists, with names that people recognise."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import tensorflow as tf

SEPARATOR = "_"


def leaves(structure: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    """Every leaf and its path, keys and positions joined to `name`; in the order of tf.nest: by key in a mapping."""
    for part, inner in _children(structure):
        yield from leaves(inner, f"{name}{SEPARATOR}{part}".lstrip(SEPARATOR))
    if not _is_nested(structure):
        yield name, structure


def mapped(structure: Any, change: Callable[[Any], Any]) -> Any:
    """The same structure, in plain dicts, lists and tuples, with each leaf changed; called in the order of `leaves`."""
    if isinstance(structure, Mapping):
        changed = {key: mapped(structure[key], change) for key in sorted(structure)}
        return {key: changed[key] for key in structure}
    if isinstance(structure, tuple) and hasattr(structure, "_fields"):
        return type(structure)(*(mapped(inner, change) for inner in structure))
    if _is_nested(structure):
        return (tuple if isinstance(structure, tuple) else list)(mapped(inner, change) for inner in structure)
    return change(structure)


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
    found: list[str] = []
    for name in names:
        candidate, number = name, 0
        while candidate in found:
            number += 1
            candidate = f"{name}{SEPARATOR}{number}"
        found.append(candidate)
    return found


def _children(structure: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(structure, Mapping):
        yield from ((str(key), structure[key]) for key in sorted(structure))
    elif isinstance(structure, tuple) and hasattr(structure, "_fields"):
        yield from zip(structure._fields, structure, strict=True)
    elif _is_nested(structure):
        yield from ((str(position), inner) for position, inner in enumerate(structure))


def _is_nested(structure: Any) -> bool:
    return isinstance(structure, Mapping | list | tuple) and not isinstance(structure, tf.TensorShape)
