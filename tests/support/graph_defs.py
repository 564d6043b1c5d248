"""Graph definitions that nobody built: of ops by their names."""

from __future__ import annotations

from typing import Any

import tensorflow as tf


def of(*ops: str) -> Any:
    graph_def = tf.compat.v1.GraphDef()
    for at, op in enumerate(ops):
        graph_def.node.add(name=f"n{at}", op=op)
    return graph_def
