"""PublishSchedule and step numbers, as tables."""

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
from paramsync.publishing.schedule import Moment, PublishSchedule, step_number
from tests.support.training import Counters

STEPS = PublishSchedule(every_steps=10)
SECONDS = PublishSchedule(every_seconds=2.0)
BOTH = PublishSchedule(every_steps=10, every_seconds=2.0)
NEITHER = PublishSchedule()
LAST = Moment(100, 50.0)


@pytest.mark.parametrize(
    ("schedule", "step", "now", "due"),
    [
        (STEPS, 109, 1e9, False),
        (STEPS, 110, 50.0, True),
        (STEPS, 119, 50.0, True),
        (SECONDS, 10**9, 51.9, False),
        (SECONDS, 101, 52.0, True),
        (BOTH, 109, 51.9, False),
        (BOTH, 110, 51.9, True),
        (BOTH, 101, 52.0, True),
        (NEITHER, 10**9, 1e9, False),
        (SECONDS, 100, 1e9, False),  # the same step again has nothing new
        (STEPS, 99, 50.0, True),  # training was set back
        (SECONDS, 99, 50.0, False),
    ],
)
def test_a_publication_is_due_after_so_many_steps_or_seconds(
    schedule: PublishSchedule, step: int, now: float, due: bool
) -> None:
    assert schedule.due(step, now, since=LAST) is due


@pytest.mark.parametrize(
    ("at_start", "empty", "due"),
    [(None, True, True), (None, False, False), (True, False, True), (False, True, False)],
)
def test_the_first_step_seen_is_due_where_the_store_is_empty_or_the_start_is_wanted(
    at_start: bool | None, empty: bool, due: bool
) -> None:
    assert PublishSchedule(every_steps=10, at_start=at_start).due(7, 0.0, since=None, empty=empty) is due


@pytest.mark.parametrize(
    ("at_end", "published", "due"), [(True, 9, True), (True, None, True), (True, 10, False), (False, 9, False)]
)
def test_the_end_is_due_unless_it_is_published_already(at_end: bool, published: int | None, due: bool) -> None:
    assert PublishSchedule(every_steps=10, at_end=at_end).due_at_end(10, published=published) is due


@pytest.mark.parametrize("value", [0, -1, float("nan")])
def test_a_schedule_of_zero_or_less_is_refused_by_name(value: float) -> None:
    with pytest.raises(SettingsError, match="every_seconds: expected a number above 0, found"):
        PublishSchedule(every_seconds=value)
    with pytest.raises(SettingsError, match="every_steps: expected a number above 0, found 0"):
        PublishSchedule(every_steps=0)


def counters() -> list[Any]:
    """The step 7 in each form that a training loop may have."""
    variables = [tf.Variable(7, dtype=tf.int64), keras.Variable(7, dtype="int64", trainable=False)]
    return [7, np.int64(7), np.uint8(7), np.array(7), jnp.array(7), tf.constant(7), *variables]


def test_a_step_is_a_whole_number_of_any_framework() -> None:
    found = [step_number(one) for one in counters()]
    assert found == [7] * len(found)
    assert {type(one) for one in found} == {int}


@pytest.mark.parametrize("step", [-1, 10**18, 3.0, "7", None, np.array([7]), tf.constant(7.0)], ids=repr)
def test_what_is_no_step_is_refused_and_changes_nothing(tmp_path: Path, step: Any) -> None:
    schedule = PublishSchedule(at_start=False, at_end=False)
    with Publisher(tmp_path, Counters(), schedule=schedule) as publisher:
        asked = publisher.request()
        for call in (publisher.publish_if_due, publisher.publish, publisher.finish):
            with pytest.raises(SettingsError, match="step: expected a whole number"):
                call(step)
        publisher.publish_if_due(5)
        assert asked.result(60).number == 5
