"""One signature of a graph as a TensorFlow function that takes parameters, inputs and tables as arguments."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import tensorflow as tf
from tensorflow.core.protobuf import config_pb2, rewriter_config_pb2

from paramsync import dtypes
from paramsync.errors import GraphError, ParameterError
from paramsync.graphdef.reading import node_of
from paramsync.graphs.nodes import leading_to, with_functions
from paramsync.graphs.safety import guard
from paramsync.v1 import graph_pb2

# Turn off three passes of TensorFlow's graph optimiser. They merge, reorder or precompute operations, which changes the
# last bits of results, and not in the same way for every caller. Small graphs also run faster without the passes.
_AS_WRITTEN = config_pb2.ConfigProto(
    graph_options=config_pb2.GraphOptions(
        rewrite_options=rewriter_config_pb2.RewriterConfig(
            remapping=rewriter_config_pb2.RewriterConfig.OFF,
            arithmetic_optimization=rewriter_config_pb2.RewriterConfig.OFF,
            constant_folding=rewriter_config_pb2.RewriterConfig.OFF,
        )
    )
).SerializeToString()


class Call:
    """One signature, ready to be called with parameters of the caller's choice."""

    def __init__(
        self,
        graph_def: Any,
        signature: graph_pb2.Signature,
        message: graph_pb2.Graph,
        tables: Sequence[tf.Tensor],
    ) -> None:
        self._inputs = [end.name for end in signature.inputs]
        self._outputs = [end.name for end in signature.outputs]
        self._expected = len(message.parameters)
        self._tables = tables
        placeholders = _arguments(signature, message)
        graph_def = _own(graph_def, signature, placeholders)
        kinds = {node.name: node.attr for node in graph_def.node}

        def build(*arguments: tf.Tensor) -> list[tf.Tensor]:
            return list(
                tf.graph_util.import_graph_def(
                    graph_def,
                    input_map=dict(zip((f"{node}:0" for node in placeholders), arguments, strict=True)),
                    return_elements=[end.tensor for end in signature.outputs],
                    name="",
                )
            )

        specs = [
            tf.TensorSpec(tf.TensorShape(kinds[node]["shape"].shape), kinds[node]["dtype"].type)
            for node in placeholders
        ]
        # unlike tf.function, wrap_function registers the functions of the graph's library
        self._function = tf.compat.v1.wrap_function(build, specs)
        self._types = [tensor.dtype for tensor in self._function.outputs]
        for end, dtype in zip(signature.outputs, self._types, strict=True):
            if dtype != tf.as_dtype(end.dtype):
                raise ValueError(f"output {end.name!r}: expected {dtypes.name(end.dtype)}, found {dtype.name}")
        stateful = any(operation.op_def.is_stateful for operation in self._function.graph.get_operations())
        self._call = tf.raw_ops.StatefulPartitionedCall if stateful else tf.raw_ops.PartitionedCall

    def __call__(self, parameters: Sequence[tf.Tensor], inputs: Mapping[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        """Compute all outputs. Raises KeyError for wrong inputs, ParameterError for a wrong number of parameters."""
        arguments = [*(inputs[name] for name in self._inputs), *parameters, *self._tables]
        if len(inputs) != len(self._inputs):
            raise KeyError
        if len(parameters) != self._expected:
            raise ParameterError("a call", expected=f"{self._expected} of them", found=len(parameters))
        results = self._call(args=arguments, Tout=self._types, f=self._function, config_proto=_AS_WRITTEN)
        return dict(zip(self._outputs, results, strict=True))


def _own(graph_def: Any, signature: graph_pb2.Signature, placeholders: Collection[str]) -> Any:
    """Return the part of the graph that one signature and its arguments need.

    Nodes of other signatures would cost time, and inputs of these nodes would be missing.
    """
    nodes = {node.name: node for node in graph_def.node}
    needed = leading_to(nodes, [*(end.tensor for end in signature.outputs), *placeholders])
    own = with_functions(graph_def, needed)
    guard(own)
    waits = {f"^{node}" for node in placeholders}
    for node in own.node:
        if not waits.isdisjoint(node.input):  # an argument is always ready, so nothing has to wait for it
            node.input[:] = [tensor for tensor in node.input if tensor not in waits]
    return own


def _arguments(signature: graph_pb2.Signature, message: graph_pb2.Graph) -> list[str]:
    """Return the names of the placeholders of a signature's inputs, then of the parameters, then of the tables."""
    inputs = (node_of(end.tensor) for end in signature.inputs)
    return [*inputs, *(value.node for value in message.parameters), *(table.node for table in message.tables)]


def check_placeholders(graph_def: Any, message: graph_pb2.Graph) -> None:
    """Raise GraphError unless each argument has its own placeholder, which takes the argument's dtype and shape.

    Kernels rely on shapes that TensorFlow inferred from placeholders.
    """
    placeholders = {node.name: node.attr for node in graph_def.node if node.op == "Placeholder"}
    handle = graph_pb2.Parameter(dtype=tf.resource.as_datatype_enum)
    for table in message.tables:
        _check_placeholder(placeholders, table.node, handle)
    for signature in message.signatures.values():
        arguments = _arguments(signature, message)
        if len(set(arguments)) != len(arguments):
            raise GraphError("the graph cannot be built: expected a placeholder for each argument, found shared ones")
        callers: list[graph_pb2.Parameter | graph_pb2.Endpoint] = [*signature.inputs, *message.parameters]
        for node, argument in zip(arguments, callers, strict=False):  # zip stops before the tables, which come last
            if dtypes.to_numpy(argument.dtype) is None:
                kind = dtypes.name(argument.dtype)
                raise GraphError(f"the graph cannot be built: nobody can give {argument.name!r}, a {kind}")
            _check_placeholder(placeholders, node, argument)


def _check_placeholder(
    placeholders: Mapping[str, Any], node: str, argument: graph_pb2.Parameter | graph_pb2.Endpoint
) -> None:
    placeholder = placeholders.get(node)
    if placeholder is None or placeholder["dtype"].type != argument.dtype:
        expected, found = (
            dtypes.name(argument.dtype),
            "none" if placeholder is None else dtypes.name(placeholder["dtype"].type),
        )
        raise GraphError(f"the graph cannot be built: expected a placeholder {node!r} of {expected}, found {found}")
    taken, given = placeholder["shape"].shape, argument.shape
    if "shape" not in placeholder or taken.unknown_rank:
        return
    fits = not given.unknown_rank and len(given.dim) == len(taken.dim)
    if not fits or any(0 <= own.size != dim.size for own, dim in zip(taken.dim, given.dim, strict=True)):
        raise GraphError(
            f"the graph cannot be built: the placeholder {node!r} does not take all shapes it may be given"
        )
