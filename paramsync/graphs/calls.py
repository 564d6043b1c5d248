"""One signature of a graph as a TensorFlow function whose arguments all come from the caller."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import tensorflow as tf
from tensorflow.core.protobuf import config_pb2, rewriter_config_pb2

from paramsync import dtypes
from paramsync.errors import GraphError, ParameterError
from paramsync.graphs.lifting.function_names import name_by_content
from paramsync.graphs.lifting.roles import CALLS
from paramsync.graphs.lifting.walks import leading_to, with_functions
from paramsync.graphs.safety.guards import guard
from paramsync.v1 import bundle_pb2, graph_pb2

# Three passes of TensorFlow's graph optimiser merge, reorder or precompute operations, which changes the last bits
# of results, depending on who calls. Without them a graph computes what its operations say, and small ones are faster.
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
        *,
        of_any_shape: bool = False,
    ) -> None:
        """`of_any_shape` is for inputs of other shapes than the signature says, on which nothing relies then."""
        self._inputs = [one.name for one in signature.inputs]
        self._outputs = [one.name for one in signature.outputs]
        self._expected = len(message.parameters)
        self._tables = tables
        placeholders = _arguments(signature, message)
        graph_def = _own(graph_def, signature, placeholders)
        if of_any_shape:
            _forget_shapes(graph_def, {one.tensor.removesuffix(":0") for one in signature.inputs})
        kinds = {node.name: node.attr for node in graph_def.node}

        def build(*arguments: tf.Tensor) -> list[tf.Tensor]:
            return list(
                tf.graph_util.import_graph_def(
                    graph_def,
                    input_map={f"{node}:0": given for node, given in zip(placeholders, arguments, strict=True)},
                    return_elements=[one.tensor for one in signature.outputs],
                    name="",
                )
            )

        specs = [
            tf.TensorSpec(tf.TensorShape(kinds[node]["shape"].shape), kinds[node]["dtype"].type)
            for node in placeholders
        ]
        # wrap_function registers the functions of the graph's library, which a tf.function does not
        self._function = tf.compat.v1.wrap_function(build, specs)
        self._types = [tensor.dtype for tensor in self._function.outputs]
        for one, dtype in zip(signature.outputs, self._types, strict=True):
            if dtype != tf.as_dtype(one.dtype):
                raise ValueError(f"output {one.name!r}: expected {dtypes.name(one.dtype)}, found {dtype.name}")
        stateful = any(operation.op_def.is_stateful for operation in self._function.graph.get_operations())
        self._call = tf.raw_ops.StatefulPartitionedCall if stateful else tf.raw_ops.PartitionedCall

    def __call__(self, parameters: Sequence[tf.Tensor], inputs: Mapping[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        """Raises KeyError where the inputs are others, ParameterError where there are more or fewer parameters."""
        arguments = [*(inputs[name] for name in self._inputs), *parameters, *self._tables]
        if len(inputs) != len(self._inputs):
            raise KeyError
        if len(parameters) != self._expected:
            raise ParameterError("a call", expected=f"{self._expected} of them", found=len(parameters))
        results = self._call(args=arguments, Tout=self._types, f=self._function, config_proto=_AS_WRITTEN)
        return dict(zip(self._outputs, results, strict=True))


def _own(graph_def: Any, signature: graph_pb2.Signature, placeholders: Collection[str]) -> Any:
    """What this signature computes, and its arguments: what others compute would run in vain, or lack its inputs."""
    nodes = {node.name: node for node in graph_def.node}
    needed = leading_to(nodes, [one.tensor for one in signature.outputs])
    names = {node.name for node in needed}.union(placeholders)
    own = with_functions(graph_def, [node for node in graph_def.node if node.name in names])
    guard(own)
    given = {f"^{node}" for node in placeholders}
    for node in own.node:
        if not given.isdisjoint(node.input):  # nobody has to wait for an argument, and its placeholder is never fed
            node.input[:] = [one for one in node.input if one not in given]
    return own


def _forget_shapes(graph_def: Any, inputs: Collection[str]) -> None:
    """Take out what was inferred from the shapes of these placeholders, in functions as well."""
    for node in graph_def.node:
        if node.name in inputs:
            node.attr["shape"].shape.CopyFrom(tf.TensorShape(None).as_proto())
    for nodes in (graph_def.node, *(function.node_def for function in graph_def.library.function)):
        for node in nodes:
            node.attr.pop("_output_shapes", None)
            if "output_shapes" in node.attr and node.op in CALLS:
                del node.attr["output_shapes"].list.shape[:]
    for function in graph_def.library.function:
        for arguments in function.arg_attr.values():
            arguments.attr.pop("_output_shapes", None)
    name_by_content(graph_def)


def _arguments(signature: graph_pb2.Signature, message: graph_pb2.Graph) -> list[str]:
    """The placeholders of a signature's inputs, of the parameters and of the tables."""
    return [
        *(one.tensor.removesuffix(":0") for one in signature.inputs),
        *(one.node for one in message.parameters),
        *(one.node for one in message.tables),
    ]


def check_placeholders(graph_def: Any, message: graph_pb2.Graph) -> None:
    """Raise GraphError where an argument has no placeholder of its own, or one that does not take all it may be.

    Kernels rely on the shapes that were inferred from placeholders.
    """
    placeholders = {node.name: node.attr for node in graph_def.node if node.op == "Placeholder"}
    everywhere = [(one.name, one.node, one.dtype, one.shape) for one in message.parameters]
    for signature in message.signatures.values():
        used = _arguments(signature, message)
        if len(set(used)) != len(used):
            raise GraphError("the graph cannot be built: expected a placeholder for each argument, found shared ones")
        given = [(one.name, one.tensor.removesuffix(":0"), one.dtype, one.shape) for one in signature.inputs]
        for name, node, dtype, shape in everywhere + given:
            if dtypes.to_numpy(dtype) is None:
                raise GraphError(f"the graph cannot be built: nobody can give {name!r}, a {dtypes.name(dtype)}")
            _check_placeholder(placeholders, node, dtype, shape)
    for table in message.tables:
        _check_placeholder(placeholders, table.node, tf.resource.as_datatype_enum, bundle_pb2.TensorShape())


def _check_placeholder(placeholders: Mapping[str, Any], node: str, dtype: int, shape: bundle_pb2.TensorShape) -> None:
    found = placeholders.get(node)
    if found is None or found["dtype"].type != dtype:
        there = "none" if found is None else dtypes.name(found["dtype"].type)
        raise GraphError(
            f"the graph cannot be built: expected a placeholder {node!r} of {dtypes.name(dtype)}, found {there}"
        )
    taken = found["shape"].shape
    if "shape" not in found or taken.unknown_rank:
        return
    fits = not shape.unknown_rank and len(shape.dim) == len(taken.dim)
    if not fits or any(0 <= own.size != one.size for own, one in zip(taken.dim, shape.dim, strict=True)):
        raise GraphError(
            f"the graph cannot be built: the placeholder {node!r} does not take all shapes it may be given"
        )
