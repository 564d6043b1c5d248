"""Keras models of every kind are captured under the names people gave, whatever they take and give."""

from __future__ import annotations

import logging
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from paramsync.errors import GraphError
from paramsync.graphs.capturing import Capture, capture
from paramsync.graphs.specs import DEFAULT_SIGNATURE, Signature
from tests.support.captured import answers


def signature(captured: Capture) -> Signature:
    return captured.graph.signatures[DEFAULT_SIGNATURE]


def only_answer(captured: Capture, inputs: dict[str, Any]) -> Any:
    (found,) = answers(captured, inputs).values()
    return found


def test_nested_inputs_and_outputs_are_named_by_their_keys() -> None:
    user = {"age": keras.Input((1,), name="age"), "place": [keras.Input((2,)), keras.Input((2,))]}
    joined = keras.layers.Concatenate()([user["age"], *user["place"]])
    model = keras.Model(user, {"score": keras.layers.Dense(1)(joined), "more": {"joined": joined}})
    captured = capture(model)
    assert set(signature(captured).inputs) == {"age", "place_0", "place_1"}
    assert set(signature(captured).outputs) == {"score", "more_joined"}
    age, first, second = tf.ones((3, 1)), tf.ones((3, 2)) * 2, tf.ones((3, 2)) * 3
    found = answers(captured, {"age": age, "place_0": first, "place_1": second})
    expected = model({"age": age, "place": [first, second]})
    np.testing.assert_array_equal(found["score"], expected["score"])
    np.testing.assert_array_equal(found["more_joined"], expected["more"]["joined"])


def test_names_that_keras_makes_up_do_not_reach_the_graph() -> None:
    def build() -> keras.Model:
        image = keras.Input((8, 8, 1))
        return keras.Model(image, [keras.layers.Conv2DTranspose(2, 3)(image), image + 1.0])

    digests = {capture(build()).graph.digest for _ in range(2)}
    assert len(digests) == 1
    assert list(signature(capture(build())).outputs) == ["outputs_0", "outputs_1"]


class Tower(keras.Model):
    """A subclassed model that takes several arguments."""

    def __init__(self) -> None:
        super().__init__()
        self.dense = keras.layers.Dense(3)

    def call(self, user: Any, item: Any) -> Any:
        return {"user": self.dense(user), "match": self.dense(user) * self.dense(item)}


