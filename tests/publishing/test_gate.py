"""A gate holds back steps with worse metrics, in fits and loops and at their end."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import keras
import pytest
import tensorflow as tf

from paramsync.errors import SettingsError
from paramsync.keras import PublishCallback
from paramsync.publishing.metrics import Gate
from paramsync.publishing.publisher import Publisher
from paramsync.store.store import Store
from tests.publishing.test_keras import Unhurried, X, Y, fit, network, steps_of
from tests.support.training import EVERY_STEP, TIMEOUT, Counters


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
