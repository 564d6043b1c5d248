"""The object graph that TensorFlow 2 writes into a checkpoint: the objects under a root, and the keys of variables."""

from __future__ import annotations

from collections.abc import Collection, Container, Mapping
from dataclasses import dataclass, field
from typing import Any

import keras
import tensorflow as tf
from tensorflow.core.protobuf import trackable_object_graph_pb2

_VALUE = "VARIABLE_VALUE"
KERAS = frozenset(vars(keras.layers.Layer(name="any")))
"""The attributes of every Keras layer."""
_CONTAINERS = (list, tuple, dict)
_TRACKED = tf.Module.__base__  # the base of modules, checkpoints, and results of tf.saved_model.load
_OWNERS = (keras.layers.Layer, keras.Variable, tf.Variable, _TRACKED, *_CONTAINERS)


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
    """Everything under `root` that TensorFlow tracks, and `root` itself."""
    return [tracked.item for tracked in _walk(root)]


def variable_keys(root: Any) -> dict[str, tf.Variable]:
    """Every variable under `root`, by its key in a checkpoint of tf.train.Checkpoint(root)."""
    return {tracked.key: tracked.variable for tracked in _walk(root) if tracked.variable is not None}


def variable_names(root: Any) -> dict[str, str]:
    """The name that Keras or TensorFlow gives every variable under `root`, by the same keys."""
    variables = [tracked for tracked in _walk(root) if tracked.variable is not None]
    return {tracked.key: getattr(tracked.item, "path", tracked.item.name).removesuffix(":0") for tracked in variables}


def parts(root: Any) -> tuple[Any, ...]:
    """The variables and layers under `root`, without optimizers. Another tuple is another structure.

    Takes microseconds a variable, since it needs no names.
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


def holders(root: Any) -> list[Any]:
    """The layers and modules under `root`, and itself."""
    found: dict[int, Any] = {}
    waiting = [root]
    kinds: dict[type, Any] = {}
    while waiting:
        item = waiting.pop()
        kind = kinds.get(type(item))
        if kind is None:  # once a type: there are many items and few types
            kind = kinds[type(item)] = _CONTAINERS if isinstance(item, _CONTAINERS) else _may_hold(item)
        if kind is _CONTAINERS:
            waiting.extend(item.values() if isinstance(item, dict) else item)
        elif kind and id(item) not in found:
            found[id(item)] = item
            waiting.extend(vars(item).values())
    return list(found.values())


def _may_hold(item: Any) -> bool:
    unheld = keras.optimizers.Optimizer | keras.Variable | tf.Variable
    return isinstance(item, keras.layers.Layer | _TRACKED) and not isinstance(item, unheld)


def _layers(model: keras.layers.Layer) -> list[Any]:
    """The layers of a model, and of models within it."""
    layers = list(getattr(model, "layers", ()))
    for layer in layers:  # grows while we walk
        layers.extend(getattr(layer, "layers", ()))
    return layers


def object_graph(root: Any, keys: Collection[str]) -> bytes:
    """The object graph with which tf.train.Checkpoint(root) reads a checkpoint that has exactly these keys."""
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
    """All objects under `root`, breadth first.

    TensorFlow does not see objects in lists and dicts of Keras layers. These come last, under the keys that they would
    have.
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
    for is_keras in (False, True):  # Keras' own lists come second: their names are worse
        for tracked in every:  # grows while we walk
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
    """The members of a list or dict that have variables, or may contain some."""
    named = container.items() if isinstance(container, dict) else enumerate(container)
    return {str(name): item for name, item in named if isinstance(item, _OWNERS)}
