"""Graphs of TensorFlow 1 for tests: drafts, control flow, copies, and comparisons with a Session."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import tensorflow as tf

from paramsync.graphs.draft import Draft, Parameter, PartRange, finish
from paramsync.graphs.graph import Graph
from paramsync.graphs.nodes import VARIABLES
from paramsync.graphs.sources.structures import endpoint_of
from paramsync.graphs.specs import DEFAULT_SIGNATURE
from paramsync.graphs.surgery import Copy
from paramsync.v1 import graph_pb2

v1 = tf.compat.v1


def signature(inputs: Mapping[str, tf.Tensor], outputs: Mapping[str, tf.Tensor]) -> graph_pb2.Signature:
    return graph_pb2.Signature(
        inputs=[endpoint_of(name, tensor.name, tensor) for name, tensor in inputs.items()],
        outputs=[endpoint_of(name, tensor.name, tensor) for name, tensor in outputs.items()],
    )


def parameters_of(graph_def: Any, parts: Sequence[Any] = ()) -> list[Parameter]:
    """Return a parameter for each variable, under the variable's name. `parts` are parts of partitioned variables."""
    infos = {one.op.name: one.to_proto().save_slice_info_def for one in parts}
    found = []
    for node in graph_def.node:
        if node.op in VARIABLES:
            spec = tf.TensorSpec(tf.TensorShape(node.attr["shape"].shape), node.attr["dtype"].type)
            part = None
            name = node.name
            if node.name in infos:
                info = infos[node.name]
                name, part = info.full_name, PartRange(tuple(info.full_shape), tuple(info.var_offset))
            found.append(Parameter(name, node.name, spec, part))
    return found


def draft_of(graph: tf.Graph, inputs: Mapping[str, tf.Tensor], outputs: Mapping[str, tf.Tensor]) -> Draft:
    graph_def = graph.as_graph_def()
    return Draft(graph_def, parameters_of(graph_def), {DEFAULT_SIGNATURE: signature(inputs, outputs)})


def check(
    build: Callable[[tf.Tensor], Any], *, dtype: tf.DType = tf.float32, low: float = -2, high: float = 2
) -> Graph:
    """Lift the v1 graph that `build` makes from its input. Fails unless it answers as a Session does, bit for bit."""
    with tf.Graph().as_default() as graph:
        v1.set_random_seed(1)
        x = v1.placeholder(dtype, (None, 4), name="x")
        y = build(x)
        variables = {one.op.name: one for one in v1.global_variables()}
        lifted = finish(draft_of(graph, {"x": x}, {"y": y}))
        random = np.random.default_rng(0)
        with v1.Session() as session:
            session.run(v1.global_variables_initializer())
            values = {name: session.run(one) for name, one in variables.items()}
            given = [random.uniform(low, high, (rows, 4)).astype(dtype.as_numpy_dtype) for rows in (1, 7)]
            expected = [session.run(y, {x: one}) for one in given]
    lifted = Graph.from_bytes(lifted.to_bytes(), allowed=("TensorArrayV3",))
    parameters = [tf.constant(values[spec.name]) for spec in lifted.parameters]
    for one, wanted in zip(given, expected, strict=True):
        found = lifted(parameters, {"x": tf.constant(one)})["y"]
        np.testing.assert_array_equal(found.numpy(), wanted)
    return lifted


@contextmanager
def control_flow(version: str) -> Iterator[None]:
    """Within this context, graphs are built with control flow "v1" or "v2"."""
    before = v1.control_flow_v2_enabled()
    _enable(version == "v2")
    try:
        yield
    finally:
        _enable(before)


def _enable(v2: bool) -> None:
    (v1.enable_control_flow_v2 if v2 else v1.disable_control_flow_v2)()


DATA = np.random.default_rng(0).normal(size=(7, 4)).astype(np.float32)


def dense(tensor: tf.Tensor, units: int, name: str, *, resource: bool = True, **arguments: Any) -> tf.Tensor:
    with v1.variable_scope(name, use_resource=resource):
        kernel = v1.get_variable("kernel", [tensor.shape[-1], units], **arguments)
        bias = v1.get_variable("bias", [units], initializer=v1.zeros_initializer())
        return tf.nn.relu(tf.matmul(tensor, kernel) + bias)


def ready(graph: tf.Graph) -> Any:
    with graph.as_default():
        session = v1.Session(graph=graph)
        session.run([v1.global_variables_initializer(), v1.tables_initializer()])
    return session


def copy_values(session: Any, copy: Copy) -> None:
    with copy.graph.as_default():
        session.run([v1.assign(one, copy.originals[name].read_value()) for name, one in copy.variables.items()])
