"""A failed publication does not stop training; with on_error="raise" its error is raised once."""

from __future__ import annotations

import contextlib
import shutil
from pathlib import Path
from typing import Any

import keras
import ml_dtypes
import numpy as np
import pytest

from paramsync.errors import GraphError, ParameterError, PublishError, SettingsError
from paramsync.publishing.publisher import Publisher
from paramsync.publishing.schedule import PublishSchedule
from paramsync.store.store import Store
from tests.support.givens import Affine, put, values
from tests.support.training import EVERY_STEP, TIMEOUT, Counters, latest


def test_training_survives_a_store_that_goes_away_and_publishes_when_it_is_back(tmp_path: Path) -> None:
    store = tmp_path / "store"
    with Publisher(store, Counters(), schedule=EVERY_STEP) as publisher:
        publisher.publish(1, wait=True)
        shutil.rmtree(store)
        store.touch()
        publisher.publish_if_due(2)
        assert publisher.flush(TIMEOUT)
        error = publisher.status().last_error
        assert error is not None
        assert str(store) in error
        store.unlink()
        store.mkdir()
        publisher.publish(3, wait=True)
        assert publisher.status().last_error is None
    latest = Store(store).latest()
    assert latest is not None
    assert latest.step == 3


def test_an_error_is_raised_at_the_next_call_where_that_is_wanted(tmp_path: Path) -> None:
    store = tmp_path / "store"
    schedule = PublishSchedule(every_steps=1, at_end=False)
    with Publisher(store, Counters(), schedule=schedule, on_error="raise") as publisher:
        shutil.rmtree(store)
        store.touch()
        publisher.publish_if_due(1)
        with pytest.raises(PublishError, match="an earlier publication failed"):
            publisher.flush(TIMEOUT)
        assert publisher.flush(TIMEOUT)


def test_leaving_the_block_raises_where_the_last_step_cannot_be_published(tmp_path: Path) -> None:
    store = tmp_path / "store"
    schedule = PublishSchedule(at_start=False)
    with contextlib.ExitStack() as block:
        publisher = block.enter_context(Publisher(store, Counters(), schedule=schedule, on_error="raise"))
        publisher.publish_if_due(1)
        shutil.rmtree(store)
        store.touch()
        with pytest.raises(PublishError, match="an earlier publication failed"):
            block.close()
    store.unlink()
    Publisher(store, Counters(), schedule=schedule).close()  # it was given up all the same


def test_a_model_that_is_not_built_is_refused_and_leaves_the_store_free(tmp_path: Path) -> None:
    with pytest.raises(GraphError, match="build it"):
        Publisher(tmp_path, keras.Sequential([keras.layers.Dense(1)]), schedule=EVERY_STEP)
    Publisher(tmp_path, Counters(), schedule=EVERY_STEP).close()


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


def test_nan_that_was_waited_for_is_not_refused_again_at_the_end(tmp_path: Path) -> None:
    put(tmp_path, Affine())
    with Publisher.of_graph(tmp_path, on_error="raise") as publisher, pytest.raises(PublishError, match="NaN"):
        publisher.publish(1, values=NAN, wait=True)
    assert Store(tmp_path).latest() is None


def test_a_store_that_cannot_be_written_is_logged_once_and_then_counted(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store = tmp_path / "store"
    with Publisher(store, Counters()) as publisher:
        shutil.rmtree(store)
        store.touch()
        for step in range(1, 31):
            with pytest.raises(PublishError):
                publisher.publish(step, wait=True)
        store.unlink()
        publisher.publish(31, wait=True)
    first, tenth, last = [record.getMessage() for record in caplog.records if record.name == "paramsync.trainer"]
    assert first.startswith(f"a publication failed, training goes on: store {store}: ")
    assert tenth == f"{first} (failure 10 of this kind in a row)"
    assert last == "version 31 is published, after 30 failures in a row"
