"""join(): feeds outputs of one Graph to inputs of another. The result has the parameters of both, under prefixes."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import Any

import tensorflow as tf

from paramsync.errors import GraphError
from paramsync.graphdef.reading import every_node, node_of, prefixed
from paramsync.graphs.digest import name_by_content
from paramsync.graphs.graph import Graph
from paramsync.graphs.lifting.cut import cut
from paramsync.graphs.nodes import prefix_frame
from paramsync.graphs.specs import DEFAULT_SIGNATURE
from paramsync.v1 import graph_pb2


def join(
    first: Graph,
    second: Graph,
    inputs: Mapping[str, str],
    *,
    prefixes: tuple[str, str] = ("first", "second"),
    signatures: tuple[str, str] = (DEFAULT_SIGNATURE, DEFAULT_SIGNATURE),
    outputs: Collection[str] = (),
) -> Graph:
    """Return the Graph that feeds outputs of `first` to inputs of `second`.

    Args:
        first: The Graph that is computed first.
        second: The Graph that reads outputs of `first`.
        inputs: Maps an input of `second` to the output of `first` that it reads. The other inputs of `second` and all
            inputs of `first` are inputs of the joint Graph.
        prefixes: A prefix for each Graph. A prefix and a slash are put before the name of each parameter, and before
            the name of an input or output that both Graphs have.
        signatures: The signature of each Graph.
        outputs: Outputs of `first` that the joint Graph returns, in addition to all outputs of `second`.

    Raises GraphError for an unknown name (the text lists the known names) and for tensors that do not fit,
    UnknownSignatureError for an unknown signature.
    """
    if len(set(prefixes)) != 2 or not all(re.fullmatch(r"[A-Za-z0-9.][\w.-]*", prefix) for prefix in prefixes):
        raise GraphError(f"prefixes: expected two different words, such as encoder and head, found {list(prefixes)}")
    halves = [_Half(*half) for half in zip((first, second), prefixes, signatures, strict=True)]
    _check(halves[0], halves[1], inputs, outputs)
    joined = tf.compat.v1.GraphDef(versions=halves[0].graph_def.versions)
    functions: dict[str, Any] = {}
    for half in halves:
        joined.versions.producer = max(joined.versions.producer, half.graph_def.versions.producer)
        joined.node.extend(half.graph_def.node)
        functions |= {function.signature.name: function for function in half.graph_def.library.function}
    joined.library.function.extend(functions.values())
    sources = {halves[1].inputs[name].tensor: halves[0].outputs[source].tensor for name, source in inputs.items()}
    _connect(joined, sources)
    ends = list(halves[1].outputs.values())
    for end in ends:
        end.tensor = sources.get(end.tensor, end.tensor)
    taken = [end for name, end in halves[1].inputs.items() if name not in inputs]
    signature = graph_pb2.Signature(
        inputs=_disambiguate(halves, list(halves[0].inputs.values()), taken),
        outputs=_disambiguate(halves, [halves[0].outputs[name] for name in outputs], ends),
    )
    parameters = sorted((spec for half in halves for spec in half.message.parameters), key=lambda spec: str(spec.name))
    tables = [table for half in halves for table in half.message.tables]
    constant = {value.node for value in parameters} | {table.node for table in tables}
    graph_def, cut_signatures = cut(joined, {DEFAULT_SIGNATURE: signature}, ends=constant, unused_inputs=True)
    reached = {node.name for node in graph_def.node}
    return Graph(
        graph_pb2.Graph(
            graph_def=graph_def.SerializeToString(deterministic=True),
            parameters=[spec for spec in parameters if spec.node in reached],
            signatures=cut_signatures,
            tables=[table for table in tables if table.node in reached],
        )
    )


class _Half:
    """One of the two graphs, with a prefix before the names of its nodes and parameters."""

    def __init__(self, graph: Graph, prefix: str, signature: str) -> None:
        if signature not in graph.signatures:
            raise graph.unknown(signature)
        self.prefix = prefix
        self.signature = graph.signatures[signature]
        self.message = graph.message()
        self.graph_def = tf.compat.v1.GraphDef.FromString(self.message.graph_def)
        _rename(self.graph_def, prefix)
        for parameter in self.message.parameters:
            parameter.name = f"{prefix}/{parameter.name}"
            parameter.node = f"{prefix}/{parameter.node}"
        for table in self.message.tables:
            table.node = f"{prefix}/{table.node}"
        meant = self.message.signatures[signature]
        for end in (*meant.inputs, *meant.outputs):
            end.tensor = f"{prefix}/{end.tensor}"
        self.inputs = {end.name: end for end in meant.inputs}
        self.outputs = {end.name: end for end in meant.outputs}


def _rename(graph_def: Any, prefix: str) -> None:
    for node in every_node(graph_def):
        node.attr.pop("_gradient_op_type", None)
    name_by_content(graph_def)  # the content has changed, and TensorFlow rejects a changed function under a known name
    for node in graph_def.node:
        node.name = f"{prefix}/{node.name}"
        prefix_frame(node, f"{prefix}/")
        node.input[:] = [prefixed(tensor, f"{prefix}/") for tensor in node.input]


def _connect(graph_def: Any, sources: Mapping[str, str]) -> None:
    """Make each node that reads a placeholder in `sources` read the tensor that `sources` has for the placeholder."""
    spelled: dict[str, str] = {}
    for tensor, source in sources.items():
        spelled |= {tensor: source, node_of(tensor): source, f"^{node_of(tensor)}": f"^{node_of(source)}"}
    for node in graph_def.node:
        node.input[:] = [spelled.get(tensor, tensor) for tensor in node.input]


def _check(first: _Half, second: _Half, inputs: Mapping[str, str], outputs: Collection[str]) -> None:
    for what, names, known in (
        (f"inputs of {second.prefix}", inputs, second.signature.inputs),
        (f"outputs of {first.prefix}", [*inputs.values(), *outputs], first.signature.outputs),
    ):
        unknown = [name for name in names if name not in known]
        if unknown:
            raise GraphError(f"{what}: expected some of {', '.join(sorted(known))}, found {', '.join(unknown)}")
    if not inputs:
        takers, givers = ", ".join(second.signature.inputs), ", ".join(first.signature.outputs)
        raise GraphError(f"nothing is connected: expected inputs ({takers}) by outputs ({givers}), found none")
    for name, source in inputs.items():
        wanted, found = second.signature.inputs[name], first.signature.outputs[source]
        fits = tf.TensorShape(wanted.shape).is_compatible_with(tf.TensorShape(found.shape))
        if wanted.dtype != found.dtype or not fits:
            raise GraphError(
                f"{second.prefix} cannot take {source!r} of {first.prefix} for {name!r}:"
                f" expected {wanted}, found {found}"
            )


def _disambiguate(halves: list[_Half], *ends: list[Any]) -> list[graph_pb2.Endpoint]:
    """Return the endpoints of both halves. Names that both halves have get a prefix."""
    shared = {end.name for end in ends[0]} & {end.name for end in ends[1]}
    for half, ends_of_half in zip(halves, ends, strict=True):
        for end in ends_of_half:
            if end.name in shared:
                end.name = f"{half.prefix}/{end.name}"
    return [*ends[0], *ends[1]]
