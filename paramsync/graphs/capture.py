"""From what people have, a Keras model or a checkpoint's .meta file, to a Graph and where its parameters live."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import keras
import tensorflow as tf
from google.protobuf.message import DecodeError

from paramsync.errors import GraphError, UnfinishedMetaError
from paramsync.graphs.graph import DEFAULT_SIGNATURE, Graph
from paramsync.graphs.lift import lift
from paramsync.graphs.objects import object_graph, variable_keys
from paramsync.v1 import bundle_pb2, graph_pb2

_VARIABLES = frozenset({"VarHandleOp", "Variable", "VariableV2"})


@dataclass(frozen=True, slots=True)
class Capture:
    """A graph and the live variables of its parameters, in the order of `graph.parameters`."""

    graph: Graph
    variables: tuple[tf.Variable, ...]
    object_graph: bytes


def capture(model: keras.Model | tf.Module) -> Capture:
    """What `model` computes when it predicts.

    A Keras model must be built; a tf.Module must have a tf.function with an input signature as its `__call__`. Raises
    GraphError, which says what is missing or cannot be served.
    """
    function, inputs, outputs = _traced_keras(model) if isinstance(model, keras.Model) else _traced_module(model)
    keys = {id(variable.handle): (key, variable) for key, variable in variable_keys(model).items()}
    graph_def = function.graph.as_graph_def()
    arguments = [tensor.op.name for tensor in function.inputs]
    found: dict[str, tuple[str, str, tf.Variable]] = {}  # key: node, key, variable
    nodes: dict[str, tf.TensorSpec] = {}
    for node, handle in zip(arguments[len(inputs) :], function.captured_inputs, strict=True):
        if handle.dtype != tf.resource:
            _make_constant(graph_def, node, handle)
            continue
        if id(handle) not in keys:
            raise GraphError(
                f"{node!r} is a variable or table that is not part of the model; only its own are published"
            )
        key, variable = keys[id(handle)]
        found[key] = (node, key, variable)
        nodes[node] = tf.TensorSpec(variable.shape, variable.dtype)
    ordered = [found[key] for key in sorted(found)]
    signature = graph_pb2.Signature(
        inputs=[_endpoint(name, tensor) for name, tensor in zip(inputs, function.inputs, strict=False)],
        outputs=[_endpoint(name, tensor) for name, tensor in zip(outputs, function.outputs, strict=True)],
    )
    graph = _graph(graph_def, nodes, [(key, node) for node, key, _ in ordered], signature)
    return Capture(graph, tuple(variable for *_, variable in ordered), object_graph(model, found))


def capture_meta(content: bytes, *, path: Path, inputs: Sequence[str], outputs: Sequence[str]) -> Graph:
    """The graph of a v1 checkpoint's `.meta` file between these tensors, by name; parameters are named as Saver does.

    `path` is where the content is from. Raises UnfinishedMetaError where it cannot be read, and GraphError, which lists
    what the file has where a name is unknown or an input is missing.
    """
    try:
        meta = tf.compat.v1.MetaGraphDef.FromString(content)
    except DecodeError as error:
        raise UnfinishedMetaError(f"{path} is not a readable meta graph: {error}") from error
    if not content:
        raise UnfinishedMetaError(f"{path} is not a readable meta graph: it is empty")
    with tf.Graph().as_default() as whole:
        try:
            tf.graph_util.import_graph_def(meta.graph_def, name="")
        except (ValueError, KeyError) as error:
            raise GraphError(f"{path} holds a graph that cannot be imported: {error}") from error
        given = [_tensor_of(whole, name, path) for name in inputs]
        results = [_tensor_of(whole, name, path) for name in outputs]
    graph_def, fed = _cut(meta.graph_def, given, results)
    nodes = {}
    for node in graph_def.node:
        if node.op in _VARIABLES:
            shape = tf.TensorShape(node.attr["shape"].shape)
            nodes[node.name] = tf.TensorSpec(shape, tf.as_dtype(node.attr["dtype"].type))
    signature = graph_pb2.Signature(
        inputs=[_endpoint(_short(one), one, f"{node}:0") for one, node in zip(given, fed, strict=True)],
        outputs=[_endpoint(_short(one), one) for one in results],
    )
    return _graph(graph_def, nodes, [(name, name) for name in sorted(nodes)], signature)


def _traced_keras(model: keras.Model) -> tuple[Any, list[str], list[str]]:
    if not model.built or not getattr(model, "inputs", None):
        raise GraphError(f"model {model.name!r} has no inputs yet: build it, or call it once, before it is captured")
    inputs = _readable([one.name for one in model.inputs], "inputs", r"keras_tensor(_\d+)*")
    specs = [tf.TensorSpec(one.shape, one.dtype, name=name) for one, name in zip(model.inputs, inputs, strict=True)]

    @tf.function(autograph=False)
    def predict(*tensors: tf.Tensor) -> list[tf.Tensor]:
        given = tensors[0] if len(tensors) == 1 else keras.tree.pack_sequence_as(model.input, tensors)
        return list(keras.tree.flatten(model(given, training=False)))

    layers = {layer.name: layer for layer in model.layers}
    names = getattr(model, "output_names", None) or [model.layers[-1].name]
    made_up = "|".join(rf"{_snake_case(type(layers[name]).__name__)}(_\d+)?" for name in names if name in layers)
    return predict.get_concrete_function(*specs), inputs, _readable(names, "outputs", made_up)


def _traced_module(module: tf.Module) -> tuple[Any, list[str], list[str]]:
    try:
        function = module.__call__.get_concrete_function()
    except (AttributeError, TypeError, ValueError) as error:
        raise GraphError(
            f"{type(module).__name__} cannot be captured: its __call__ must be a tf.function with an input_signature"
        ) from error
    inputs = [tensor.op.name for tensor in function.inputs[: len(function.inputs) - len(function.captured_inputs)]]
    structured = function.structured_outputs
    names = sorted(structured) if isinstance(structured, Mapping) else None
    if names is None:
        count = len(function.outputs)
        names = ["outputs"] if count == 1 else [f"outputs_{position}" for position in range(count)]
    return function, inputs, names


def _readable(names: Sequence[str], otherwise: str, made_up: str) -> list[str]:
    """The names people gave. Those Keras made up differ from run to run, so that plain ones take their place."""
    plain = [otherwise] if len(names) == 1 else [f"{otherwise}_{position}" for position in range(len(names))]
    return [new if re.fullmatch(made_up, name) else name for name, new in zip(names, plain, strict=True)]


def _snake_case(name: str) -> str:
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", name).lower()


def _make_constant(graph_def: Any, name: str, value: tf.Tensor) -> None:
    node = next(node for node in graph_def.node if node.name == name)
    node.op = "Const"
    node.attr.clear()
    node.attr["dtype"].type = value.dtype.as_datatype_enum
    node.attr["value"].tensor.CopyFrom(tf.make_tensor_proto(value.numpy()))


def _graph(
    graph_def: Any,
    nodes: Mapping[str, tf.TensorSpec],
    parameters: Iterable[tuple[str, str]],
    signature: graph_pb2.Signature,
) -> Graph:
    lifted = lift(graph_def, nodes)
    return Graph(
        graph_pb2.Graph(
            graph_def=lifted.SerializeToString(deterministic=True),
            parameters=[
                graph_pb2.Parameter(
                    name=name,
                    node=node,
                    dtype=nodes[node].dtype.as_datatype_enum,
                    shape=_shape(nodes[node].shape),
                )
                for name, node in parameters
            ],
            signatures={DEFAULT_SIGNATURE: signature},
        )
    )


def _endpoint(name: str, tensor: tf.Tensor, spelled: str | None = None) -> graph_pb2.Endpoint:
    return graph_pb2.Endpoint(
        name=name,
        tensor=spelled or tensor.name,
        dtype=tensor.dtype.as_datatype_enum,
        shape=_shape(tensor.shape),
    )


def _shape(shape: tf.TensorShape) -> bundle_pb2.TensorShape:
    return bundle_pb2.TensorShape.FromString(shape.as_proto().SerializeToString())


def _short(tensor: tf.Tensor) -> str:
    return str(tensor.name.removesuffix(":0"))


def _tensor_of(graph: tf.Graph, name: str, path: Path) -> tf.Tensor:
    try:
        return graph.get_tensor_by_name(name if ":" in name else f"{name}:0")
    except (KeyError, ValueError) as error:
        placeholders = [one.name for one in graph.get_operations() if one.type.startswith("Placeholder")]
        raise GraphError(
            f"{path} has no tensor {name!r}; its placeholders: {', '.join(placeholders[:20]) or 'none'}"
        ) from error


def _cut(graph_def: Any, given: Sequence[tf.Tensor], results: Sequence[tf.Tensor]) -> tuple[Any, list[str]]:
    """Only what leads from the given tensors to the results, and the placeholders that stand for the given ones."""
    fed = {one.name: f"fed_{position}" for position, one in enumerate(given)}
    nodes = {node.name: node for node in graph_def.node}
    cut = tf.compat.v1.GraphDef(versions=graph_def.versions, library=graph_def.library)
    for one in given:
        node = cut.node.add(name=fed[one.name], op="Placeholder")
        node.attr["dtype"].type = one.dtype.as_datatype_enum
        node.attr["shape"].shape.CopyFrom(one.shape.as_proto())
    waiting = [one.op.name for one in results]
    taken: set[str] = set()
    while waiting:
        name = waiting.pop()
        if name in taken:
            continue
        taken.add(name)
        node = cut.node.add()
        node.CopyFrom(nodes[name])
        if node.op == "Placeholder":
            raise GraphError(f"placeholder {name!r} is needed for the outputs but not among the inputs")
        for position, tensor in enumerate(node.input):
            full = tensor if ":" in tensor or tensor.startswith("^") else f"{tensor}:0"
            if full in fed:
                node.input[position] = fed[full]
            else:
                waiting.append(tensor.removeprefix("^").partition(":")[0])
    return cut, list(fed.values())
