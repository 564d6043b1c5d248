"""Walks the objects under a root: finds variables with their checkpoint keys, the object graph, and other values."""

from __future__ import annotations

from collections.abc import Collection, Container, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import keras
import numpy as np
import tensorflow as tf
from tensorflow.core.protobuf import trackable_object_graph_pb2

_VALUE = "VARIABLE_VALUE"
KERAS = frozenset(vars(keras.layers.Layer(name="any")))
"""The attributes of every Keras layer."""
_CONTAINERS = (list, tuple, dict)
_TRACKED = tf.Module.__base__  # the base of modules, checkpoints, and results of tf.saved_model.load
_OWNERS = (keras.layers.Layer, keras.Variable, tf.Variable, _TRACKED, *_CONTAINERS)

Place: TypeAlias = tuple[int, str]
"""The `id` of an object, and the name of one of its attributes."""

_LARGEST = 1 << 20  # bytes of the largest array that is compared by value; a larger array is compared by identity
_NUMBERS = (bool, int, float, complex, str, bytes, np.generic)
_MUTABLE = (tf.lookup.experimental.MutableHashTable, tf.lookup.experimental.DenseHashTable)
# values that are compared by identity
_WHOLE = (tf.saved_model.experimental.TrackableResource, tf.RaggedTensor, tf.SparseTensor)
_NOTHING = object()


@dataclass
class _Tracked:
    """An object, its path from the root, and the numbers of its children by local name."""

    item: Any
    path: str
    children: dict[str, int] = field(default_factory=dict)

    @property
    def key(self) -> str:
        return f"{self.path}/.ATTRIBUTES/{_VALUE}"

    @property
    def variable(self) -> tf.Variable | None:
        value = self.item.value if isinstance(self.item, keras.Variable) else self.item
        return value if isinstance(value, tf.Variable) else None


def objects(root: Any) -> list[Any]:
    """Return `root` and all objects under `root`, including members of lists and dicts of Keras layers."""
    return [tracked.item for tracked in _walk(root)]


def variable_keys(root: Any) -> dict[str, tf.Variable]:
    """Return every variable under `root`, by its key in a checkpoint of tf.train.Checkpoint(root)."""
    return {tracked.key: tracked.variable for tracked in _walk(root) if tracked.variable is not None}


def variable_names(root: Any) -> dict[str, str]:
    """Return the name that Keras or TensorFlow gives to each variable under `root`, by the keys of `variable_keys`."""
    variables = [tracked for tracked in _walk(root) if tracked.variable is not None]
    return {tracked.key: getattr(tracked.item, "path", tracked.item.name).removesuffix(":0") for tracked in variables}


def parts(root: Any) -> tuple[Any, ...]:
    """Return the variables and layers under `root`, without optimizers. The tuple differs if the structure has changed.

    Takes microseconds a variable, because it needs no names.
    """
    members: dict[int, Any] = {}
    waiting = [root]
    while waiting:
        item = waiting.pop()
        if isinstance(item, dict):
            waiting.extend(item.values())
        elif isinstance(item, list | tuple):
            waiting.extend(item)
        elif id(item) not in members and isinstance(item, _OWNERS) and not isinstance(item, keras.optimizers.Optimizer):
            members[id(item)] = item
            if isinstance(item, keras.layers.Layer):
                variables, layers = item.variables, _layers(item)
                members.update(zip(map(id, layers), layers, strict=True))
                members.update(zip(map(id, variables), variables, strict=True))
            elif isinstance(item, _TRACKED) and not isinstance(item, keras.Variable | tf.Variable):
                waiting.extend(vars(item).values())
    return tuple(members.values())


def _layers(model: keras.layers.Layer) -> list[Any]:
    """Return the layers of a model, and of the models in it."""
    layers = list(getattr(model, "layers", ()))
    for layer in layers:  # more layers are added during the loop
        layers.extend(getattr(layer, "layers", ()))
    return layers


def object_graph(root: Any, keys: Collection[str]) -> bytes:
    """Return the object graph with which tf.train.Checkpoint(root) reads a checkpoint that has exactly these keys."""
    graph = trackable_object_graph_pb2.TrackableObjectGraph()
    for tracked in _walk(root):
        node = graph.nodes.add()
        for name, child in tracked.children.items():
            node.children.add(node_id=child, local_name=name)
        variable = tracked.variable
        if variable is not None and tracked.key in keys:
            name = variable.name.removesuffix(":0")
            node.attributes.add(name=_VALUE, full_name=name, checkpoint_key=tracked.key)
    return bytes(graph.SerializeToString(deterministic=True))


