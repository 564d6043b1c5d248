"""Outputs of one Graph into inputs of another: a new Graph with the parameters of both under two prefixes."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import Any

import tensorflow as tf

from paramsync.errors import GraphError
from paramsync.graphdef.reading import node_of, rename_calls
from paramsync.graphs.graph import Graph
from paramsync.graphs.lifting.cut import cut
from paramsync.graphs.specs import DEFAULT_SIGNATURE, TensorSpec
from paramsync.host.files import shown
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
    """What `second` computes when its inputs are outputs of `first`: `inputs` maps the former to the latter.

    Parameters are those of both, each behind its graph's prefix and a slash. All inputs of `first` and the other ones
    of `second` are inputs; outputs are those of `second` and the `outputs` of `first` that are named. A name that both
    graphs give to an input, or to an output, stands behind its prefix too. `signatures` says which of each is meant.

    Raises GraphError, which lists what there is, for names that are unknown and tensors that do not fit, and
    UnknownSignatureError.
    """
    _check_arguments(first, second, inputs, outputs)
    _check_pair(signatures, "signatures", "names of signatures")
    _check_pair(prefixes, "prefixes", "different words, such as encoder and head")
    if len(set(prefixes)) != 2 or not all(re.fullmatch(r"[A-Za-z0-9.][\w.-]*", one) for one in prefixes):
        raise GraphError(f"prefixes: expected two different words, such as encoder and head, found {list(prefixes)}")
    halves = [_Half(*one) for one in zip((first, second), prefixes, signatures, strict=True)]
    _check(halves[0], halves[1], inputs, outputs)
    joined = tf.compat.v1.GraphDef(versions=halves[0].graph_def.versions)
    for half in halves:
        joined.versions.producer = max(joined.versions.producer, half.graph_def.versions.producer)
        joined.node.extend(half.graph_def.node)
        joined.library.function.extend(half.graph_def.library.function)
    sources = {halves[1].inputs[name].tensor: halves[0].outputs[source].tensor for name, source in inputs.items()}
    _join(joined, sources)
    taken = [one for name, one in halves[1].inputs.items() if name not in inputs]
    given = [halves[0].outputs[name] for name in outputs]
    ends = list(halves[1].outputs.values())
    for one in ends:
        one.tensor = sources.get(one.tensor, one.tensor)
    signature = graph_pb2.Signature(
        inputs=_named(halves, list(halves[0].inputs.values()), taken), outputs=_named(halves, given, ends)
    )
    parameters = sorted((one for half in halves for one in half.message.parameters), key=_name)
    tables = [one for half in halves for one in half.message.tables]
    known = {one.node for one in parameters} | {one.node for one in tables}
    graph_def, cut_signatures = cut(joined, {DEFAULT_SIGNATURE: signature}, ends=known, unused_inputs=True)
    reached = {node.name for node in graph_def.node}
    return Graph(
        graph_pb2.Graph(
            graph_def=graph_def.SerializeToString(deterministic=True),
            parameters=[one for one in parameters if one.node in reached],
            signatures=cut_signatures,
            tables=[one for one in tables if one.node in reached],
        )
    )


def _check_arguments(first: Any, second: Any, inputs: Any, outputs: Any) -> None:
    for what, one in (("first", first), ("second", second)):
        if not isinstance(one, Graph):
            raise GraphError(
                f"{what}: expected a Graph, as capture(...).graph or Graph.load(...) gives it, found {shown(one)}"
            )
    if not isinstance(inputs, Mapping) or not all(isinstance(one, str) for pair in inputs.items() for one in pair):
        raise GraphError(f"inputs: expected a dict of names of outputs by names of inputs, found {shown(inputs)}")
    if (
        isinstance(outputs, str)
        or not isinstance(outputs, Collection)
        or not all(isinstance(one, str) for one in outputs)
    ):
        raise GraphError(f"outputs: expected a list of names, found {shown(outputs)}")


def _check_pair(given: Any, what: str, of: str) -> None:
    if not isinstance(given, tuple | list) or len(given) != 2 or not all(isinstance(one, str) for one in given):
        raise GraphError(f"{what}: expected two {of}, found {shown(given)}")


class _Half:
    """One of the graphs, everything in it named behind its prefix except its inputs and outputs."""

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
        for one in (*meant.inputs, *meant.outputs):
            one.tensor = f"{prefix}/{one.tensor}"
        self.inputs = {one.name: one for one in meant.inputs}
        self.outputs = {one.name: one for one in meant.outputs}


def _rename(graph_def: Any, prefix: str) -> None:
    functions = {
        function.signature.name: f"{prefix}_{function.signature.name}" for function in graph_def.library.function
    }
    for node in graph_def.node:
        node.name = f"{prefix}/{node.name}"
        if "frame_name" in node.attr:  # two loops of one name would run as one
            node.attr["frame_name"].s = f"{prefix}/".encode() + node.attr["frame_name"].s
        for at, tensor in enumerate(node.input):
            node.input[at] = f"^{prefix}/{tensor[1:]}" if tensor.startswith("^") else f"{prefix}/{tensor}"
    for function in graph_def.library.function:
        function.signature.name = functions[function.signature.name]
    for nodes in (graph_def.node, *(function.node_def for function in graph_def.library.function)):
        rename_calls(nodes, functions)
        for node in nodes:
            node.attr.pop("_gradient_op_type", None)


def _join(graph_def: Any, sources: Mapping[str, str]) -> None:
    """Have every node that reads one of these tensors, which are placeholders', read another one."""
    data = {tensor.removesuffix(":0"): source for tensor, source in sources.items()}
    for node in graph_def.node:
        for at, tensor in enumerate(node.input):
            if tensor.startswith("^"):
                source = data.get(tensor[1:])
                node.input[at] = tensor if source is None else f"^{node_of(source)}"
            else:
                node.input[at] = data.get(tensor.removesuffix(":0"), tensor)


