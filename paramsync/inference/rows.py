"""Rows: whether each row of what a signature gives is made of the same row of what it takes, as its ops show.

Numbers cannot show it: `x / max(1, reduce_max(x))` is the same for all batches in which nothing is above 1. So each op
has to be known, and to keep rows apart; where one is not, rows are not.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from paramsync.graphs.graph import Graph
from paramsync.inference.inlining import inlined
from paramsync.inference.row_rules import ALL, FIRST_ONLY, NOTHING, ROW, RULES, Made, Of


def are_apart(graph: Graph, signature: str) -> bool:
    """Whether rows may go in one call with those of others, for all that its ops say. Takes milliseconds."""
    message = graph.message()
    described = message.signatures[signature]
    whole = inlined(tf.compat.v1.GraphDef.FromString(message.graph_def))
    with tf.Graph().as_default() as built:
        tf.graph_util.import_graph_def(whole.graph_def, name="")
    made: dict[str, Made] = {one.tensor: ROW for one in described.inputs}
    for operation in built.get_operations():  # in an order in which all that one reads comes before it
        results = _results(operation, [made.get(tensor.name, ALL) for tensor in operation.inputs])
        for tensor, result in zip(operation.outputs, results, strict=True):
            made.setdefault(tensor.name, result)
    return all(made.get(whole.tensor(one.tensor), ALL) == ROW for one in described.outputs)


def _results(operation: Any, given: Sequence[Made]) -> list[Made]:
    outputs = operation.outputs
    if operation.type in ("Merge", "NextIteration", "Enter"):  # what they read may come after them
        return [ALL] * len(outputs)
    if all(one.of is Of.NOTHING for one in given):
        return [NOTHING] * len(outputs)
    if operation.type == "IdentityN":  # of gradients that are not TensorFlow's own
        return list(given)
    if any(one.of is Of.ALL for one in given):
        return [ALL] * len(outputs)
    rule = RULES.get(operation.type)
    try:
        found = ALL if rule is None else rule(operation, given)
    except (ValueError, TypeError, KeyError, IndexError, AttributeError):  # a rank or value that is not known
        found = ALL
    if operation.type in FIRST_ONLY:
        return [found, *[ALL] * (len(outputs) - 1)]
    return [found] * len(outputs)
