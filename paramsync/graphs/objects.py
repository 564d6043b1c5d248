"""The object graph TensorFlow 2 writes into a checkpoint: the key of each variable, and how objects hang together."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import keras
import tensorflow as tf
from tensorflow.core.protobuf import trackable_object_graph_pb2

_VALUE = "VARIABLE_VALUE"


def variable_keys(root: Any) -> dict[str, tf.Variable]:
    """Every variable under `root` by the key that tf.train.Checkpoint(root) would save it under."""
    objects, paths, _ = _walk(root)
    variables = ((path, _variable(one)) for one, path in zip(objects, paths, strict=True))
    return {_key(path): variable for path, variable in variables if variable is not None}


def object_graph(root: Any, keys: Collection[str]) -> bytes:
    """What makes tf.train.Checkpoint(root) read a checkpoint with exactly the values `keys`, under OBJECT_GRAPH."""
    objects, paths, children = _walk(root)
    graph = trackable_object_graph_pb2.TrackableObjectGraph()
    for one, path, names in zip(objects, paths, children, strict=True):
        node = graph.nodes.add()
        for name, child in names.items():
            node.children.add(node_id=child, local_name=name)
        variable = _variable(one)
        if variable is not None and _key(path) in keys:
            node.attributes.add(name=_VALUE, full_name=variable.name.removesuffix(":0"), checkpoint_key=_key(path))
    return bytes(graph.SerializeToString(deterministic=True))


def _walk(root: Any) -> tuple[list[Any], list[str], list[dict[str, int]]]:
    """All objects under `root` breadth first, the path of each, and the children of each by local name."""
    view = tf.train.TrackableView(root)
    objects, paths, children = [root], [""], []
    ids = {id(root): 0}
    for position, one in enumerate(objects):  # grows while we walk
        names: dict[str, int] = {}
        for name, child in view.children(one).items():
            if id(child) not in ids:
                ids[id(child)] = len(objects)
                objects.append(child)
                paths.append(f"{paths[position]}/{_escape(name)}".lstrip("/"))
            names[name] = ids[id(child)]
        children.append(names)
    return objects, paths, children


def _variable(one: Any) -> tf.Variable | None:
    if isinstance(one, keras.Variable):
        one = one.value
    return one if isinstance(one, tf.Variable) else None


def _key(path: str) -> str:
    return f"{path}/.ATTRIBUTES/{_VALUE}"


def _escape(name: str) -> str:
    return name.replace(".", "..").replace("/", ".S")
