"""Checks put into a graph where TensorFlow makes none of its own and would end the process instead."""

from __future__ import annotations

from typing import Any

import tensorflow as tf


def guard(graph_def: Any) -> None:
    """Have what is gathered in batches fail like any other node where a tensor has fewer dimensions than batches.

    TensorFlow takes the difference for the rank of the result, and aborts where that is negative, while it only builds
    the graph. ExpandDims, which a gather is made to wait for, refuses the same tensors, and costs nothing.
    """
    _guard(graph_def.node, result="")
    for function in graph_def.library.function:
        _guard(function.node_def, result=":output:0")


def _guard(nodes: Any, *, result: str) -> None:
    names = {node.name for node in nodes}
    for node in [one for one in nodes if one.op == "GatherV2" and _batches(one) > 0]:
        batches = _batches(node)
        tensors = [one for one in node.input if not one.startswith("^")][:2]
        for at, (tensor, kind, dimension) in enumerate(
            zip(tensors, ("Tparams", "Tindices"), (batches + 1, batches), strict=False)
        ):
            name = f"{node.name}/guard_{at}"
            while name in names:
                name += "_"
            names |= {name, f"{name}/dimension"}
            # it waits for the tensor, so that it is where the tensor is: in a loop, or behind a condition
            place = f"^{tensor.partition(':')[0]}"
            constant = nodes.add(name=f"{name}/dimension", op="Const", input=[place])
            constant.attr["dtype"].type = tf.int32.as_datatype_enum
            constant.attr["value"].tensor.CopyFrom(tf.make_tensor_proto(dimension, tf.int32))
            check = nodes.add(name=name, op="ExpandDims", input=[tensor, f"{constant.name}{result}"])
            check.attr["T"].CopyFrom(node.attr[kind])
            check.attr["Tdim"].type = tf.int32.as_datatype_enum
            node.input.append(f"^{name}")


def _batches(node: Any) -> int:
    return int(node.attr["batch_dims"].i) if "batch_dims" in node.attr else 0
