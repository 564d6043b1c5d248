"""The networks that are called, and every way to call them, from a NumPy array to a NumPy array."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from paramsync.graphs.capturing import Capture, capture
from paramsync.graphs.parameters import alias

Call = Callable[[], Any]

_INPUT = "x"
_CLASSES = 10
_WIDTHS = {6: 256}  # of layers by parameters: the network of three layers is the one people know
_NARROW = 32  # of the others: what is measured is the calling
_COLUMNS = 256  # of the embedding table
_WORDS = 8  # of an input of the embedding network


@dataclass(frozen=True)
class Network:
    """A Keras model, one input for it, and the same function over variables of TensorFlow 1."""

    name: str
    model: keras.Model
    given: np.ndarray[Any, Any]
    rebuild: Callable[[tf.Tensor, Sequence[tf.Variable]], tf.Tensor]

    @property
    def size(self) -> int:
        """Bytes of the parameters."""
        return sum(weight.numpy().nbytes for weight in self.captured.variables)

    @cached_property
    def captured(self) -> Capture:
        return capture(self.model)

    @cached_property
    def traced(self) -> Any:
        """A ConcreteFunction over the model's own variables."""
        spec = tf.TensorSpec([None, *self.given.shape[1:]], self.given.dtype)
        function = tf.function(lambda x: self.model(x, training=False), autograph=False)
        return function.get_concrete_function(spec)


def dense(parameters: int) -> Network:
    """Layers of a kernel and a bias each, 784 inputs, 10 outputs."""
    layers = parameters // 2
    width = _WIDTHS.get(parameters, _NARROW)
    tensor = inputs = keras.Input((784,), name=_INPUT)
    for _ in range(layers - 1):
        tensor = keras.layers.Dense(width, activation="relu")(tensor)
    model = keras.Model(inputs, keras.layers.Dense(_CLASSES)(tensor))
    return Network(f"parameters_{parameters}", model, _uniform((1, 784)), _rebuild_dense)


def embedding(size: int) -> Network:
    """A table of about `size` bytes, looked up, averaged, and one layer."""
    rows = max(_WORDS, size // _COLUMNS // 4)
    inputs = keras.Input((_WORDS,), dtype="int32", name=_INPUT)
    tensor = keras.layers.Embedding(rows, _COLUMNS)(inputs)
    model = keras.Model(inputs, keras.layers.Dense(_CLASSES)(keras.ops.mean(tensor, axis=1)))
    given = np.random.default_rng(0).integers(0, rows, (1, _WORDS), dtype=np.int32)
    return Network("embedding", model, given, _rebuild_embedding)


def ours(network: Network) -> Call:
    """The captured graph with values for its parameters."""
    values = tuple(alias(variable.numpy()) for variable in network.captured.variables)
    return lambda: ours_once(network, values)


def ours_once(network: Network, values: Sequence[tf.Tensor]) -> Any:
    (result,) = network.captured.graph(values, {_INPUT: tf.constant(network.given)}).values()
    return result.numpy()


def handles(network: Network, folder: Path) -> Call:
    """The same function as ours, called the same way, with the handles of variables as arguments."""
    traced = network.traced
    types = [tensor.dtype for tensor in traced.outputs]

    def call() -> Any:
        arguments = [tf.constant(network.given), *traced.captured_inputs]
        return tf.raw_ops.StatefulPartitionedCall(args=arguments, Tout=types, f=traced)[0].numpy()

    return call


def _session(network: Network, folder: Path) -> Call:
    v1 = tf.compat.v1
    weights = [weight.numpy() for weight in network.model.weights]
    with tf.Graph().as_default() as graph:
        given = v1.placeholder(network.given.dtype, [None, *network.given.shape[1:]])
        variables = [v1.get_variable(f"v{at}", value.shape, value.dtype) for at, value in enumerate(weights)]
        result = network.rebuild(given, variables)
        session = v1.Session(graph=graph)
        initializers = [variable.initializer for variable in variables]
        values = {one.inputs[1]: value for one, value in zip(initializers, weights, strict=True)}
        session.run(initializers, values)
        function = session.make_callable(result, [given])
    return lambda: function(network.given)


def _signature(network: Network, folder: Path) -> Call:
    path = folder / network.name
    network.model.export(path, verbose=False)
    loaded = tf.saved_model.load(path)
    function = loaded.signatures["serving_default"]
    (name,) = function.structured_outputs

    def call() -> Any:
        assert loaded is not None  # it keeps the variables
        return function(**{_INPUT: tf.constant(network.given)})[name].numpy()

    return call


def _concrete(network: Network, folder: Path) -> Call:
    traced = network.traced
    return lambda: traced(tf.constant(network.given)).numpy()


def _keras_call(network: Network, folder: Path) -> Call:
    return lambda: network.model(network.given, training=False).numpy()


def _predict_on_batch(network: Network, folder: Path) -> Call:
    return lambda: network.model.predict_on_batch(network.given)


PEERS: dict[str, Callable[[Network, Path], Call]] = {
    "session": _session,
    "signature": _signature,
    "concrete": _concrete,
    "keras_call": _keras_call,
    "predict_on_batch": _predict_on_batch,
    "handles": handles,
}
"""What makes each ready to be called; the folder is for its files."""


def _rebuild_dense(x: tf.Tensor, variables: Sequence[tf.Variable]) -> tf.Tensor:
    for at in range(0, len(variables), 2):
        x = tf.nn.bias_add(tf.matmul(x, variables[at]), variables[at + 1])
        if at + 2 < len(variables):
            x = tf.nn.relu(x)
    return x


def _rebuild_embedding(x: tf.Tensor, variables: Sequence[tf.Variable]) -> tf.Tensor:
    table, kernel, bias = variables
    return tf.nn.bias_add(tf.matmul(tf.reduce_mean(tf.gather(table, x), axis=1), kernel), bias)


def _uniform(shape: tuple[int, ...]) -> np.ndarray[Any, Any]:
    return np.random.default_rng(0).random(shape, np.float32)
