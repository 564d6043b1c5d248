"""Traces the predictions of Keras models. Inputs and outputs keep the names that people gave them."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import Any

import keras
import tensorflow as tf

from paramsync.errors import GraphError
from paramsync.graphs.sources.functions import reason, result_names
from paramsync.graphs.sources.objects import objects
from paramsync.graphs.sources.structures import components, leaves, unique
from paramsync.graphs.sources.traces import Own, Trace

_CONTEXT = frozenset({"training", "mask"})  # arguments that Keras itself passes to a call
_MADE_UP_INPUT = r"keras_tensor(_\d+)*"


@dataclass(frozen=True, slots=True)
class _Input:
    name: str
    spec: tf.TypeSpec


def trace(model: keras.layers.Layer, inputs: Any = None) -> Trace:
    """Trace the prediction of a model.

    `inputs` are specs of its first argument, nested like the argument, or specs by the names of its arguments. By
    default they are the specs with which the model was built. Raises GraphError.
    """
    _refuse_state(model)
    if inputs is not None:
        return _trace_call(model, _given(model, inputs))
    if getattr(model, "inputs", None):
        return _trace_symbolically(model)
    arguments = _built(model)
    traced = _trace_call(model, arguments)
    corrected = _misread(traced)  # Keras does not record the dtypes of these arguments
    if not corrected:
        return traced
    return _trace_call(model, tf.nest.map_structure(lambda leaf: corrected.get(leaf.name, leaf), arguments))


def _trace_call(model: keras.layers.Layer, arguments: tuple[Sequence[Any], Mapping[str, Any]]) -> Trace:
    """Trace with these arguments, positional and by name. Each leaf is an _Input."""
    specs = [leaf for _, leaf in leaves(arguments)]

    def predict(*tensors: Any) -> Any:
        left = iter(tensors)
        positional, named = tf.nest.map_structure(lambda _: next(left), arguments)
        with _as_recorded(model):
            return model(*positional, training=False, **named)

    try:
        function = tf.function(predict, autograph=False).get_concrete_function(*(leaf.spec for leaf in specs))
    except (TypeError, ValueError, LookupError, AttributeError, tf.errors.OpError) as error:
        raise GraphError(
            f"model {model.name!r} cannot be called with {', '.join(leaf.name for leaf in specs) or 'nothing'}: say"
            f" what it takes, inputs= as tf.TensorSpec: {reason(error)}"
        ) from error
    names = [part for leaf in specs for part in components(leaf.name, leaf.spec)]
    own = Own(f"model {model.name!r}", [leaf.spec for leaf in specs], predict)
    return Trace(function, unique(names), result_names(function, _output_names(model)), own)


@contextmanager
def _as_recorded(model: keras.layers.Layer) -> Iterator[None]:
    """Within the block, pass `training=True` to the layers that got it when their functional model was built.

    Without this, a functional model that is called with training=False passes False to these layers too.
    """
    training = {id(layer): layer for item in objects(model) for layer in _called_with_training(item)}
    before = [(layer, vars(layer).get("call")) for layer in training.values()]
    for layer, _ in before:
        layer.call = partial(_training, layer.call)
    try:
        yield
    finally:
        for layer, call in before:
            if call is None:
                del layer.call
            else:
                layer.call = call


def _training(call: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
    return call(*arguments, **named | {"training": True})


def _called_with_training(model: Any) -> Iterator[keras.Operation]:
    """Yield the layers of a functional model that were called with `training=True`.

    Leaves out layers whose own default is True, such as augmentation: Keras records the default as if it had been
    given, but predicts without augmentation.
    """
    if isinstance(model, keras.Model) and hasattr(model, "operations"):
        # The public source of these arguments is the config, but not every layer has a config.
        for node in chain.from_iterable(model._nodes_by_depth.values()):
            if node.arguments.kwargs.get("training") is True:
                parameter = inspect.signature(node.operation.call).parameters.get("training")
                if parameter is None or parameter.default is not True:
                    yield node.operation


def _trace_symbolically(model: keras.Model) -> Trace:
    """Trace a functional or sequential model.

    The input spec of a sequential model has the batch size of the first call, if this call built the model. So batches
    of any size are tried first.
    """
    inputs = _symbolic(model)
    if isinstance(model, keras.Sequential) and isinstance(inputs.spec, tf.TensorSpec) and inputs.spec.shape.rank:
        of_any_size = tf.TensorSpec((None, *inputs.spec.shape[1:]), inputs.spec.dtype)
        with suppress(GraphError):  # the model may work only with the batch size of that call
            return _trace_call(model, ([_Input(inputs.name, of_any_size)], {}))
    return _trace_call(model, ([inputs], {}))


def _symbolic(model: keras.Model) -> Any:
    """Return the inputs of a functional or sequential model, nested like the model's argument."""
    structure = model.inputs[0] if isinstance(model, keras.Sequential) else model.input
    tensors = list(leaves(structure, "" if isinstance(structure, Mapping) else "inputs"))
    names = _readable([leaf.name for _, leaf in tensors], _MADE_UP_INPUT)
    named = iter([name or path for name, (path, _) in zip(names, tensors, strict=True)])
    return tf.nest.map_structure(lambda leaf: _Input(next(named), _spec(leaf)), structure)


