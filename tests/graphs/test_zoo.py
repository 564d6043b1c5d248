"""Models of every common kind, of TensorFlow 2 and 1: the captured graph answers bit for bit like the model."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from paramsync.checkpoint.reader import Bundle
from paramsync.graphs.capturing import capture
from paramsync.graphs.draft import Draft, finish
from paramsync.graphs.graph import Graph
from paramsync.graphs.sources.meta_graphs import draft_of_meta, read_meta
from paramsync.graphs.sources.saved_models import SavedModel
from paramsync.graphs.sources.v1_graphs import draft_of_tensors
from paramsync.graphs.specs import DEFAULT_SIGNATURE
from tests.support.checkpoints import assert_same
from tests.support.v1_drafts import control_flow

layers = keras.layers
WORDS = ["to", "be", "or", "not"]


def convolution() -> keras.Model:
    return keras.Sequential(
        [
            keras.Input((28, 28, 1)),
            *(layers.Conv2D(8, 3, padding="same"), layers.BatchNormalization(), layers.ReLU(), layers.MaxPooling2D()),
            *(layers.DepthwiseConv2D(3), layers.BatchNormalization(), layers.SeparableConv2D(8, 3, strides=2)),
            *(layers.GlobalAveragePooling2D(), layers.Dense(10, "softmax")),
        ]
    )


def recurrent(layer: Callable[[], Any]) -> Callable[[], keras.Model]:
    return lambda: keras.Sequential([keras.Input((None, 5)), layer(), layers.Dense(2)])


def attention() -> keras.Model:
    sequence = keras.Input((9, 16))
    attended = layers.MultiHeadAttention(4, 8)(sequence, sequence, use_causal_mask=True)
    joined = layers.LayerNormalization()(layers.Add()([sequence, layers.Dropout(0.1)(attended)]))
    grouped = layers.GroupQueryAttention(8, 4, 2)(joined, joined)
    return keras.Model(sequence, layers.Dense(3)(layers.GlobalMaxPooling1D()(grouped)))


def text_classifier() -> keras.Model:
    text = keras.Input((), dtype="string", name="text")
    ids = layers.TextVectorization(vocabulary=WORDS, output_sequence_length=6)(text)
    counts = layers.TextVectorization(vocabulary=WORDS, output_mode="count", ngrams=2)(text)
    embedded = layers.GlobalAveragePooling1D()(layers.Embedding(8, 4)(ids))
    return keras.Model(text, layers.Dense(3, "softmax")(layers.Concatenate()([embedded, counts])))


def many_in_many_out() -> keras.Model:
    image, numbers = keras.Input((8, 8, 3), name="image"), keras.Input((5,), name="numbers")
    seen = layers.GlobalAveragePooling2D()(layers.Conv2D(4, 3, activation="swish")(image))
    joined = layers.Concatenate()([seen, layers.Dense(4, "tanh")(numbers)])
    return keras.Model(
        {"image": image, "numbers": numbers},
        {"kind": layers.Dense(3, "softmax")(joined), "size": layers.Dense(1)(joined), "joined": joined * 2.0},
    )


class Residual(keras.Model):
    """A subclassed model: layers in a list, a variable of its own, a loop and a branch on values."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = [layers.Dense(6, "relu") for _ in range(3)]
        self.norm = layers.BatchNormalization()
        self.drop = layers.Dropout(0.5)
        self.scale = self.add_weight(shape=(6,), initializer="random_normal", name="scale")

    def call(self, x: Any, training: bool = False) -> Any:
        for block in self.blocks:
            x = x + self.drop(block(x), training=training)
        x = self.norm(x, training=training) * self.scale
        x = keras.ops.while_loop(lambda y: keras.ops.max(keras.ops.abs(y)) > 1.0, lambda y: (y / 2.0,), (x,))[0]
        return keras.ops.cond(keras.ops.sum(x) > 0.0, lambda: x, lambda: -x)


def subclassed() -> keras.Model:
    model = Residual()
    model(tf.ones((1, 6)))
    return model


MODELS: dict[str, Callable[[], keras.Model]] = {
    "convolution": convolution,
    "lstm": recurrent(lambda: layers.LSTM(6)),
    "gru": recurrent(lambda: layers.GRU(6, return_sequences=True)),
    "attention": attention,
    "text classifier": text_classifier,
    "many in many out": many_in_many_out,
    "subclassed": subclassed,
}


def disturbed(model: keras.Model) -> keras.Model:
    """Give random values to variables that begin as zeros or ones, which would hide a mistake."""
    random = np.random.default_rng(1)
    for variable in model.weights:
        if variable.path.endswith(("bias", "beta", "gamma", "moving_mean", "moving_variance")):
            variable.assign(random.uniform(0.5, 1.5, variable.shape))
    return model