def _walk(root: Any) -> list[_Tracked]:
    """Find all objects under `root`, breadth first.

    TensorFlow does not see objects in lists and dicts of Keras layers. These objects come last, under the keys that
    TensorFlow would give them.
    """
    view = tf.train.TrackableView(root)
    every = [_Tracked(root, "")]
    numbers = {id(root): 0}
    followed = 0

    def add(parent: _Tracked, named: Mapping[str, Any]) -> None:
        for name, child in named.items():
            if id(child) not in numbers:
                numbers[id(child)] = len(every)
                step = name.replace(".", "..").replace("/", ".S")
                every.append(_Tracked(child, f"{parent.path}/{step}".lstrip("/")))
            parent.children[name] = numbers[id(child)]

    def follow() -> None:
        nonlocal followed
        while followed < len(every):
            item = every[followed].item
            add(every[followed], _contents(item) if isinstance(item, _CONTAINERS) else view.children(item))
            followed += 1

    follow()
    for is_keras in (False, True):  # Keras' own lists come second, because their names are less telling
        for tracked in every:  # more layers are added during the loop
            layer = tracked.item if isinstance(tracked.item, keras.layers.Layer) else None
            for name, value in list(vars(layer).items()) if layer is not None else ():
                if (name in KERAS) == is_keras and isinstance(value, _CONTAINERS) and _has_more(value, numbers):
                    add(tracked, {name: value})
                    follow()
    return every


def _has_more(container: Any, known: Container[int]) -> bool:
    return any(
        _has_more(item, known) if isinstance(item, _CONTAINERS) else id(item) not in known
        for item in _contents(container).values()
    )


def _contents(container: Any) -> dict[str, Any]:
    """Return the members of a list or dict that may have variables."""
    named = container.items() if isinstance(container, dict) else enumerate(container)
    return {str(name): item for name, item in named if isinstance(item, _OWNERS)}


class KeptValues:
    """Values that layers keep in attributes other than variables, such as the results of `adapt`.

    A graph has these values as constants, so a change of a value needs a new graph. The values are tensors, arrays,
    lookup tables and lists of numbers in attributes of the objects under a root. An instance covers only objects that
    exist when it is made; `parts` finds new layers.
    """

    def __init__(self, root: Any) -> None:
        self._holders = [item for item in objects(root) if _may_hold(item)]
        self._sizes = [len(vars(holder)) for holder in self._holders]
        # by place: the attributes of the object, the value, and a copy to compare
        self._kept: dict[Place, tuple[dict[str, Any], Any, Any]] = {}
        for holder in self._holders:
            for name, held in _attributes(holder):
                value = _value(held)
                if held is None or value is not _NOTHING:
                    self._kept[id(holder), name] = vars(holder), held, value

    def changed(self, unless: Collection[Place] = ()) -> set[Place]:
        """Return the places whose values have changed, except the places in `unless`.

        Takes about a microsecond for each layer, and exports mutable tables.
        """
        places = set()
        for place, (attributes, held, value) in self._kept.items():
            now = attributes.get(place[1])
            # a list, table or small array can be written to; a large array counts as fixed
            is_fixed = held is None or value is held
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
        """List the names of these attributes, for a message."""
        holders = {id(holder): getattr(holder, "name", None) or type(holder).__name__ for holder in self._holders}
        return ", ".join(sorted(f"{holders[holder]}.{name}" for holder, name in places))


def _may_hold(item: Any) -> bool:
    valued = keras.optimizers.Optimizer | keras.Variable | tf.Variable
    return isinstance(item, keras.layers.Layer | _TRACKED) and not isinstance(item, valued)


def _attributes(holder: Any) -> Iterator[tuple[str, Any]]:
    known = KERAS if isinstance(holder, keras.layers.Layer) else ()
    for name, value in vars(holder).items():
        if name not in known and not name.startswith("_self_"):  # not TensorFlow's own attributes
            yield name, value


def _value(held: Any) -> Any:
    """Return a value to compare later: a copy of a value that can be written to; _NOTHING for an unwatched value."""
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
"""Types whose values are not watched for changes. `_value` adds each type that it cannot compare."""


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