class Nested(keras.Model):
    """A subclassed model that takes a dictionary, and whole numbers in it."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = keras.layers.Embedding(50, 4)
        self.dropout = keras.layers.Dropout(0.5)
        self.dense = keras.layers.Dense(2)

    def call(self, inputs: Any, training: bool = False) -> Any:
        ids = keras.ops.mean(self.embedding(inputs["ids"]), axis=1)
        return self.dense(self.dropout(ids, training=training) + inputs["features"])


def test_an_input_read_only_as_whole_numbers_is_whole_numbers() -> None:
    model = Nested()
    inputs = {"ids": tf.constant([[1, 2, 3]]), "features": tf.ones((1, 4))}
    expected = model(inputs)
    captured = capture(model)
    assert signature(captured).inputs["ids"].dtype == "int32"
    assert signature(captured).inputs["features"].dtype == "float32"
    np.testing.assert_array_equal(answers(captured, inputs)["outputs"], expected)


def test_inputs_say_what_a_model_takes_that_was_never_built() -> None:
    specs = {"ids": tf.TensorSpec((None, 3), tf.int64), "features": tf.TensorSpec((None, 4), name="given")}
    model = Nested()
    captured = capture(model, inputs=specs)
    assert set(signature(captured).inputs) == {"ids", "given"}
    assert signature(captured).inputs["ids"].dtype == "int64"
    inputs = {"ids": tf.constant([[1, 2, 3]], tf.int64), "features": tf.ones((1, 4))}
    found = answers(captured, {"ids": inputs["ids"], "given": inputs["features"]})
    np.testing.assert_array_equal(found["outputs"], model(inputs))


def test_inputs_by_the_names_of_the_arguments() -> None:
    model = Tower()
    captured = capture(model, inputs={"user": tf.TensorSpec((None, 5)), "item": tf.TensorSpec((None, 5))})
    user, item = tf.random.normal((4, 5)), tf.random.normal((4, 5))
    expected = model(user, item)
    for name, found in answers(captured, {"user": user, "item": item}).items():
        np.testing.assert_array_equal(found, expected[name])


def test_a_subclassed_model_that_was_never_built_is_refused_with_what_to_do() -> None:
    with pytest.raises(GraphError, match=r"build it, or call it once.*or say what it takes, inputs="):
        capture(Tower())


def test_a_sparse_input_is_its_three_tensors() -> None:
    bag = keras.Input((6,), sparse=True, name="bag")
    model = keras.Model(bag, keras.layers.Dense(3)(bag))
    captured = capture(model)
    assert set(signature(captured).inputs) == {"bag_indices", "bag_values", "bag_dense_shape"}
    value = tf.sparse.from_dense([[0.0, 1.0, 0.0, 0.0, 2.0, 0.0]])
    inputs = {"bag_indices": value.indices, "bag_values": value.values, "bag_dense_shape": value.dense_shape}
    np.testing.assert_array_equal(only_answer(captured, inputs), model(value))


def test_a_recurrent_layer_that_keeps_its_state_is_refused_by_name() -> None:
    memory = keras.layers.LSTM(4, stateful=True, name="memory")
    model = keras.Sequential([keras.Input((3, 2), batch_size=1), memory])
    with pytest.raises(GraphError, match="layer 'memory' keeps its state"):
        capture(model)


def test_dropout_and_its_seed_are_no_part_of_what_is_captured() -> None:
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dropout(0.5), keras.layers.GaussianNoise(1.0)])
    captured = capture(model)
    assert captured.variables == ()
    np.testing.assert_array_equal(only_answer(captured, {"inputs": tf.ones((2, 4))}), np.ones((2, 4)))


def test_only_the_outputs_asked_for_and_their_parameters_are_captured() -> None:
    image = keras.Input((4,), name="image")
    heads = [keras.layers.Dense(2, name=name)(image) for name in ("left", "right")]
    model = keras.Model(image, heads)
    captured = capture(model, outputs=["right"])
    assert list(signature(captured).outputs) == ["right"]
    assert len(captured.graph.parameters) == 2
    with pytest.raises(GraphError, match=r"expected some of left, right.* found up"):
        capture(model, outputs=["up"])


class Blocks(keras.Model):
    """Layers in a list, in a private dict of lists, where TensorFlow does not see them."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = [keras.layers.Dense(4) for _ in range(2)]
        self._heads = {"left": [keras.layers.Dense(2)]}
        self.last = keras.layers.Dense(4)

    def call(self, x: Any) -> Any:
        for block in self.blocks:
            x = block(x)
        return self._heads["left"][0](self.last(x))


def test_what_is_in_lists_and_dicts_has_the_key_that_its_place_gives_it() -> None:
    def built() -> keras.Model:
        model = Blocks()
        model(tf.ones((1, 4)))
        return model

    captured = [capture(built()) for _ in range(2)]
    places = {one.name.rpartition("/.ATTRIBUTES")[0].rpartition("/")[0] for one in captured[0].graph.parameters}
    assert places == {"blocks/0", "blocks/1", "last", "_heads/left/0"}
    assert len({one.graph.digest for one in captured}) == 1


def test_a_sequential_model_that_took_its_shape_from_a_batch_serves_batches_of_any_size() -> None:
    def built(batch: int) -> keras.Model:
        model = keras.Sequential([keras.layers.Dense(3), keras.layers.Reshape((1, 3)), keras.layers.Flatten()])
        model(np.ones((batch, 4), np.float32))
        return model

    captured = [capture(built(batch)) for batch in (2, 5)]
    assert signature(captured[0]).inputs["inputs"].shape == (None, 4)
    assert captured[0].graph.digest == captured[1].graph.digest


def test_a_sequential_model_that_computes_with_its_batch_size_keeps_it() -> None:
    weigh = keras.layers.Lambda(lambda x: x * tf.range(x.shape[0], dtype=tf.float32)[:, None])
    model = keras.Sequential([keras.Input((4,), batch_size=2), weigh])
    assert signature(capture(model)).inputs["inputs"].shape == (2, 4)


# Compared with the model's own call -----------------------------------------------------------------------------------


