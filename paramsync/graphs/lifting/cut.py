"""Cuts a GraphDef to the nodes between the inputs and the outputs of its signatures."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import tensorflow as tf
from tensorflow.core.framework import tensor_shape_pb2

from paramsync.errors import GraphError
from paramsync.graphdef.reading import fresh, full, node_of, prefixed, reach
from paramsync.graphs.nodes import PLACEHOLDERS, become_placeholder, prefix_frame
from paramsync.v1 import graph_pb2


def cut(
    graph_def: Any, signatures: Mapping[str, graph_pb2.Signature], *, ends: Collection[str], unused_inputs: bool
) -> tuple[Any, dict[str, graph_pb2.Signature]]:
    """Copy the nodes that the outputs need. Returns the copy, and the signatures with placeholders for all inputs.

    An input may be any tensor. `ends` names nodes, such as variables, that are copied without their inputs. Nodes that
    only inputs or only ends need are left out. A signature that computes an input of another signature gets its own
    copy of its nodes. Raises GraphError for a placeholder that is needed but is not an input, and, unless
    `unused_inputs`, for an input on which no output depends.
    """
    nodes = {node.name: node for node in graph_def.node}
    taken = set(nodes)
    placeholders = _placeholders(nodes, signatures, taken)
    fed = {tensor: name for tensor, (name, _) in placeholders.items()}
    walks = {name: _walk(nodes, name, signature, fed, ends) for name, signature in signatures.items()}
    if not unused_inputs:
        for name, signature in signatures.items():
            _require_use(name, signature, walks[name].met)
    result = tf.compat.v1.GraphDef(versions=graph_def.versions, library=graph_def.library)
    for name, spec in placeholders.values():
        become_placeholder(result.node.add(name=name), spec)
    shared = {node for walk in walks.values() for node in walk.reached if node in ends or not walk.computes_inputs}
    _copy(graph_def, result, shared, "", fed, ends)
    cut_signatures = {}
    for position, (name, walk) in enumerate(walks.items()):
        prefix = ""
        if walk.computes_inputs:
            prefix = fresh(f"signature_{position}", taken)
            taken.add(prefix)
            prefix += "/"
            _copy(graph_def, result, walk.reached.difference(ends), prefix, walk.fed, ends)
        cut_signatures[name] = _respelled(signatures[name], fed, walk.fed, prefix, ends)
    return result, cut_signatures


def _placeholders(
    nodes: Mapping[str, Any], signatures: Mapping[str, graph_pb2.Signature], taken: set[str]
) -> dict[str, tuple[str, tf.TensorSpec]]:
    """Return the name and spec of a placeholder for each tensor that is an input. Adds new names to `taken`."""
    placeholders: dict[str, tuple[str, tf.TensorSpec]] = {}
    for signature in signatures.values():
        for end in signature.inputs:
            tensor, node = full(end.tensor), node_of(end.tensor)
            shape = tf.TensorShape(tensor_shape_pb2.TensorShapeProto.FromString(end.shape.SerializeToString()))
            if tensor in placeholders:
                name, before = placeholders[tensor]
                shape = before.shape.most_specific_compatible_shape(shape)
            elif node in nodes and nodes[node].op in PLACEHOLDERS:
                name = node
            else:
                name = fresh(f"{node}/input", taken)
                taken.add(name)
            placeholders[tensor] = name, tf.TensorSpec(shape, tf.as_dtype(end.dtype))
    return placeholders


@dataclass(frozen=True, slots=True)
class _Walk:
    """The tensors and nodes that the outputs of one signature need."""

    fed: Mapping[str, str]  # the signature's own inputs, and their placeholders
    met: Collection[str]  # the inputs on which an output depends
    reached: set[str]  # the nodes that the outputs need
    computes_inputs: bool  # whether these nodes compute inputs of another signature


def _walk(
    nodes: Mapping[str, Any],
    name: str,
    signature: graph_pb2.Signature,
    all_fed: Mapping[str, str],
    ends: Collection[str],
) -> _Walk:
    """Walk back from the outputs of a signature to its inputs. Raises GraphError for an unknown or unfed tensor."""
    own = {full(end.tensor) for end in signature.inputs}
    fed = {tensor: node for tensor, node in all_fed.items() if tensor in own}
    known = {*fed.values(), *ends}

    def before(tensor: str) -> Iterable[str]:
        node = node_of(tensor)
        if tensor in fed or node in known:
            return ()
        if node not in nodes:
            raise GraphError(f"the graph has no tensor {tensor.removeprefix('^')!r}, which {name!r} needs")
        if nodes[node].op in PLACEHOLDERS:
            inputs = ", ".join(sorted(end.name for end in signature.inputs)) or "there are none"
            raise GraphError(
                f"placeholder {node!r} is needed for the outputs but not among the inputs of {name!r}: {inputs}"
            )
        return map(full, nodes[node].input)

    tensors = reach((full(end.tensor) for end in signature.outputs), before).keys()
    needed = tensors - fed.keys()
    reached = set(map(node_of, needed)).difference(fed.values())
    return _Walk(fed, tensors & fed.keys(), reached, not needed.isdisjoint(all_fed))


def _require_use(name: str, signature: graph_pb2.Signature, met: Collection[str]) -> None:
    unused = [end for end in signature.inputs if full(end.tensor) not in met]
    if unused:
        raise GraphError(
            f"no output of {name!r} depends on its input {unused[0].name!r}, tensor {unused[0].tensor!r}:"
            f" expected inputs that lead to {', '.join(end.name for end in signature.outputs)}"
        )


def _copy(
    source: Any, target: Any, names: Collection[str], prefix: str, fed: Mapping[str, str], ends: Collection[str]
) -> None:
    """Copy the nodes with these names to the target. Their copies have a prefix."""
    for node in source.node:
        if node.name in names:
            copy = target.node.add()
            copy.CopyFrom(node)
            copy.name = prefix + node.name
            copy.attr.pop("_class", None)  # remove the colocation, whose node may be missing
            prefix_frame(copy, prefix)
            inputs = () if node.name in ends else node.input
            copy.input[:] = [_spelled(tensor, fed, prefix, ends) for tensor in inputs]


def _spelled(tensor: str, fed: Mapping[str, str], prefix: str, ends: Collection[str]) -> str:
    if full(tensor) in fed:
        return fed[full(tensor)]
    node = node_of(tensor)
    return tensor if node in ends or node in fed.values() else prefixed(tensor, prefix)


def _respelled(
    signature: graph_pb2.Signature,
    all_fed: Mapping[str, str],
    fed: Mapping[str, str],
    prefix: str,
    ends: Collection[str],
) -> graph_pb2.Signature:
    copy = graph_pb2.Signature()
    copy.CopyFrom(signature)
    for end in copy.inputs:
        _rename(end, f"{all_fed[full(end.tensor)]}:0")
    for end in copy.outputs:
        _rename(end, full(_spelled(full(end.tensor), fed, prefix, ends)))
        if end.dtype:  # a missing dtype is inferred when the graph is built
            # the value of a reference has the base dtype
            end.dtype = tf.as_dtype(end.dtype).base_dtype.as_datatype_enum
    return copy


def _rename(end: graph_pb2.Endpoint, tensor: str) -> None:
    before = full(end.tensor)
    end.tensor = tensor
    if before != tensor:
        end.source = before
