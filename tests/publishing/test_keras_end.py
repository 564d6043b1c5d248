"""The end of a fit: the last version has the weights that the model has when `fit` returns."""

from __future__ import annotations

import gc
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from paramsync.errors import PublishError
from paramsync.keras import PublishCallback
from tests.publishing.test_keras import X, Y, fit, network, steps_of


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


def test_an_end_that_another_callback_interrupts_leaves_the_store_free_once_it_is_forgotten(tmp_path: Path) -> None:
    class Failing(keras.callbacks.Callback):
        def on_train_end(self, logs: Any = None) -> None:
            raise ZeroDivisionError

    model = model_of_one_layer()
    with pytest.raises(ZeroDivisionError):
        fit(model, PublishCallback(tmp_path), callbacks=[PublishCallback(tmp_path), Failing()])
    gc.collect()
    fit(model, PublishCallback(tmp_path))


def test_an_end_that_cannot_be_published_is_raised_by_the_fit(tmp_path: Path) -> None:
    class Spoiling(keras.callbacks.Callback):
        def on_train_end(self, logs: Any = None) -> None:
            self.model.set_weights([np.full_like(one, np.nan) for one in self.model.get_weights()])

    model, publishing = model_of_one_layer(), PublishCallback(tmp_path, every_seconds=3600, on_error="raise")
    with pytest.raises(PublishError, match="NaN"):
        fit(model, publishing, callbacks=[publishing, Spoiling()])
    fit(model_of_one_layer(), PublishCallback(tmp_path))
