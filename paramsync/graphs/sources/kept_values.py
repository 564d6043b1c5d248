"""What layers and modules keep beside their variables, and a graph may have for constants: what `adapt` learns, say."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any, TypeAlias

import keras
import numpy as np
import tensorflow as tf

from paramsync.graphs.sources.objects import KERAS, holders

Place: TypeAlias = tuple[int, str]
"""The identity of a holder, and the name of its attribute."""

_LARGEST = 1 << 20  # bytes of an array that are looked at, for it can be written to; of a larger one, which it is
_NUMBERS = (bool, int, float, complex, str, bytes, np.generic)
_MUTABLE = (tf.lookup.experimental.MutableHashTable, tf.lookup.experimental.DenseHashTable)
_WHOLE = (tf.saved_model.experimental.TrackableResource, tf.RaggedTensor, tf.SparseTensor)  # others where they changed
_NOTHING = object()


class KeptValues:
    """The tensors, arrays, lookup tables and lists of numbers that are attributes of what is under one object.

    Made once: whoever else has any comes with other variables or layers.
    """

    def __init__(self, root: Any) -> None:
        self._holders = holders(root)
        self._sizes = [len(vars(holder)) for holder in self._holders]
        self._kept: dict[Place, tuple[dict[str, Any], Any, Any]] = {}  # where, the attribute, what it was to compare
        for holder in self._holders:
            for name, held in _attributes(holder):
                value = _value(held)
                if held is None or value is not _NOTHING:
                    self._kept[id(holder), name] = vars(holder), held, value

    def changed(self, unless: Collection[Place] = ()) -> set[Place]:
        """Where something else is kept now; in a microsecond a layer, and as long as exporting tables that change."""
        places = set()
        for place, (attributes, held, value) in self._kept.items():
            now = attributes.get(place[1])
            is_fixed = held is None or value is held  # unlike a list, an array and a table, which can be written to
            if (now is held and is_fixed) or place in unless:
                continue
            if not _same(_value(now), value):
                places.add(place)
        for at, holder in enumerate(self._holders):
            if len(vars(holder)) != self._sizes[at]:
                others = {(id(holder), name): held for name, held in _attributes(holder)}
                new = {place for place in others.keys() - self._kept.keys() if _value(others[place]) is not _NOTHING}
                places |= new.difference(unless)
        return places

    def shown(self, places: Collection[Place]) -> str:
        """These attributes as a person calls them."""
        holders = {id(holder): getattr(holder, "name", None) or type(holder).__name__ for holder in self._holders}
        return ", ".join(sorted(f"{holders[holder]}.{name}" for holder, name in places))


def _attributes(holder: Any) -> Iterator[tuple[str, Any]]:
    known = KERAS if isinstance(holder, keras.layers.Layer) else ()
    for name, value in vars(holder).items():
        if name not in known and not name.startswith("_self_"):  # what TensorFlow notes of it
            yield name, value


def _value(held: Any) -> Any:
    """What can be compared later, of what may be written to until then; _NOTHING where a graph has none of it."""
    kind = type(held)
    if kind in _UNKEPT:
        return _NOTHING
    if isinstance(held, tf.Tensor):
        return held if hasattr(held, "numpy") else _NOTHING
    if isinstance(held, np.ndarray):
        if held.nbytes > _LARGEST or held.dtype.hasobject:
            return held
        return held.dtype.str, held.shape, held.tobytes()
    if isinstance(held, _MUTABLE) and tf.executing_eagerly():
        return held, *held.export()
    if isinstance(held, _WHOLE):
        return held
    if isinstance(held, dict | list | tuple):
        items = list(held.values()) if isinstance(held, Mapping) else held
        if items and isinstance(items[0], _NUMBERS):
            return tuple(items)
        values = tuple(map(_value, items))
        return _NOTHING if all(value is _NOTHING for value in values) else values
    _UNKEPT.add(kind)
    return _NOTHING


_UNKEPT: set[type] = {type(None), bool, int, float, str}
"""Types that are none of these, as far as they were met."""


def _same(one: Any, other: Any) -> bool:
    if one is other:
        return True
    if type(one) is not type(other):
        return False
    if isinstance(one, tuple):
        return len(one) == len(other) and all(map(_same, one, other))
    if isinstance(one, tf.Tensor):
        return (one.dtype, one.shape) == (other.dtype, other.shape) and _bytes(one) == _bytes(other)
    return isinstance(one, (*_NUMBERS, tf.DType)) and bool(one == other)


def _bytes(tensor: tf.Tensor) -> Any:
    array = np.asarray(tensor)
    return array.tolist() if array.dtype.hasobject else array.tobytes()