def drawn(graph: Graph, rows: int) -> dict[str, tf.Tensor]:
    """Inputs that fit."""
    random = np.random.default_rng(rows)
    inputs = {}
    for name, spec in graph.signatures[DEFAULT_SIGNATURE].inputs.items():
        sizes = spec.shape or ()
        shape = [rows if at == 0 else size or 5 for at, size in enumerate(sizes)]
        if spec.dtype == "string":
            inputs[name] = tf.constant(random.choice([*WORDS, "to be", "else"], shape))
        elif spec.dtype.startswith("int"):
            inputs[name] = tf.cast(random.integers(0, 12, shape), spec.dtype)
        else:
            inputs[name] = tf.cast(random.normal(size=shape), spec.dtype)
    return inputs


@pytest.fixture
def unoptimised() -> Iterator[None]:
    """Without TensorFlow's graph optimiser, which merges operations and so changes the last bits of results."""
    tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": True})
    yield
    tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": False})


@pytest.mark.usefixtures("unoptimised")
@pytest.mark.parametrize("build", MODELS.values(), ids=MODELS)
def test_a_captured_and_an_exported_model_answer_bit_for_bit_like_the_model(
    build: Callable[[], keras.Model], tmp_path: Path
) -> None:
    model = disturbed(build())
    captured = capture(model)
    graph = Graph.from_bytes(captured.graph.to_bytes())
    assert graph.digest == captured.graph.digest
    model.export(tmp_path, verbose=False)
    exported = capture(tmp_path).graph
    bundle = Bundle.open(tmp_path / "variables" / "variables")
    saved = tf.saved_model.load(tmp_path).signatures[DEFAULT_SIGNATURE]
    for rows in (1, 7):
        inputs = drawn(graph, rows)
        given = list(inputs.values())
        nested = isinstance(getattr(model, "input", None), dict)
        expected = model(inputs if nested else given[0] if len(given) == 1 else given)
        found = graph([variable.read_value() for variable in captured.variables], inputs)
        for name, value in zip(found, tf.nest.flatten(expected), strict=True):
            np.testing.assert_array_equal(found[name].numpy(), value.numpy(), err_msg=name)
        inputs = drawn(exported, rows)
        found = exported([tf.constant(bundle.array(one.name)) for one in exported.parameters], inputs)
        expected = saved(**inputs)
        assert found.keys() == expected.keys()
        for name, value in expected.items():
            np.testing.assert_array_equal(found[name].numpy(), value.numpy(), err_msg=name)


v1 = tf.compat.v1
Tensors = dict[str, tf.Tensor]


@pytest.fixture(params=["v1", "v2"])
def version(request: pytest.FixtureRequest) -> Iterator[None]:
    with control_flow(request.param):
        yield


@pytest.fixture(params=["reference", "resource"])
def kind(request: pytest.FixtureRequest) -> bool:
    """True for resource variables, False for reference variables."""
    return bool(request.param == "resource")