def _check(first: _Half, second: _Half, inputs: Mapping[str, str], outputs: Collection[str]) -> None:
    for what, names, there in (
        (f"inputs of {second.prefix}", inputs, second.signature.inputs),
        (f"outputs of {first.prefix}", [*inputs.values(), *outputs], first.signature.outputs),
    ):
        unknown = [name for name in names if name not in there]
        if unknown:
            raise GraphError(f"{what}: expected some of {', '.join(sorted(there))}, found {', '.join(unknown)}")
    if not inputs:
        listed = [f"{', '.join(second.signature.inputs)}", f"{', '.join(first.signature.outputs)}"]
        raise GraphError(f"nothing is connected: expected inputs ({listed[0]}) by outputs ({listed[1]}), found none")
    for name, source in inputs.items():
        wanted, found = second.signature.inputs[name], first.signature.outputs[source]
        if not _fit(wanted, found):
            raise GraphError(
                f"{second.prefix} cannot take {source!r} of {first.prefix} for {name!r}:"
                f" expected {wanted}, found {found}"
            )


def _fit(wanted: TensorSpec, found: TensorSpec) -> bool:
    shapes = tf.TensorShape(wanted.shape), tf.TensorShape(found.shape)
    return bool(wanted.dtype == found.dtype and shapes[0].is_compatible_with(shapes[1]))


def _name(parameter: graph_pb2.Parameter) -> str:
    return parameter.name


def _named(halves: list[_Half], *ends: list[Any]) -> list[graph_pb2.Endpoint]:
    """The endpoints of both halves by names that differ."""
    names = [{one.name for one in of_half} for of_half in ends]
    for half, of_half in zip(halves, ends, strict=True):
        for one in of_half:
            if one.name in names[0] & names[1]:
                one.name = f"{half.prefix}/{one.name}"
    return [one for of_half in ends for one in of_half]
