"""Tensors of a live v1 graph: what lies between them, its code long forgotten."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import tensorflow as tf

from paramsync.errors import GraphError
from paramsync.graphs.draft import Draft
from paramsync.graphs.sources.structures import components
from paramsync.graphs.sources.traces import endpoint
from paramsync.graphs.sources.v1_graphs import V1Graph, variable_defs
from paramsync.graphs.specs import DEFAULT_SIGNATURE
from paramsync.v1 import graph_pb2


def draft_of_tensors(inputs: Any, outputs: Any, *, saver: Any = None) -> Draft:
    """What the graph of these tensors computes between them: one tensor, a sequence, or a mapping by what callers say.

    Parameters are called what `saver`, a tf.compat.v1.train.Saver of the graph, calls them; without one, their own
    names, which is what a Saver that is told nothing calls them too. A tensor in a sequence goes by its own name; a
    sparse or ragged one is several. The graph is left as it is. Raises GraphError.
    """
    given, results = dict(_named(inputs, "inputs")), dict(_named(outputs, "outputs"))
    if not results:
        raise GraphError("outputs: expected at least one tensor of a v1 graph, found none")
    graphs = {id(one.graph): one.graph for one in (*given.values(), *results.values())}
    if len(graphs) != 1:
        raise GraphError(f"inputs and outputs: expected tensors of one graph, found some of {len(graphs)}")
    graph = next(iter(graphs.values()))
    signature = graph_pb2.Signature(inputs=_endpoints(given), outputs=_endpoints(results))
    return _v1_graph(graph, saver).draft({DEFAULT_SIGNATURE: signature}, unused_inputs=False)


def _v1_graph(graph: tf.Graph, saver: Any) -> V1Graph:
    keys = tf.compat.v1.GraphKeys
    try:
        graph_def = graph.as_graph_def()
    except ValueError as error:
        raise GraphError(f"the graph is too large, make variables of its constants: {error}") from error
    variables = [one for key in (keys.GLOBAL_VARIABLES, keys.LOCAL_VARIABLES) for one in graph.get_collection(key)]
    with graph.as_default():  # outside a graph, variables do not say what they are
        definitions = [one.to_proto().SerializeToString() for one in variables if hasattr(one, "to_proto")]
    return V1Graph(
        "the graph",
        graph_def,
        saver=None if saver is None else saver.as_saver_def().save_tensor_name,
        variables=variable_defs(definitions, "the graph"),
        fillers=[one.name for one in graph.get_collection(keys.TABLE_INITIALIZERS)],
    )


def _named(tensors: Any, what: str) -> Iterator[tuple[str, tf.Tensor]]:
    """Every tensor and what callers say. Raises GraphError."""
    seen = set()
    if isinstance(tensors, Mapping):
        pairs = list(tensors.items())
    else:
        several = tensors if isinstance(tensors, list | tuple) else [tensors]
        pairs = [(None, one) for one in several]
    for name, value in pairs:
        try:
            parts = tf.nest.flatten(value, expand_composites=True)
            own = parts[0].op.name if len(parts) > 1 else parts[0].name.removesuffix(":0")
            names = components(name or own, value) if len(parts) > 1 else [name or own]
        except (AttributeError, IndexError, TypeError, ValueError) as error:
            raise GraphError(f"{what}: expected tensors of a v1 graph, found {value!r}") from error
        for one, part in zip(names, parts, strict=True):
            if not isinstance(part, tf.Tensor):
                raise GraphError(f"{what}: expected tensors of a v1 graph, found {value!r}")
            if one in seen:
                raise GraphError(f"{what}: expected each name once, found {one!r} twice")
            seen.add(one)
            yield one, part


def _endpoints(tensors: Mapping[str, tf.Tensor]) -> list[graph_pb2.Endpoint]:
    return [
        endpoint(name, one.name, one.dtype.base_dtype.as_datatype_enum, one.shape.as_proto())
        for name, one in tensors.items()
    ]
