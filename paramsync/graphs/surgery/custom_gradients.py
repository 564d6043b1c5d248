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
    """Raise GraphError: there is no gradient of this one that would be right."""
    raise GraphError(
        f"{operation.name!r} has a gradient that somebody wrote (tf.custom_gradient, as swish and recompute_grad have),"
        " which only its original knows, and which is copied only outside of loops, branches and functions: train the"
        " original, or write this part without; of an import, train with the operations' own gradients, by removing"
        f" {_ATTRIBUTE!r} from the nodes of the MetaGraphDef"
    )


def refuse(nodes: Iterable[Any]) -> None:
    """Let the nodes that have a gradient that somebody wrote refuse to be differentiated."""
    for node in nodes:
        if _is_custom(node):
            node.attr[_ATTRIBUTE].s = _REFUSED.encode()


def rename(nodes: Iterable[Any], operations: Collection[str], scope: str) -> dict[str, str]:
    """New names for the gradients of the copies, in `scope`, of these operations, by operation; others are refused."""
    found = {}
    for node in filter(_is_custom, nodes):
        name = node.name.removeprefix(f"{scope}/")
        node.attr[_ATTRIBUTE].s = _REFUSED.encode()
        if name in operations:
            found[name] = f"ParamsyncCopied{next(_numbers)}"
            node.attr[_ATTRIBUTE].s = found[name].encode()
    return found


def _is_custom(node: Any) -> bool:
    return node.op == _OP and _ATTRIBUTE in node.attr
