"""What leads from the inputs of a graph's signatures to their outputs, and nothing else."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import tensorflow as tf
from tensorflow.core.framework import tensor_shape_pb2

from paramsync.errors import GraphError
from paramsync.graphdef.reading import fresh, full, node_of
from paramsync.v1 import bundle_pb2, graph_pb2

_PLACEHOLDERS = frozenset({"Placeholder", "PlaceholderV2"})


def cut(
    graph_def: Any, signatures: Mapping[str, graph_pb2.Signature], *, ends: Collection[str], unused_inputs: bool
) -> tuple[Any, dict[str, graph_pb2.Signature]]:
    """A copy of what the outputs need, and its signatures, whose inputs are now all placeholders.

    An input may be any tensor; what it was made from is left out. `ends` are nodes that stand for what is known without
    an input; nothing before them is of interest. Where a signature computes a tensor that another one takes as input,
    it gets nodes of its own. Raises GraphError, which names it, where a placeholder is needed but not an input, and
    where no output depends on an input, unless `unused_inputs` allows it.
    """
    nodes = {node.name: node for node in graph_def.node}
    fed = _Fed(nodes, signatures)
    walks = {name: _Walk(nodes, name, one, fed.nodes, ends) for name, one in signatures.items()}
    result = tf.compat.v1.GraphDef(versions=graph_def.versions, library=graph_def.library)
    for name, walk in walks.items():
        if not unused_inputs:
            _require_use(name, signatures[name], walk.met)
    fed.add_placeholders(result)
    shared = {one for walk in walks.values() for one in walk.reached if one in ends or not walk.computes_inputs}
    _copy(graph_def, result, shared, "", fed.nodes, ends)
    cut_signatures = {}
    for at, (name, walk) in enumerate(walks.items()):
        prefix = f"{fed.fresh(f'signature_{at}')}/" if walk.computes_inputs else ""
        if prefix:
            _copy(graph_def, result, walk.reached.difference(ends), prefix, walk.fed, ends)
        cut_signatures[name] = _respelled(signatures[name], fed.nodes, walk.fed, prefix, ends)
    return result, cut_signatures


class _Fed:
    """The tensors that some signature takes as input, and the placeholders that stand for them."""

    def __init__(self, nodes: Mapping[str, Any], signatures: Mapping[str, graph_pb2.Signature]) -> None:
        self._taken = set(nodes)
        self.nodes: dict[str, str] = {}  # by tensor
        self._specs: dict[str, tuple[int, tf.TensorShape]] = {}
        for signature in signatures.values():
            for one in signature.inputs:
                tensor, shape = full(one.tensor), _shape(one.shape)
                if tensor in self.nodes:
                    shape = self._specs[tensor][1].most_specific_compatible_shape(shape)
                else:
                    node = node_of(tensor)
                    plain = node in nodes and nodes[node].op in _PLACEHOLDERS
                    self.nodes[tensor] = node if plain else self.fresh(f"{node}/input")
                self._specs[tensor] = (one.dtype, shape)

    def fresh(self, name: str) -> str:
        """This name, or one like it that no node has."""
        found = fresh(name, self._taken)
        self._taken.add(found)
        return found

    def add_placeholders(self, graph_def: Any) -> None:
        for tensor, node in self.nodes.items():
            dtype, shape = self._specs[tensor]
            _add_placeholder(graph_def, node, tf.TensorSpec(shape, tf.as_dtype(dtype)))


def _add_placeholder(graph_def: Any, name: str, spec: tf.TensorSpec) -> None:
    node = graph_def.node.add(name=name, op="Placeholder")
    node.attr["dtype"].type = spec.dtype.as_datatype_enum
    node.attr["shape"].shape.CopyFrom(spec.shape.as_proto())


class _Walk:
    """What one signature needs, found by walking back from its outputs."""

    def __init__(
        self,
        nodes: Mapping[str, Any],
        name: str,
        signature: graph_pb2.Signature,
        fed: Mapping[str, str],
        ends: Collection[str],
    ) -> None:
        own = {full(one.tensor) for one in signature.inputs}
        self.fed = {tensor: node for tensor, node in fed.items() if tensor in own}
        self.met: set[str] = set()  # inputs that something depends on
        self.reached: set[str] = set()
        self.computes_inputs = False  # of another signature
        fed_nodes = frozenset(self.fed.values())
        waiting = [full(one.tensor) for one in signature.outputs]
        while waiting:
            tensor = waiting.pop()
            if tensor in self.fed:
                self.met.add(tensor)
                continue
            self.computes_inputs |= tensor in fed
            node = node_of(tensor)
            if node in self.reached or node in fed_nodes:
                continue
            self.reached.add(node)
            if node in ends:
                continue
            if node not in nodes:
                raise GraphError(f"the graph has no tensor {tensor.removeprefix('^')!r}, which {name!r} needs")
            if nodes[node].op in _PLACEHOLDERS:
                inputs = ", ".join(sorted(one.name for one in signature.inputs)) or "there are none"
                raise GraphError(
                    f"placeholder {node!r} is needed for the outputs but not among the inputs of {name!r}: {inputs}"
                )
            waiting += [full(one) for one in nodes[node].input]


def _require_use(name: str, signature: graph_pb2.Signature, met: Collection[str]) -> None:
    unused = [one for one in signature.inputs if full(one.tensor) not in met]
    if unused:
        raise GraphError(
            f"no output of {name!r} depends on its input {unused[0].name!r}, tensor {unused[0].tensor!r}:"
            f" expected inputs that lead to {', '.join(one.name for one in signature.outputs)}"
        )


def _copy(
    source: Any, target: Any, names: Collection[str], prefix: str, fed: Mapping[str, str], ends: Collection[str]
) -> None:
    """Add the nodes of these names, which become `prefix` + name."""
    for node in source.node:
        if node.name in names:
            copy = target.node.add()
            copy.CopyFrom(node)
            copy.name = prefix + node.name
            copy.attr.pop("_class", None)  # beside which node it was to be placed: one that may not be there
            if prefix and "frame_name" in copy.attr:  # two loops of one name would run as one
                copy.attr["frame_name"].s = prefix.encode() + copy.attr["frame_name"].s
            if node.name in ends:
                del copy.input[:]
            for position, tensor in enumerate(copy.input):
                copy.input[position] = _spelled(tensor, fed, prefix, ends)


def _spelled(tensor: str, fed: Mapping[str, str], prefix: str, ends: Collection[str]) -> str:
    if full(tensor) in fed:
        return fed[full(tensor)]
    node = node_of(tensor)
    if not prefix or node in ends or node in fed.values():
        return tensor
    return f"^{prefix}{tensor[1:]}" if tensor.startswith("^") else prefix + tensor


def _respelled(
    signature: graph_pb2.Signature,
    all_fed: Mapping[str, str],
    fed: Mapping[str, str],
    prefix: str,
    ends: Collection[str],
) -> graph_pb2.Signature:
    copy = graph_pb2.Signature()
    copy.CopyFrom(signature)
    for one in copy.inputs:
        _rename(one, f"{all_fed[full(one.tensor)]}:0")
    for one in copy.outputs:
        _rename(one, full(_spelled(full(one.tensor), fed, prefix, ends)))
        if one.dtype:  # which is known only once the graph is built
            one.dtype = tf.as_dtype(one.dtype).base_dtype.as_datatype_enum  # a reference to a variable gives its value
    return copy


def _rename(endpoint: graph_pb2.Endpoint, tensor: str) -> None:
    before = full(endpoint.tensor)
    endpoint.tensor = tensor
    if before != tensor:
        endpoint.source = before


def _shape(shape: bundle_pb2.TensorShape) -> tf.TensorShape:
    return tf.TensorShape(tensor_shape_pb2.TensorShapeProto.FromString(shape.SerializeToString()))
