"""PublishCallback in real calls of `model.fit`, and gates that hold back steps with worse metrics."""

from __future__ import annotations

import gc
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from paramsync.errors import PublishError, SettingsError, StoreLockedError
from paramsync.keras import PublishCallback
from paramsync.publishing.metrics import Gate
from paramsync.publishing.publisher import Publisher
from paramsync.store.store import Store
from tests.support.programs import ROOT
from tests.support.training import EVERY_STEP, TIMEOUT, Counters

X = np.random.default_rng(0).normal(size=(64, 4)).astype(np.float32)
Y = X.sum(axis=1, keepdims=True)


def network(*layers: keras.layers.Layer) -> keras.Model:
    model = keras.Sequential([*layers, keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    return model


def fit(model: keras.Model, callback: PublishCallback, **arguments: Any) -> None:
    model.fit(X, Y, **({"batch_size": 8, "epochs": 2, "verbose": 0, "callbacks": [callback]} | arguments))


class Unhurried(PublishCallback):
    """Waits for each publication, so that none is overtaken by the next."""

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        super().on_epoch_begin(epoch, logs)
        self._wait()

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        super().on_train_batch_end(batch, logs)
        self._wait()

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        super().on_epoch_end(epoch, logs)
        self._wait()

    def _wait(self) -> None:
        assert self._publisher is not None
        assert self._publisher.flush(60)


def steps_of(store: Path) -> list[int]:
    return [version.step for version in Store(store).versions()]


def test_a_fit_publishes_its_start_its_schedule_and_its_end(tmp_path: Path) -> None:
    fit(network(keras.Input((4,))), Unhurried(tmp_path, every_steps=6, on_error="raise", keep=100))
    assert steps_of(tmp_path) == [0, 6, 12, 16]


def test_averages_are_published_in_place_of_what_is_trained(tmp_path: Path) -> None:
    model = network(keras.Input((4,)), keras.layers.Dense(3, dtype="mixed_float16"))
    averaging = keras.optimizers.SGD(0.01, use_ema=True, ema_momentum=0.8)
    model.compile(keras.optimizers.LossScaleOptimizer(averaging, initial_scale=1.0), "mse")
    trained: list[Any] = []  # the weights after each step: at the end of the fit, Keras replaces them by the averages
    look = keras.callbacks.LambdaCallback(on_train_batch_end=lambda batch, logs: trained.append(model.get_weights()))
    publishing = PublishCallback(tmp_path, averages=True, on_error="raise")
    fit(model, publishing, callbacks=[publishing, look])
    copy = keras.models.clone_model(model)
    tf.train.Checkpoint(copy).read(tf.train.latest_checkpoint(tmp_path)).expect_partial()
    kept = {one.name: one.numpy() for one in averaging.variables}
    for found, weight, last in zip(copy.weights, model.weights, trained[-1], strict=True):
        np.testing.assert_array_equal(found, kept[f"{weight.path.replace('/', '_')}_average"])
        assert (found.numpy() != last).any()


def test_averages_of_an_optimizer_that_keeps_none_are_refused(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"use_ema=True, found sgd\w* without"):
        fit(network(keras.Input((4,))), PublishCallback(tmp_path, averages=True))


def test_another_backend_is_told_what_to_do(tmp_path: Path) -> None:
    code = f"""
import keras, numpy as np
from paramsync.errors import SettingsError
from paramsync.keras import PublishCallback
model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
model.compile("sgd", "mse")
try:
    model.fit(np.ones((4, 4)), np.ones(4), verbose=0, callbacks=[PublishCallback({str(tmp_path)!r})])
except SettingsError as error:
    assert "found jax; publish from a loop of your own with Publisher.of_graph" in str(error)
else:
    raise AssertionError
import sys
assert "tensorflow" not in sys.modules
"""
    environment = {"KERAS_BACKEND": "jax", "PYTHONPATH": str(ROOT)}
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120, env=environment)


class WithItsOwn(keras.Model):
    """A model trained by an optimizer that it is not compiled with, as in adversarial training."""

    def train_step(self, data: Any) -> dict[str, Any]:
        x, y = data
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(self(x, training=True) - y))
        self.own.apply(tape.gradient(loss, self.trainable_variables), self.trainable_variables)
        return {"loss": loss}


