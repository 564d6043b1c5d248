"""PublishCallback in real calls of `model.fit`."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from paramsync.errors import SettingsError, StoreLockedError
from paramsync.store import Store
from trainer.keras import PublishCallback

ROOT = Path(__file__).parent.parent
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

    def on_train_begin(self, logs: Any = None) -> None:
        super().on_train_begin(logs)
        self._wait()

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        super().on_train_batch_end(batch, logs)
        self._wait()

    def _wait(self) -> None:
        assert self._publisher is not None
        assert self._publisher.flush(60)


def steps_of(store: Path) -> list[int]:
    return [version.step for version in Store(store).versions()]


def test_a_fit_publishes_its_start_its_schedule_and_its_end(tmp_path: Path) -> None:
    fit(network(keras.Input((4,))), Unhurried(tmp_path, every_steps=6, on_error="raise", keep=100))
    assert steps_of(tmp_path) == [0, 6, 12, 16]


def test_the_last_version_has_the_fitted_weights_and_the_loss(tmp_path: Path) -> None:
    model, copy = network(keras.Input((4,))), network(keras.Input((4,)))
    fit(model, PublishCallback(tmp_path, every_seconds=3600))
    tf.train.Checkpoint(copy).read(tf.train.latest_checkpoint(tmp_path)).expect_partial()
    np.testing.assert_array_equal(model.predict_on_batch(X), copy.predict_on_batch(X))
    latest = Store(tmp_path).latest()
    assert latest is not None
    assert latest.metrics["loss"] > 0


def test_a_second_fit_goes_on_counting(tmp_path: Path) -> None:
    model = network(keras.Input((4,)))
    callback = PublishCallback(tmp_path, every_steps=5)
    fit(model, callback)
    fit(model, callback)
    latest = Store(tmp_path).latest()
    assert latest is not None
    assert latest.step == 32


def test_several_steps_in_one_call_are_counted_one_by_one(tmp_path: Path) -> None:
    model = network(keras.Input((4,)))
    model.compile("sgd", "mse", steps_per_execution=3)
    fit(model, Unhurried(tmp_path, every_steps=3, keep=100))
    # 8 steps an epoch: its calls end after 3, 6 and 8 of them, and the last is too soon after the one before
    assert steps_of(tmp_path) == [0, 3, 6, 11, 14, 16]


def test_a_model_without_a_declared_input_is_published_too(tmp_path: Path) -> None:
    fit(network(), PublishCallback(tmp_path))
    latest = Store(tmp_path).latest()
    assert latest is not None
    assert latest.step == 16


def test_a_fit_that_was_interrupted_does_not_keep_the_store_from_the_next(tmp_path: Path) -> None:
    class Interrupted(Exception):
        pass

    class Interrupting(keras.callbacks.Callback):
        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            raise Interrupted

    model = network(keras.Input((4,)))
    callback = PublishCallback(tmp_path)
    with pytest.raises(Interrupted):
        fit(model, callback, callbacks=[callback, Interrupting()])
    with pytest.raises(StoreLockedError):
        fit(model, PublishCallback(tmp_path))
    fit(model, callback)


def test_a_schedule_of_zero_is_refused_when_the_callback_is_made(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="every_steps"):
        PublishCallback(tmp_path, every_steps=0)


@pytest.mark.slow
def test_the_example_publishes_what_it_fitted(tmp_path: Path) -> None:
    subprocess.run(
        [sys.executable, "examples/keras_fit.py", str(tmp_path)],
        cwd=ROOT,
        check=True,
        timeout=300,
        env={"PYTHONPATH": str(ROOT)},
    )
    latest = Store(tmp_path).latest()
    assert latest is not None
    assert latest.step == 640
    assert latest.metrics["accuracy"] > 0.8