@pytest.fixture(params=["tensors", "meta graph", "SavedModel"])
def handed(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def variable(name: str, shape: tuple[int, ...], resource: bool, **more: Any) -> Any:
    return v1.get_variable(name, shape, initializer=v1.random_normal_initializer(), use_resource=resource, **more)


def dense(x: tf.Tensor, name: str, size: int, resource: bool) -> tf.Tensor:
    with v1.variable_scope(name):
        return tf.matmul(x, variable("w", (x.shape[1], size), resource)) + variable("b", (size,), resource)


def looping(resource: bool) -> tuple[Tensors, Tensors]:
    """A while loop that reads its variables inside, and passes through a condition."""
    x = v1.placeholder(tf.float32, (None, 4), name="x")
    weights = variable("weights", (4, 4), resource)
    bias = variable("bias", (4,), resource)
    times = v1.placeholder_with_default(3, (), name="times")

    def body(i: tf.Tensor, state: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        even = tf.cond(
            tf.equal(i % 2, 0), lambda: tf.matmul(state, weights), lambda: tf.nn.tanh(state + bias) * weights[0, 0]
        )
        return i + 1, even

    _, state = tf.while_loop(lambda i, _: i < times, body, [tf.constant(0), x])
    return {"x": x}, {"state": state}


def partitioned(resource: bool) -> tuple[Tensors, Tensors]:
    ids = v1.placeholder(tf.int64, (None, 3), name="ids")
    table = variable("table", (11, 4), resource, partitioner=v1.fixed_size_partitioner(3))
    across = variable("across", (4, 5), resource, partitioner=v1.fixed_size_partitioner(2, axis=1))
    looked_up = v1.nn.embedding_lookup(table, ids % 11, partition_strategy="div")
    return {"ids": ids}, {"rows": looked_up, "product": tf.matmul(looked_up[:, 0], across)}


def words(resource: bool) -> tuple[Tensors, Tensors]:
    """Tables from constants, which are initialised as v1 does it; words in, words out."""
    text = v1.placeholder(tf.string, (None,), name="text")
    vocabulary = tf.constant(["one", "two", "three"])
    ids = tf.lookup.StaticVocabularyTable(
        tf.lookup.KeyValueTensorInitializer(vocabulary, tf.range(3, dtype=tf.int64)), 2
    )
    back = tf.lookup.StaticHashTable(tf.lookup.KeyValueTensorInitializer([0, 1, 2], ["uno", "dos", "tres"]), "?")
    found = ids.lookup(tf.strings.lower(text))
    embedded = tf.gather(variable("embedding", (5, 4), resource), found)
    return {"text": text}, {"embedded": embedded, "spanish": back.lookup(tf.cast(found, tf.int32))}


def middle(resource: bool) -> tuple[Tensors, Tensors]:
    """The fed tensor comes from an input pipeline, which is not captured."""
    raw = tf.data.Dataset.from_tensors(np.ones((2, 8), np.float32)).repeat()
    batch = v1.data.make_one_shot_iterator(raw).get_next() * 2.0
    features = tf.identity(batch, name="features")
    features.set_shape((None, 8))
    return {"features": features}, {"logits": dense(features, "head", 3, resource)}


def made(spec: Any, rows: int) -> Any:
    random = np.random.default_rng(rows)
    shape = [rows if size is None else size for size in spec.shape or ()]
    if spec.dtype == "string":
        return random.choice([b"one", b"TWO", b"three", b"nine", b"ten"], shape).astype(object)
    return random.uniform(-3 if "float" in spec.dtype else 0, 30, shape).astype(spec.dtype)


def save(session: Any, folder: Path, inputs: Tensors, outputs: Tensors) -> None:
    v1.train.Saver().save(session, str(folder / "model"), strip_default_attrs=True)
    builder = v1.saved_model.Builder(str(folder / "exported"))
    signature = v1.saved_model.predict_signature_def(inputs, outputs)
    tables = v1.tables_initializer()
    builder.add_meta_graph_and_variables(
        session, ["serve"], {DEFAULT_SIGNATURE: signature}, main_op=tables, strip_default_attrs=True
    )
    builder.save()


def draft(handed: str, folder: Path, inputs: Tensors, outputs: Tensors) -> tuple[Draft, Path]:
    """The draft of one form of the graph, and its checkpoint."""
    if handed == "tensors":
        return draft_of_tensors(inputs, outputs), folder / "model"
    if handed == "meta graph":
        path = folder / "model.meta"
        names = [{name: one.name for name, one in ends.items()} for ends in (inputs, outputs)]
        return draft_of_meta(read_meta(path), *names), folder / "model"
    exported = folder / "exported"
    return SavedModel(exported).draft(), exported / "variables" / "variables"


def assert_bit_for_bit(build: Callable[[bool], Any], resource: bool, handed: str, folder: Path) -> Graph:
    with tf.Graph().as_default(), v1.Session() as session:
        inputs, outputs = build(resource)
        session.run([v1.global_variables_initializer(), v1.tables_initializer()])
        save(session, folder, inputs, outputs)
        operations = len(session.graph.get_operations())
        found, prefix = draft(handed, folder, inputs, outputs)
        content = finish(found).to_bytes()
        assert len(session.graph.get_operations()) == operations  # somebody's graph stays as it is

        def expected(given: dict[str, Any]) -> dict[str, Any]:
            return dict(session.run(outputs, {inputs[name]: value for name, value in given.items()}))

        graph = Graph.from_bytes(content)
        signature = graph.signatures[DEFAULT_SIGNATURE]
        wanted = []
        for rows in (1, 7):
            given = {name: made(spec, rows) for name, spec in signature.inputs.items()}
            wanted.append((given, expected(given)))
    bundle = Bundle.open(prefix)
    values = [tf.constant(bundle.array(spec.name)) for spec in graph.parameters]
    for given, answers in wanted:
        results = graph(values, {name: tf.constant(value) for name, value in given.items()})
        assert results.keys() == answers.keys()
        for name, answer in answers.items():
            assert_same(results[name].numpy(), np.asarray(answer))
    return graph


@pytest.mark.parametrize("build", [partitioned, words, middle])
def test_a_v1_graph(build: Any, kind: bool, handed: str, tmp_path: Path) -> None:
    assert_bit_for_bit(build, kind, handed, tmp_path)


@pytest.mark.parametrize("build", [looping])
def test_a_v1_graph_with_control_flow(build: Any, kind: bool, handed: str, version: None, tmp_path: Path) -> None:
    assert_bit_for_bit(build, kind, handed, tmp_path)