@pytest.mark.parametrize("optimizer", ["sgd", None])
def test_steps_of_an_optimizer_that_the_model_is_not_compiled_with_are_published(
    tmp_path: Path, optimizer: str | None
) -> None:
    x = keras.Input((4,))
    model = WithItsOwn(x, keras.layers.Dense(1)(x))
    model.own = keras.optimizers.SGD(0.01)
    model.compile(optimizer)
    fit(model, Unhurried(tmp_path, every_steps=6, on_error="raise", keep=100))
    assert steps_of(tmp_path) == [0, 6, 12, 16]
    found = tf.train.load_checkpoint(str(tmp_path))
    kernels = [found.get_tensor(name) for name in found.get_variable_to_shape_map() if "kernel" in name]
    assert any(np.array_equal(one, model.layers[-1].kernel.numpy()) for one in kernels)


def test_updates_that_an_optimizer_leaves_out_are_no_steps(tmp_path: Path) -> None:
    model = network(keras.Input((4,)))
    model.compile(keras.optimizers.SGD(gradient_accumulation_steps=4), "mse")
    fit(model, Unhurried(tmp_path, every_steps=1, on_error="raise", keep=100))
    assert steps_of(tmp_path) == [0, 1, 2, 3, 4]


def test_a_fit_that_was_interrupted_and_is_forgotten_leaves_the_store_free(tmp_path: Path) -> None:
    class Interrupt(keras.callbacks.Callback):
        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            raise KeyboardInterrupt

    model = network(keras.Input((4,)))
    with pytest.raises(KeyboardInterrupt) as raised:
        fit(model, PublishCallback(tmp_path), callbacks=[PublishCallback(tmp_path), Interrupt()])
    with pytest.raises(StoreLockedError):
        fit(model, PublishCallback(tmp_path))
    del raised
    gc.collect()
    fit(model, PublishCallback(tmp_path, on_error="raise"))
    assert steps_of(tmp_path)[-1] == 17


# The end of a fit -----------------------------------------------------------------------------------------------------


def model_of_one_layer(**optimizer: Any) -> keras.Model:
    model = network(keras.Input((4,)))
    model.compile(keras.optimizers.SGD(0.01, **optimizer), "mse")
    return model


def assert_published(model: keras.Model, store: Path) -> None:
    copy = model_of_one_layer()
    tf.train.Checkpoint(copy).read(tf.train.latest_checkpoint(store)).expect_partial()
    np.testing.assert_array_equal(copy.get_weights()[0], model.get_weights()[0])


def first_epoch_is_best() -> keras.callbacks.EarlyStopping:
    return keras.callbacks.EarlyStopping(monitor="loss", mode="max", patience=2, restore_best_weights=True)


@pytest.mark.parametrize("publishes_first", [True, False])
@pytest.mark.parametrize("schedule", [{"every_steps": 1}, {"every_seconds": 3600}])
def test_weights_that_another_callback_restores_at_the_end_are_published(
    tmp_path: Path, publishes_first: bool, schedule: Any
) -> None:
    model, publishing = model_of_one_layer(), PublishCallback(tmp_path, on_error="raise", **schedule)
    callbacks = [publishing, first_epoch_is_best()]
    fit(model, publishing, epochs=9, callbacks=callbacks if publishes_first else callbacks[::-1])
    assert_published(model, tmp_path)
    assert steps_of(tmp_path)[-1] == 24
    assert "on_train_end" not in vars(model.history)


def test_callbacks_that_are_called_by_a_loop_of_somebodys_own_publish_its_end(tmp_path: Path) -> None:
    model = model_of_one_layer()
    fit(model, PublishCallback(tmp_path / "before"))
    callbacks = keras.callbacks.CallbackList([PublishCallback(tmp_path, every_seconds=3600)], model=model)
    callbacks.on_train_begin()
    callbacks.on_epoch_begin(0)
    callbacks.on_train_batch_end(0, model.train_on_batch(X, Y, return_dict=True))
    callbacks.on_epoch_end(0)
    callbacks.on_train_end()
    assert_published(model, tmp_path)


