"""A failure that the caller was told of, and caught, is not raised once more where the block is left."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import tensorflow as tf

from paramsync.errors import ParameterError, PublishError, SettingsError
from paramsync.publishing.publisher import Publisher
from paramsync.publishing.schedule import PublishSchedule
from paramsync.session import SessionPublisher
from paramsync.store.store import Store
from tests.support.givens import Affine, put, values
from tests.support.training import EVERY_STEP, TIMEOUT, Counters, latest

NAN = values() | {"shift_of_all": np.full(4, np.nan, ml_dtypes.bfloat16)}


@pytest.mark.parametrize("given", [{}, values() | {"more": 1}, None])
@pytest.mark.parametrize("on_error", ["log", "raise"])
def test_values_that_were_refused_are_not_refused_again_at_the_end(tmp_path: Path, given: Any, on_error: Any) -> None:
    put(tmp_path, Affine())
    with Publisher.of_graph(tmp_path, schedule=EVERY_STEP, on_error=on_error) as publisher:
        publisher.publish(1, values=values(), wait=True)
        with pytest.raises((ParameterError, SettingsError)):
            publisher.publish_if_due(2, values=given)
        with pytest.raises((ParameterError, SettingsError)):
            publisher.publish(3, values=given)
    assert latest(tmp_path).step == 1


def test_a_step_after_the_refused_one_is_published_at_the_end(tmp_path: Path) -> None:
    put(tmp_path, Affine())
    with Publisher.of_graph(tmp_path, schedule=PublishSchedule(every_steps=2)) as publisher:
        publisher.publish_if_due(1, values=values())
        with pytest.raises(ParameterError):
            publisher.publish_if_due(3, values={})
        publisher.publish_if_due(4, values=values(2.0))
    assert latest(tmp_path).step == 4


def test_nan_that_was_waited_for_is_not_refused_again_at_the_end(tmp_path: Path) -> None:
    put(tmp_path, Affine())
    with Publisher.of_graph(tmp_path, on_error="raise") as publisher, pytest.raises(PublishError, match="NaN"):
        publisher.publish(1, values=NAN, wait=True)
    assert Store(tmp_path).latest() is None


def test_nan_that_was_raised_later_is_not_refused_again_at_the_end(tmp_path: Path) -> None:
    put(tmp_path, Affine())
    with Publisher.of_graph(tmp_path, on_error="raise") as publisher:
        publisher.publish(1, values=NAN)
        with pytest.raises(PublishError, match="an earlier publication failed: NaN"):
            publisher.flush(TIMEOUT)
    assert publisher.status().refused == 2


def test_nan_of_another_step_is_raised_at_the_end(tmp_path: Path) -> None:
    put(tmp_path, Affine())
    block = contextlib.ExitStack()
    publisher = block.enter_context(Publisher.of_graph(tmp_path, on_error="raise"))
    with pytest.raises(PublishError, match="NaN"):
        publisher.publish(1, values=NAN, wait=True)
    publisher.publish_if_due(2, values=NAN)
    with pytest.raises(PublishError, match="an earlier publication failed: NaN"):
        block.close()


def test_a_model_that_was_mended_after_it_was_refused_is_published_at_the_end(tmp_path: Path) -> None:
    model = Counters()
    with Publisher(tmp_path, model, schedule=EVERY_STEP, on_error="raise") as publisher:
        model.many[0].assign(tf.fill([1, 257], float("nan")))
        with pytest.raises(PublishError, match="NaN"):
            publisher.publish(1, wait=True)
        model.many[0].assign(tf.ones([1, 257]))
    assert latest(tmp_path).step == 1


def test_a_session_that_was_closed_too_early_is_told_of_once(tmp_path: Path) -> None:
    with tf.Graph().as_default():
        x = tf.compat.v1.placeholder(tf.float32, [None, 4], "x")
        y = tf.matmul(x, tf.compat.v1.get_variable("w", [4, 1]))
        with SessionPublisher(tmp_path, x, y, schedule=EVERY_STEP) as publisher:
            with tf.compat.v1.Session() as session:
                session.run(tf.compat.v1.global_variables_initializer())
                publisher.publish_session(session, 1, wait=True)
            with pytest.raises(PublishError, match="session is closed"):
                publisher.publish_session(session, 2)
    assert latest(tmp_path).step == 1
