"""Values that layers and modules keep beside variables and a graph has as constants, such as what `adapt` learns."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any, TypeAlias

import keras
import numpy as np
import tensorflow as tf

from paramsync.graphs.sources.objects import KERAS, holders

Place: TypeAlias = tuple[int, str]
"""The identity of a holder, and the name of its attribute."""

_LARGEST = 1 << 20  # bytes of the largest array that is compared by value; a larger array is compared by identity
_NUMBERS = (bool, int, float, complex, str, bytes, np.generic)
_MUTABLE = (tf.lookup.experimental.MutableHashTable, tf.lookup.experimental.DenseHashTable)
_WHOLE = (tf.saved_model.experimental.TrackableResource, tf.RaggedTensor, tf.SparseTensor)  # compared by identity
_NOTHING = object()


class KeptValues:
    """The tensors, arrays, lookup tables and lists of numbers that are attributes of the objects under a root.

    Made once for a set of objects: a new layer with such values has variables, or is another layer, too.
    """

    def __init__(self, root: Any) -> None:
        self._holders = holders(root)
        self._sizes = [len(vars(holder)) for holder in self._holders]
        self._kept: dict[
            Place, tuple[dict[str, Any], Any, Any]
        ] = {}  # the holder's attributes, the value, and a copy to compare
        for holder in self._holders:
            for name, held in _attributes(holder):
                value = _value(held)
                if held is None or value is not _NOTHING:
                    self._kept[id(holder), name] = vars(holder), held, value

    def changed(self, unless: Collection[Place] = ()) -> set[Place]:
        """The places of changed values, without `unless`. Takes a microsecond a layer, and exports mutable tables."""
        places = set()
        for place, (attributes, held, value) in self._kept.items():
            now = attributes.get(place[1])
            is_fixed = held is None or value is held  # a list, an array or a table can be written to
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
        """These attributes, for a message."""
        holders = {id(holder): getattr(holder, "name", None) or type(holder).__name__ for holder in self._holders}
        return ", ".join(sorted(f"{holders[holder]}.{name}" for holder, name in places))


def _attributes(holder: Any) -> Iterator[tuple[str, Any]]:
    known = KERAS if isinstance(holder, keras.layers.Layer) else ()
    for name, value in vars(holder).items():
        if name not in known and not name.startswith("_self_"):  # TensorFlow's notes
            yield name, value


def _value(held: Any) -> Any:
    """A value to compare later, copied if it can be written to; _NOTHING for a value that no graph has."""
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
"""Types met so far of which no graph has values."""


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
