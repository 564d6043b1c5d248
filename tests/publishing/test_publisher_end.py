"""The end of publishing: the last step is published once, and who asked is answered."""

from __future__ import annotations

from pathlib import Path

import pytest
import tensorflow as tf

from paramsync.errors import RequestError
from paramsync.publishing.publisher import Publisher
from paramsync.publishing.schedule import PublishSchedule
from paramsync.store.store import Store
from tests.support.training import EVERY_STEP, ON_REQUEST, Counters


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
    """All that were begun: one may be overtaken by the next."""
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
