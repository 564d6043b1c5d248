"""What a v1 Saver calls the variables of a graph in its checkpoints, and which of them are parts of a larger one."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import tensorflow as tf

from paramsync.errors import GraphError
from paramsync.graphdef.reading import node_of
from paramsync.graphs.draft import Parameter, Part

VARIABLES = frozenset({"Variable", "VariableV2", "VarHandleOp"})

_PASSES = frozenset({"Identity", "ReadVariableOp", "RefIdentity"})  # between a variable and what saves it
_Saved = tuple[str, Part | None]


def parameters(
    nodes: Mapping[str, Any], wanted: Iterable[Any], *, saver: str | None, variables: Iterable[Any] = ()
) -> list[Parameter]:
    """The variables among the nodes `wanted`, under the keys of their checkpoint.

    `saver` is the tensor that makes a Saver save ("": any Saver of the graph; None: no Saver). What it does not save is
    called what its VariableDef in `variables` says, which knows parts, or else as its node. Raises GraphError.
    """
    saved = {one.variable_name.removesuffix(":0"): _defined(one) for one in variables}
    saved |= {} if saver is None else _saved(nodes, saver)
    found = [_parameter(node, saved.get(node.name, (node.name, None))) for node in wanted if node.op in VARIABLES]
    whole: dict[str, Parameter] = {}
    for one in found:
        other = whole.setdefault(one.name, one)
        if other is not one and (one.part is None or other.part is None or one.part.whole != other.part.whole):
            raise GraphError(
                f"variables {other.node!r} and {one.node!r} are both saved as {one.name!r}, and are not parts of one"
            )
    return found


def saved_by(nodes: Mapping[str, Any], saver: str) -> list[Parameter]:
    """All variables that a Saver saves, under the keys of its checkpoints; `saver` is the tensor that makes it save.

    Raises GraphError.
    """
    return parameters(nodes, [nodes[name] for name in _saved(nodes, saver)], saver=saver)


def _parameter(node: Any, saved: _Saved) -> Parameter:
    name, part = saved
    try:
        spec = tf.TensorSpec(tf.TensorShape(node.attr["shape"].shape), tf.as_dtype(node.attr["dtype"].type))
    except (TypeError, ValueError) as error:
        raise GraphError(f"variable {node.name!r} has no shape or dtype that could be: {error}") from error
    if part is not None and spec.shape.rank not in (None, len(part.whole)):
        raise GraphError(f"variable {node.name!r} of shape {spec.shape} is saved as a part of {list(part.whole)}")
    return Parameter(name=name, node=node.name, spec=spec, part=part)


def _defined(variable: Any) -> _Saved:
    if not variable.HasField("save_slice_info_def"):
        return variable.variable_name.removesuffix(":0"), None
    info = variable.save_slice_info_def
    return info.full_name, Part(whole=tuple(info.full_shape), offsets=tuple(info.var_offset))


def _saved(nodes: Mapping[str, Any], saver: str) -> dict[str, _Saved]:
    """By node: what SaveV2 writes of each variable, where several do the first one's word counts."""
    found: dict[str, _Saved] = {}
    for node in _saving(nodes, saver):
        _, names, places, *tensors = node.input
        listed = zip(tensors, _words(nodes, names, len(tensors)), _words(nodes, places, len(tensors)), strict=True)
        for tensor, name, place in listed:
            variable = _variable(nodes, tensor)
            if variable is not None:
                found.setdefault(variable, (name, _part(place) if place else None))
    return found


def _saving(nodes: Mapping[str, Any], saver: str) -> list[Any]:
    if not saver:
        return [node for node in nodes.values() if node.op == "SaveV2"]
    waiting, seen = [node_of(saver)], set()
    while waiting:
        name = waiting.pop()
        if name in nodes and name not in seen:
            seen.add(name)
            if nodes[name].op != "SaveV2":  # what is saved is not computed by saving
                waiting += [node_of(one) for one in nodes[name].input]
    return [node for node in nodes.values() if node.name in seen and node.op == "SaveV2"]


def _variable(nodes: Mapping[str, Any], tensor: str) -> str | None:
    seen = set()
    while (name := node_of(tensor)) in nodes and name not in seen:
        seen.add(name)
        node = nodes[name]
        if node.op in VARIABLES:
            return name
        if node.op not in _PASSES or not node.input:
            return None
        tensor = node.input[0]
    return None


def _words(nodes: Mapping[str, Any], tensor: str, count: int) -> Sequence[str]:
    """The strings of a constant; the last one stands for all that are left out, as in any TensorProto."""
    node = nodes.get(node_of(tensor))
    words = list(node.attr["value"].tensor.string_val) if node is not None and node.op == "Const" else []
    if not 0 < len(words) <= count:
        raise GraphError(f"{tensor!r} should list {count} names or places of variables for a Saver, and does not")
    return [one.decode(errors="backslashreplace") for one in words + words[-1:] * (count - len(words))]


def _part(place: str) -> Part:
    """From the words of SaveV2: the sizes of the whole, then where the part begins and its size, "6 2 0,3:0,2"."""
    *sizes, extents = place.split(" ")
    try:
        starts = [0 if one == "-" else int(one.split(",")[0]) for one in extents.split(":")]
        part = Part(whole=tuple(map(int, sizes)), offsets=tuple(starts))
    except ValueError as error:
        raise GraphError(f"a Saver says of a part of a variable that it lies at {place!r}") from error
    if len(part.whole) != len(part.offsets):
        raise GraphError(f"a Saver says that a part begins at {list(part.offsets)} of {list(part.whole)}")
    return part
