"""Gradients that somebody wrote (tf.custom_gradient): which nodes have one, and a name for that of each copy.

TensorFlow knows such a gradient by a name on the node, which is of a Python function that reads the tensors of the
place where it was called. For a copy that is the wrong place, so its node gets another name.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from itertools import count
from typing import Any

import tensorflow as tf

from paramsync.errors import GraphError

_ATTRIBUTE = "_gradient_op_type"
_OP = "IdentityN"  # what tf.custom_gradient puts the name on
_REFUSED = "ParamsyncRefused"
_numbers = count()


@tf.RegisterGradient(_REFUSED)
def refused(operation: tf.Operation, *_: Any) -> Any:
    """The gradient of a node that has none which would be right. Raises GraphError."""
    raise GraphError(
        f"{operation.name!r} has a gradient that somebody wrote (tf.custom_gradient, as swish and recompute_grad have),"
        " which only its original knows, and which is copied only outside of loops, branches and functions: train the"
        " original, or write this part without; of an import, train with the operations' own gradients, by removing"
        f" {_ATTRIBUTE!r} from the nodes of the MetaGraphDef"
    )


def refuse(nodes: Iterable[Any]) -> None:
    """Have nodes with a custom gradient refuse to be differentiated."""
    for node in nodes:
        if _is_custom(node):
            node.attr[_ATTRIBUTE].s = _REFUSED.encode()


def rename(nodes: Iterable[Any], operations: Collection[str]) -> dict[str, str]:
    """Give the custom gradients of these operations names of their own, by operation; other nodes refuse."""
    names = {}
    for node in filter(_is_custom, nodes):
        node.attr[_ATTRIBUTE].s = _REFUSED.encode()
        if node.name in operations:
            names[node.name] = f"ParamsyncCopied{next(_numbers)}"
            node.attr[_ATTRIBUTE].s = names[node.name].encode()
    return names


def _is_custom(node: Any) -> bool:
    return node.op == _OP and _ATTRIBUTE in node.attr
