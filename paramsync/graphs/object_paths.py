"""Where a checkpoint of TensorFlow 2 keeps a variable that its objects lead to another way than its key says.

TensorFlow calls a variable by the shortest way to it, and a model that gets an optimizer has shorter ones.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from google.protobuf.message import DecodeError
from tensorflow.core.protobuf import trackable_object_graph_pb2

from paramsync.bundle import Bundle
from paramsync.keys import OBJECT_GRAPH


def keys_of(bundle: Bundle, names: Iterable[str]) -> dict[str, str]:
    """The key of each of these names, themselves keys, that is found: itself, or that of the object it leads to."""
    names = list(names)
    found = {name: name for name in names if name in bundle.entries}
    if len(found) == len(names) or OBJECT_GRAPH not in bundle.entries:
        return found
    bundle.verify([OBJECT_GRAPH])
    try:
        content = bundle.array(OBJECT_GRAPH).item()
        nodes = trackable_object_graph_pb2.TrackableObjectGraph.FromString(content).nodes
    except (DecodeError, ValueError, TypeError):
        return found
    children: dict[int, Mapping[str, int]] = {}
    keys = {name: _key(nodes, children, name) for name in names if name not in found}
    return found | {name: key for name, key in keys.items() if key in bundle.entries}


def _key(nodes: Any, children: dict[int, Mapping[str, int]], name: str) -> str:
    """The key of what the path in `name` leads to from the root, or "". `children` are those of nodes seen so far."""
    path, _, attribute = name.partition("/.ATTRIBUTES/")
    at = 0
    for step in path.split("/"):
        if not 0 <= at < len(nodes):
            return ""
        if at not in children:
            children[at] = {one.local_name: one.node_id for one in nodes[at].children}
        local = re.sub(r"\.(.)", lambda escaped: "/" if escaped[1] == "S" else escaped[1], step)
        if local not in children[at]:
            return ""
        at = children[at][local]
    held = nodes[at].attributes if 0 <= at < len(nodes) else ()
    return next((one.checkpoint_key for one in held if one.name == attribute), "")
