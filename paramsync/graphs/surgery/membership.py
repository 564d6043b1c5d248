"""Collections of a graph: what was copied joins those that its original is in."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any

import tensorflow as tf

from paramsync.graphs.surgery.naming import operation_of

_KEYS = tf.compat.v1.GraphKeys
# Hold one thing a graph: a second one would hide the first.
_SINGLE = frozenset(
    {
        _KEYS.GLOBAL_STEP,
        _KEYS.INIT_OP,
        _KEYS.LOCAL_INIT_OP,
        _KEYS.READY_OP,
        _KEYS.READY_FOR_LOCAL_INIT_OP,
        _KEYS.SUMMARY_OP,
    }
)


def join(
    source: tf.Graph,
    target: tf.Graph,
    *,
    variables: Mapping[str, tf.Variable],
    operations: Collection[str],
    name_in_copy: Callable[[str], str],
) -> None:
    """Add to the collections of `target` the copies of `variables`, by original, and of `operations` of `source`."""
    for key in source.get_all_collection_keys():
        if key in _SINGLE and target.get_collection(key):
            continue
        for one in source.get_collection(key):
            operation = operation_of(one)
            if operation is None:
                continue
            copy: Any = variables.get(operation.name) if isinstance(one, tf.Variable) else None
            if copy is None and operation.name in operations:
                name = one.name if isinstance(one, tf.Tensor) else operation.name
                copy = target.as_graph_element(name_in_copy(name))
            if copy is not None:
                target.add_to_collection(key, copy)
