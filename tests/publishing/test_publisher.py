"""Publisher: every version has the values of one step, when its schedule says; the last step is published."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax.numpy as jnp
import keras
import numpy as np
import pytest
import tensorflow as tf

from paramsync.errors import RequestError, SettingsError
from paramsync.graphs.capturing import capture
from paramsync.publishing.metrics import Meter
from paramsync.publishing.publisher import Publisher
from paramsync.publishing.schedule import Moment, PublishSchedule, step_number
from paramsync.publishing.write_behind import MetricReader
from paramsync.store.store import Store
from paramsync.version import Version
from tests.support.training import EVERY_STEP, ON_REQUEST, Counters


def test_every_published_version_has_the_values_of_exactly_one_step(tmp_path: Path) -> None:
    model = Counters()
    seen: list[tuple[int, set[float]]] = []

    def look(version: Version) -> None:
        reader = tf.train.load_checkpoint(str(tmp_path / version.prefix))
        names = [name for name in reader.get_variable_to_shape_map() if name.endswith("VARIABLE_VALUE")]
        assert len(names) == 5
        seen.append((version.step, {float(value) for name in names for value in np.unique(reader.get_tensor(name))}))

    with Publisher(tmp_path, model, schedule=EVERY_STEP) as publisher:
        publisher.subscribe(look)
        publisher.publish_if_due(0)
        for step in range(1, 601):
            model.train()
            publisher.publish_if_due(step)
        publisher.finish(600)
        status = publisher.status()
    assert status.last_error is None
    assert len(seen) == status.publishes > 5
    assert status.publishes + status.skipped == 601
    assert seen == [(step, {float(step)}) for step, _ in seen]
    assert [step for step, _ in seen] == sorted({step for step, _ in seen})
    assert seen[-1][0] == 600


def test_what_is_not_trained_is_not_written_again_until_it_is_trained(tmp_path: Path) -> None:
    model = Counters()
    *trained, frozen = model.many
    with Publisher(tmp_path, model, schedule=EVERY_STEP, keep=2) as publisher:
        for step in range(12):
            for one in trained if step != 6 else model.many:
                one.assign_add(tf.ones_like(one))
            version = publisher.publish(step, wait=True)
            share = version.bytes_written / version.bytes
            assert share > 0.99 if step in (0, 6) else share < 0.15
            reader = tf.train.load_checkpoint(str(tmp_path / version.prefix))
            for at, one in enumerate(model.many):
                found = reader.get_tensor(f"many/{at}/.ATTRIBUTES/VARIABLE_VALUE")
                assert np.array_equal(found, one.numpy()), (step, at)
    assert (frozen.numpy() == 1).all()


def test_a_metric_that_is_no_number_costs_no_version(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with Publisher(tmp_path, Counters(), schedule=EVERY_STEP) as publisher:
        for step in (1, 2):
            metrics = {"loss": step / 2, "confusion": tf.ones([2, 2]), "name": "x"}
            published = publisher.publish(step, wait=True, metrics=metrics)
    assert published.metrics == {"loss": 1.0}
    assert publisher.status().last_error is None
    warned = [record.getMessage() for record in caplog.records]
    assert [text.partition(" is left out")[0] for text in warned] == ["metric 'confusion'", "metric 'name'"]


def test_a_step_lower_than_the_one_before_gets_a_number_above_and_one_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with Publisher(tmp_path, Counters(), schedule=PublishSchedule(every_steps=10)) as publisher:
        publisher.publish(100, wait=True)
        for step in (40, 30):
            publisher.publish(step, wait=True)
        assert publisher.publish_if_due(35) is None
        assert publisher.publish_if_due(20) is not None  # set back again
    found = [(version.number, version.step) for version in Store(tmp_path).versions()]
    assert found[:3] == [(100, 100), (101, 40), (102, 30)]
    assert found[-1] == (103, 20)
    warned = [record.getMessage() for record in caplog.records]
    assert warned == ["step 40 is published after step 100: versions go on rising, and say the step as it is given"]


def test_a_capture_without_variables_is_refused(tmp_path: Path) -> None:
    tf.saved_model.save(Counters(), str(tmp_path / "saved"))
    with pytest.raises(SettingsError, match=r"no live variables.*Publisher\.of_graph"):
        Publisher(tmp_path / "store", capture(tmp_path / "saved"), schedule=EVERY_STEP)
    assert not (tmp_path / "store").exists()


def test_averages_are_published_in_place_of_variables(tmp_path: Path) -> None:
    model = Counters()
    average = tf.train.ExponentialMovingAverage(0.5)
    average.apply(model.many)
    schedule = PublishSchedule(every_steps=1)
    with Publisher(tmp_path, model, schedule=schedule, averages=average.average) as publisher:
        model.train()
        average.apply(model.many)
        publisher.publish(1, wait=True)
    reader = tf.train.load_checkpoint(str(tmp_path))
    for at, one in enumerate(model.many):
        assert (reader.get_tensor(f"many/{at}/.ATTRIBUTES/VARIABLE_VALUE") == average.average(one).numpy()).all()
        assert (average.average(one).numpy() == 0.5).all()
    assert reader.get_tensor("step/.ATTRIBUTES/VARIABLE_VALUE") == 1


@pytest.mark.parametrize("name", ["two\nlines", "\udcff", "x" * 201, None])
def test_one_with_a_name_that_no_record_takes_is_left_out_with_one_warning(
    name: Any, caplog: pytest.LogCaptureFixture
) -> None:
    reader = MetricReader()
    for _ in range(2):
        assert reader.read({name: 1.0, "loss": 0.5, "é/ü": 2}) == {"loss": 0.5, "é/ü": 2.0}
    (record,) = caplog.records
    assert "expected a name of at most 200 characters that can be shown" in record.getMessage()
    assert record.getMessage().isprintable()
    assert len(record.getMessage()) < 400


def test_the_speed_of_a_training_that_goes_on_counts_from_its_first_step() -> None:
    meter = Meter()
    meter.advance(1_000_000, None, 50.0)
    assert meter.steps_per_second == 0
    meter.advance(1_000_020, None, 52.0)
    assert (meter.step, meter.steps_per_second) == (1_000_020, 10.0)


# The end of publishing ------------------------------------------------------------------------------------------------


def test_leaving_the_block_publishes_the_last_step(tmp_path: Path) -> None:
    model = Counters()
    with Publisher(tmp_path, model, schedule=PublishSchedule(every_seconds=3600)) as publisher:
        for step in range(1, 6):
            model.train()
            publisher.publish_if_due(step, {"loss": step / 2})
    latest = Store(tmp_path).latest()
    assert latest is not None
    assert (latest.step, latest.metrics) == (5, {"loss": 2.5})
    assert tf.train.load_checkpoint(str(tmp_path)).get_tensor("step/.ATTRIBUTES/VARIABLE_VALUE") == 5
    assert publications(publisher) == 2


def publications(publisher: Publisher) -> int:
    """The number of publications that began, including those that a newer one overtook."""
    return publisher.status().publishes + publisher.status().skipped


def test_leaving_the_block_publishes_nothing_twice(tmp_path: Path) -> None:
    with Publisher(tmp_path, Counters(), schedule=EVERY_STEP) as publisher:
        publisher.publish_if_due(1)
    assert publisher.status().publishes == 1
    with Publisher(tmp_path, Counters(), schedule=PublishSchedule(every_steps=10)) as publisher:
        publisher.publish_if_due(3)
        publisher.publish(4)
    assert (publications(publisher), step_of_latest(tmp_path)) == (1, 4)
    with Publisher(tmp_path, Counters(), schedule=PublishSchedule(every_steps=10, at_start=False)) as publisher:
        publisher.publish_if_due(5)
        publisher.finish(6)
    assert (publisher.status().publishes, step_of_latest(tmp_path)) == (1, 6)


def test_an_error_in_the_block_publishes_nothing_more(tmp_path: Path) -> None:
    def train(publisher: Publisher) -> None:
        with publisher:
            publisher.publish_if_due(1)
            publisher.publish_if_due(2)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        train(Publisher(tmp_path, Counters(), schedule=PublishSchedule(every_steps=10)))
    assert step_of_latest(tmp_path) == 1


def step_of_latest(store: Path) -> int | None:
    latest = Store(store).latest()
    return None if latest is None else latest.step


def test_finish_answers_who_asked_and_then_refuses(tmp_path: Path) -> None:
    with Publisher(tmp_path, Counters(), schedule=ON_REQUEST) as publisher:
        future = publisher.request()
        publisher.finish(5)
        assert future.result(0).step == 5
        with pytest.raises(RequestError, match="training has stopped"):
            publisher.request()


def test_close_publishes_nothing_and_answers_who_asked(tmp_path: Path) -> None:
    publisher = Publisher(tmp_path, Counters(), schedule=EVERY_STEP)
    future = publisher.request()
    publisher.close()
    publisher.close()
    with pytest.raises(RequestError, match="training has stopped"):
        future.result(0)
    assert Store(tmp_path).latest() is None


def test_leaving_the_block_publishes_values_that_changed_after_their_step_was_published(tmp_path: Path) -> None:
    model = Counters()
    with Publisher(tmp_path, model, schedule=EVERY_STEP) as publisher:
        publisher.publish(1, wait=True)
        model.train()
    assert (publisher.status().publishes, step_of_latest(tmp_path)) == (2, 1)
    assert tf.train.load_checkpoint(str(tmp_path)).get_tensor("step/.ATTRIBUTES/VARIABLE_VALUE") == 1


def test_a_version_names_the_moment_at_which_followers_are_to_serve_it(tmp_path: Path) -> None:
    with Publisher(tmp_path, Counters(), schedule=ON_REQUEST, serve_after=2.0) as publisher:
        version = publisher.publish(1, wait=True)
    assert version.committed_at is not None
    assert version.serve_at == version.committed_at + 2.0
    assert Store(tmp_path).find(1) == version
    with Publisher(tmp_path, Counters(), schedule=ON_REQUEST) as publisher:
        assert publisher.publish(2, wait=True).serve_at is None


@pytest.mark.parametrize("seconds", [-1.0, 3601.0, float("nan")])
def test_a_moment_that_followers_would_not_wait_for_is_refused(tmp_path: Path, seconds: float) -> None:
    with pytest.raises(SettingsError, match=r"serve_after: expected from 0 to 3600 seconds, found"):
        Publisher(tmp_path, Counters(), serve_after=seconds)


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