class Wrong(keras.layers.Layer):
    """Multiplies by a matrix that never fits."""

    def call(self, x: Any) -> Any:
        return keras.ops.matmul(x, keras.ops.ones((7, 3)))


class Undecided(keras.layers.Layer):
    def call(self, x: Any) -> Any:
        return x if keras.ops.sum(x) > 0 else -x


@pytest.mark.parametrize(
    ("layer", "reason"),
    [
        (Wrong(), r"shape=\(None, 4\).*shape=\(7, 3\)|4 and 7"),
        (Undecided(), r"symbolic `tf.Tensor` as a Python `bool`"),
    ],
)
@pytest.mark.parametrize("nested", [False, True])
def test_the_whole_reason_that_keras_gives_is_told_on_one_line(layer: Any, reason: str, nested: bool) -> None:
    model = keras.Sequential([layer])
    with pytest.raises(GraphError, match=reason) as refused:
        capture(keras.Sequential([model]) if nested else model, inputs=tf.TensorSpec((None, 4)))
    text = str(refused.value)
    assert "Exception encountered when calling" in text
    assert text.isprintable()
    assert "Arguments received" not in text


def test_a_graph_that_computes_another_shape_than_the_model_is_refused() -> None:
    x = keras.Input((None, 4), name="x")
    model = keras.Model(x, keras.layers.TimeDistributed(keras.layers.Dense(2))(x))
    with pytest.raises(
        GraphError, match=r"its graph gives 'outputs' as float32 \[2, 2, 2\], the model float32 \[2, 3, 2\]"
    ):
        capture(model)
    assert capture(model, compare=False).graph.signatures
    assert capture(model, inputs=tf.TensorSpec((None, 5, 4))).graph.signatures


class Otherwise(keras.layers.Layer):
    """Computes something else when it is traced."""

    def __init__(self, difference: float) -> None:
        super().__init__()
        self.difference = difference

    def call(self, x: Any) -> Any:
        return x if tf.executing_eagerly() else x * (1 + self.difference)


def test_values_that_differ_by_more_than_rounding_are_refused() -> None:
    def model(difference: float, dtype: str = "float32") -> keras.Model:
        x = keras.Input((4,), name="x", dtype=dtype)
        return keras.Model(x, {"same": x, "y": keras.layers.Activation("linear")(Otherwise(difference)(x))})

    with pytest.raises(GraphError, match=r"'y' differs from what the model gives, by up to 0\.0\d+ of 0\.\d+"):
        capture(model(0.01))
    assert capture(model(1e-6)).graph.signatures
    assert capture(model(0.01), outputs=["same"]).graph.signatures


def test_what_the_model_itself_cannot_compute_is_not_compared(caplog: pytest.LogCaptureFixture) -> None:
    """No made up size can be reshaped to rows of 17."""
    x = keras.Input((None,), name="x")
    model = keras.Model(x, Otherwise(1.0)(keras.layers.Reshape((17, -1))(x)))
    with caplog.at_level(logging.DEBUG, "paramsync.graphs"):
        assert capture(model).graph.signatures
    assert "was not compared" in caplog.text


def test_inputs_of_every_kind_are_made_up() -> None:
    word, place = keras.Input((1,), dtype="string", name="word"), keras.Input((None,), dtype="int32", name="place")
    few = keras.Input((6,), sparse=True, name="few")
    looked_up = keras.layers.StringLookup(vocabulary=["a", "b"], output_mode="one_hot")(word)
    embedded = keras.layers.GlobalAveragePooling1D()(keras.layers.Embedding(2, 3)(place))
    y = keras.layers.Concatenate()([looked_up, embedded, keras.layers.Dense(2)(few)])
    model = keras.Model({"word": word, "place": place, "few": few}, Otherwise(0.5)(y))
    with pytest.raises(GraphError, match="differs from what the model gives"):
        capture(model)


def test_a_call_that_is_compared_leaves_the_model_as_it_was() -> None:
    model = keras.Sequential([keras.Input((4,)), keras.layers.BatchNormalization(), keras.layers.Dropout(0.5)])
    before = [one.numpy() for one in model.variables]
    capture(model)
    for one, value in zip(model.variables, before, strict=True):
        np.testing.assert_array_equal(one.numpy(), value)
