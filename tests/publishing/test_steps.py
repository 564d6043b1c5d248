"""What a training loop may count its steps with, and what becomes of a step that is none."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax.numpy as jnp
import keras
import numpy as np
import pytest
import tensorflow as tf

from paramsync.errors import SettingsError
from paramsync.publishing.publisher import Publisher
from paramsync.publishing.schedule import PublishSchedule, step_number
from paramsync.store.store import Store


class Affine(tf.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale = tf.Variable(tf.ones([4]))

    @tf.function(input_signature=[tf.TensorSpec([4], name="x")])
    def __call__(self, x: tf.Tensor) -> tf.Tensor:
        return x * self.scale


def counters() -> list[Any]:
    """Seven, as loops have it."""
    variables = [tf.Variable(7, dtype=tf.int64), keras.Variable(7, dtype="int64", trainable=False)]
    return [7, np.int64(7), np.uint8(7), np.array(7), jnp.array(7), tf.constant(7), *variables]


def test_a_step_is_a_whole_number_of_any_framework() -> None:
    found = [step_number(one) for one in counters()]
    assert found == [7] * len(found)
    assert {type(one) for one in found} == {int}


def test_every_kind_of_step_is_published(tmp_path: Path) -> None:
    for at, step in enumerate(counters()):
        with Publisher(tmp_path / str(at), Affine(), schedule=PublishSchedule(every_steps=1)) as publisher:
            publisher.publish_if_due(step)
        with Publisher(tmp_path / str(at), Affine(), schedule=PublishSchedule(at_end=False)) as publisher:
            publisher.publish(step, wait=True)
            publisher.finish(step)
        assert [one.step for one in Store(tmp_path / str(at)).versions()] == [7, 7]


NONE = (
    -1,
    10**18,
    2**63,
    3.0,
    float("inf"),
    "7",
    None,
    np.float32(7),
    np.array([7]),
    np.array([7, 8]),
    tf.constant(7.0),
)


@pytest.mark.parametrize("step", NONE, ids=repr)
def test_what_is_no_step_is_refused_and_changes_nothing(tmp_path: Path, step: Any) -> None:
    schedule = PublishSchedule(at_start=False, at_end=False)
    with Publisher(tmp_path, Affine(), schedule=schedule) as publisher:
        asked = publisher.request()
        for call in (publisher.publish_if_due, publisher.publish, publisher.finish):
            with pytest.raises(SettingsError, match="step: expected a whole number"):
                call(step)
        publisher.publish_if_due(5)
        assert asked.result(60).number == 5