def test_an_end_that_cannot_be_published_is_raised_by_the_fit(tmp_path: Path) -> None:
    class Spoiling(keras.callbacks.Callback):
        def on_train_end(self, logs: Any = None) -> None:
            self.model.set_weights([np.full_like(one, np.nan) for one in self.model.get_weights()])

    model, publishing = model_of_one_layer(), PublishCallback(tmp_path, every_seconds=3600, on_error="raise")
    with pytest.raises(PublishError, match="NaN"):
        fit(model, publishing, callbacks=[publishing, Spoiling()])
    fit(model_of_one_layer(), PublishCallback(tmp_path))


@pytest.mark.parametrize(
    ("publish_if", "metrics", "published", "refusal"),
    [
        ("loss", {"loss": 0.5}, {}, None),
        ("loss", {"loss": 0.5}, {"loss": 0.5}, None),
        ("loss", {"loss": 0.6}, {"loss": 0.5}, "loss 0.6 is worse than 0.5, which is published"),
        ("val_accuracy", {"val_accuracy": 0.6}, {"val_accuracy": 0.5}, None),
        ("val_accuracy", {"val_accuracy": 0.4}, {"val_accuracy": 0.5}, "worse than 0.5"),
        ("max score", {"score": 0.4}, {"score": 0.5}, "worse than 0.5"),
        ("min score", {"score": 0.4}, {"score": 0.5}, None),
        ("val_loss", {"loss": 0.1}, {}, "val_loss is not known at this step"),
        ("loss", {"loss": float("nan")}, {}, "loss is NaN"),
        (lambda metrics: metrics["loss"] < 1, {"loss": 0.5}, {"loss": 0.1}, None),
        (lambda metrics: metrics["loss"] < 1, {"loss": 1.5}, {}, "publish_if says no"),
    ],
)
def test_a_gate_refuses_what_is_worse_than_what_is_published(
    publish_if: Any, metrics: Mapping[str, float], published: Mapping[str, float], refusal: str | None
) -> None:
    found = Gate(publish_if).refusal(metrics, published)
    assert found is None if refusal is None else refusal in (found or "")


@pytest.mark.parametrize("publish_if", ["score", "max ", 7])
def test_a_gate_that_nobody_can_understand_is_refused(tmp_path: Path, publish_if: Any) -> None:
    with pytest.raises(SettingsError, match="publish_if: expected a metric"):
        PublishCallback(tmp_path, publish_if=publish_if)


def test_a_function_that_raises_holds_back_and_training_goes_on(tmp_path: Path) -> None:
    fit(network(), PublishCallback(tmp_path, every_steps=1, publish_if=lambda logs: logs["val_loss"] < 9))
    assert steps_of(tmp_path) == []
    gate = Gate(lambda metrics: metrics["val_loss"] < 9)
    assert gate.refuses(3, {"loss": 1.0}, {})
    assert gate.held_back == "step 3: publish_if raised KeyError: 'val_loss'"


def test_a_loop_publishes_no_step_that_is_worse_than_what_is_published(tmp_path: Path) -> None:
    with Publisher(tmp_path, Counters(), schedule=EVERY_STEP, publish_if="loss", keep=100) as publisher:
        publisher.begin(0)
        for step, loss in enumerate([0.5, 0.7, 0.4, 0.45, 0.4, 0.9], start=1):
            publisher.publish_if_due(step, {"loss": tf.constant(loss)})
            assert publisher.flush(TIMEOUT)
        assert publisher.status().held_back == "step 6: loss 0.9 is worse than 0.4, which is published"
    assert steps_of(tmp_path) == [1, 3, 5]


class Worsening(keras.callbacks.Callback):
    """Spoils the model at the start of some epochs, as a too high learning rate would."""

    def __init__(self, *epochs: int) -> None:
        super().__init__()
        self.epochs = epochs

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        if epoch in self.epochs:
            self.model.set_weights([one + 100 for one in self.model.get_weights()])


def test_a_fit_publishes_the_ends_of_epochs_that_are_no_worse_and_no_worse_last_one(tmp_path: Path) -> None:
    model = network(keras.Input((4,)))
    publishing = Unhurried(tmp_path, every_seconds=0.001, publish_if="val_loss", keep=100, on_error="raise")
    callbacks = [publishing, Worsening(2)]
    fit(model, publishing, epochs=3, validation_data=(X, Y), callbacks=callbacks)
    assert steps_of(tmp_path) == [8, 16]
    losses = [version.metrics["val_loss"] for version in Store(tmp_path).versions()]
    assert losses == sorted(losses, reverse=True)
