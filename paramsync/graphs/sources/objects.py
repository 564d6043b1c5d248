"""The object graph TensorFlow 2 writes into a checkpoint: the key of each variable, and how objects hang together."""

from __future__ import annotations

from collections.abc import Collection, Container, Mapping
from typing import Any

import keras
import tensorflow as tf
from tensorflow.core.protobuf import trackable_object_graph_pb2

_VALUE = "VARIABLE_VALUE"
_KERAS = frozenset(vars(keras.layers.Layer(name="any")))
_CONTAINERS = (list, tuple, dict)
_TRACKED = tf.Module.__base__  # modules, checkpoints, and what tf.saved_model.load gives: all that has attributes
_OWNERS = (keras.layers.Layer, keras.Variable, tf.Variable, _TRACKED, *_CONTAINERS)


def objects(root: Any) -> list[Any]:
    """Everything under `root` that TensorFlow tracks, and `root` itself."""
    return _walk(root)[0]


def variable_keys(root: Any) -> dict[str, tf.Variable]:
    """Every variable under `root` by the key that tf.train.Checkpoint(root) would save it under."""
    found, paths, _ = _walk(root)
    variables = ((path, _variable(one)) for one, path in zip(found, paths, strict=True))
    return {_key(path): variable for path, variable in variables if variable is not None}


def variable_names(root: Any) -> dict[str, str]:
    """What Keras or TensorFlow calls every variable under `root`, by the same keys."""
    found, paths, _ = _walk(root)
    return {_key(path): _name(one) for one, path in zip(found, paths, strict=True) if _variable(one) is not None}


def parts(root: Any) -> tuple[Any, ...]:
    """The variables and layers under `root`: another one, or another order, is another structure.

    Found without TensorFlow's or Keras' names, in microseconds a variable. What only trains them is left out.
    """
    found: dict[int, Any] = {}
    waiting = [root]
    while waiting:
        one = waiting.pop()
        if isinstance(one, dict):
            waiting.extend(one.values())
        elif isinstance(one, list | tuple):
            waiting.extend(one)
        elif id(one) not in found and isinstance(one, _OWNERS) and not isinstance(one, keras.optimizers.Optimizer):
            found[id(one)] = one
            if isinstance(one, keras.layers.Layer):
                variables, layers = one.variables, _layers(one)
                found.update(zip(map(id, layers), layers, strict=True))
                found.update(zip(map(id, variables), variables, strict=True))
            elif isinstance(one, _TRACKED) and not isinstance(one, keras.Variable | tf.Variable):
                waiting.extend(vars(one).values())
    return tuple(found.values())


def _layers(model: keras.layers.Layer) -> list[Any]:
    """The layers of a model, and of the models among them."""
    found = list(getattr(model, "layers", ()))
    for one in found:  # grows while we walk
        found.extend(getattr(one, "layers", ()))
    return found


def object_graph(root: Any, keys: Collection[str]) -> bytes:
    """What makes tf.train.Checkpoint(root) read a checkpoint with exactly the values `keys`, under OBJECT_GRAPH."""
    found, paths, children = _walk(root)
    graph = trackable_object_graph_pb2.TrackableObjectGraph()
    for one, path, names in zip(found, paths, children, strict=True):
        node = graph.nodes.add()
        for name, child in names.items():
            node.children.add(node_id=child, local_name=name)
        variable = _variable(one)
        if variable is not None and _key(path) in keys:
            node.attributes.add(name=_VALUE, full_name=variable.name.removesuffix(":0"), checkpoint_key=_key(path))
    return bytes(graph.SerializeToString(deterministic=True))


def _walk(root: Any) -> tuple[list[Any], list[str], list[dict[str, int]]]:
    """All objects under `root` breadth first, the path of each, and the children of each by local name.

    TensorFlow does not see what Keras layers keep in lists and dicts; that comes after all it sees, and is called what
    it would be if it did.
    """
    view = tf.train.TrackableView(root)
    found: list[Any] = [root]
    paths = [""]
    children: list[dict[str, int]] = []
    ids = {id(root): 0}

    def add(position: int, named: Mapping[str, Any]) -> None:
        for name, child in named.items():
            if id(child) not in ids:
                ids[id(child)] = len(found)
                found.append(child)
                paths.append(f"{paths[position]}/{_escape(name)}".lstrip("/"))
            children[position][name] = ids[id(child)]

    def follow() -> None:
        while len(children) < len(found):
            one = found[len(children)]
            children.append({})
            add(len(children) - 1, _contents(one) if isinstance(one, _CONTAINERS) else view.children(one))

    follow()
    for is_keras in (False, True):  # the lists that Keras itself keeps are for what has no better name
        for position, one in enumerate(found):  # grows while we walk
            for name, value in list(vars(one).items()) if isinstance(one, keras.layers.Layer) else ():
                if (name in _KERAS) == is_keras and isinstance(value, _CONTAINERS) and _has_more(value, ids):
                    add(position, {name: value})
                    follow()
    return found, paths, children


def _has_more(container: Any, known: Container[int]) -> bool:
    return any(
        _has_more(one, known) if isinstance(one, _CONTAINERS) else id(one) not in known
        for one in _contents(container).values()
    )


def _contents(container: Any) -> dict[str, Any]:
    """What is in a list or dict that has variables, or lists and dicts that may have some."""
    named = container.items() if isinstance(container, dict) else enumerate(container)
    return {str(name): one for name, one in named if isinstance(one, _OWNERS)}


def _variable(one: Any) -> tf.Variable | None:
    if isinstance(one, keras.Variable):
        one = one.value
    return one if isinstance(one, tf.Variable) else None


def _name(variable: Any) -> str:
    name: str = variable.path if isinstance(variable, keras.Variable) else variable.name
    return name.removesuffix(":0")


def _key(path: str) -> str:
    return f"{path}/.ATTRIBUTES/{_VALUE}"


def _escape(name: str) -> str:
    return name.replace(".", "..").replace("/", ".S")