def _spec(tensor: keras.KerasTensor) -> tf.TypeSpec:
    if tensor.sparse:
        return tf.SparseTensorSpec(tensor.shape, tensor.dtype)
    if getattr(tensor, "ragged", False):
        rank = tensor.ragged_rank or 1
        return tf.RaggedTensorSpec(tensor.shape, tensor.dtype, rank, tensor.row_splits_dtype or tf.int64)
    return tf.TensorSpec(tensor.shape, tensor.dtype)


def _given(model: keras.layers.Layer, inputs: Any) -> tuple[list[Any], dict[str, Any]]:
    if isinstance(inputs, Mapping) and inputs and inputs.keys() <= set(_parameters(model)):
        return [], {name: _named(inputs[name], name) for name in inputs}
    return _first_argument(model, inputs)


def _first_argument(model: keras.layers.Layer, specs: Any) -> tuple[list[Any], dict[str, Any]]:
    first = next(iter(_parameters(model)), "inputs")
    return [_named(specs, "" if isinstance(specs, Mapping) else first)], {}


def _named(specs: Any, prefix: str) -> Any:
    """Turn each spec into an _Input, with the spec's own name or else its path."""
    named = (_Input(getattr(spec, "name", None) or path, spec) for path, spec in leaves(specs, prefix))
    return tf.nest.map_structure(lambda _: next(named), specs)


def _built(model: keras.layers.Layer) -> tuple[list[Any], dict[str, Any]]:
    """Return the arguments with which a model without declared inputs was built. Keras keeps only their shapes."""
    config = model.get_build_config() if model.built else None
    if not config:
        raise GraphError(
            f"model {model.name!r} has no inputs yet: build it, or call it once, before it is captured, or say what it"
            " takes, inputs= as tf.TensorSpec"
        )
    dtype = model.input_dtype
    if "shapes_dict" in config:
        shapes = {name.removesuffix("_shape"): shape for name, shape in config["shapes_dict"].items()}
        return [], {name: _named(_specs(shape, dtype), name) for name, shape in shapes.items()}
    return _first_argument(model, _specs(config["input_shape"], dtype))


def _specs(shapes: Any, dtype: str) -> Any:
    """Return specs for nested shapes, with batches of any size."""
    if isinstance(shapes, Mapping):
        return {name: _specs(shape, dtype) for name, shape in shapes.items()}
    if all(size is None or isinstance(size, int) for size in shapes):
        return tf.TensorSpec((None, *shapes[1:]) if shapes else (), dtype)
    return [_specs(shape, dtype) for shape in shapes]


def _parameters(model: keras.layers.Layer) -> list[str]:
    kinds = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    parameters = inspect.signature(model.call).parameters.values()
    return [parameter.name for parameter in parameters if parameter.kind in kinds and parameter.name not in _CONTEXT]


def _misread(traced: Trace) -> dict[str, _Input]:
    """Find float inputs that are only cast to integers or strings. Returns inputs of these dtypes in their place."""
    inputs = {}
    for name, tensor in zip(traced.inputs, traced.function.inputs, strict=False):
        readers = tensor.consumers()
        dtypes = {reader.outputs[0].dtype for reader in readers}
        if tensor.dtype.is_floating and len(dtypes) == 1 and all(reader.type == "Cast" for reader in readers):
            dtype = dtypes.pop()
            if dtype.is_integer or dtype == tf.string:
                inputs[name] = _Input(name, tf.TensorSpec(tensor.shape, dtype))
    return inputs


def _output_names(model: keras.layers.Layer) -> list[str]:
    """Return the names that people gave the outputs, or else plain names, such as outputs_0."""
    if isinstance(model, keras.Sequential):
        names, made_by = [model.layers[-1].name], {layer.name: layer for layer in model.layers}
    else:
        names = list(getattr(model, "output_names", None) or ())
        made_by = {operation.name: operation for operation in getattr(model, "operations", ())}
    made_up = "|".join(rf"{_snake_case(type(made_by[name]).__name__)}(_\d+)?" for name in names if name in made_by)
    plain = ["outputs"] if len(names) == 1 else [f"outputs_{position}" for position in range(len(names))]
    return [name or otherwise for name, otherwise in zip(_readable(names, made_up), plain, strict=True)]


def _readable(names: Sequence[str], made_up: str) -> list[str]:
    """Replace names that Keras made up by "", because they differ from run to run."""
    return ["" if re.fullmatch(made_up, name) else name for name in names]


def _snake_case(name: str) -> str:
    """Spell a class name as in the names that Keras makes up: conv2d_transpose for Conv2DTranspose."""
    return re.sub(r"(?<=[a-z])(?=[A-Z])|(?<=.)(?=[A-Z][a-z])", "_", name).lower()


def _refuse_state(model: keras.layers.Layer) -> None:
    for layer in objects(model):
        if isinstance(layer, keras.layers.Layer) and getattr(layer, "stateful", False):
            raise GraphError(
                f"layer {layer.name!r} keeps its state from one call to the next, stateful=True, and a prediction"
                " cannot: build the model that serves with stateful=False, or make the state an input and an output"
            )
