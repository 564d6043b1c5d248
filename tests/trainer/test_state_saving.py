"""Training goes on while its state is saved; what diverged or fails to be written replaces no earlier state."""

from __future__ import annotations

import logging
import shutil
import threading
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from paramsync.publishing.job import Job
from paramsync.store.commit import StoreWriter
from tests.support.states import adam_job, content, job, newest, restored, saved, state_of
from trainer.state import TrainingState


class Gate:
    """Holds the writing of a training state until it is opened."""

    def __init__(self, store: StoreWriter, monkeypatch: pytest.MonkeyPatch) -> None:
        self.reached, self.opened = threading.Event(), threading.Event()
        commit = store.commit

        def held(*arguments: Any, **more: Any) -> Any:
            self.reached.set()
            assert self.opened.wait(30)
            return commit(*arguments, **more)

        monkeypatch.setattr(store, "commit", held)


def test_training_goes_on_while_a_state_is_written_which_keeps_the_values_of_its_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, other = adam_job(1), adam_job(2)
    one.train_step()
    wanted = content(one)
    with StoreWriter(tmp_path, keep=2) as store, closing(TrainingState(store, tmp_path, one)) as state:
        gate = Gate(store, monkeypatch)
        assert state.save(1)
        assert gate.reached.wait(30)
        for _ in range(5):
            one.train_step()
        assert not state.save(6), "one at a time"
        assert state.saved is None
        gate.opened.set()
        state.finish()
        assert state.saved == 1
    assert restored(tmp_path, other)
    found = content(other)
    for name, again in zip(wanted, found.values(), strict=True):
        if not name.endswith("StateVar"):
            np.testing.assert_array_equal(wanted[name], again, err_msg=name)


def test_a_model_that_diverged_is_not_saved_over_one_that_had_not(tmp_path: Path) -> None:
    one = job()
    with StoreWriter(tmp_path, keep=2) as store, closing(TrainingState(store, tmp_path, one)) as state:
        one.train_step()
        state.finish(1)
        weight = one.model.trainable_variables[0]
        weight.assign(tf.fill(weight.shape, float("nan")))
        state.finish(2)
        assert state.saved == 1
        assert state.error is not None
        assert "NaN or infinity in model/" in state.error
    again = job()
    assert restored(tmp_path, again)
    assert all(np.isfinite(one.numpy()).all() for one in again.model.trainable_variables)


def test_a_model_that_diverged_is_saved_where_that_is_allowed(tmp_path: Path) -> None:
    one = job()
    weight = one.model.trainable_variables[0]
    weight.assign(tf.fill(weight.shape, float("inf")))
    with StoreWriter(tmp_path, keep=2) as store, closing(TrainingState(store, tmp_path, one, allow_nan=True)) as state:
        state.finish(1)
        assert (state.saved, state.error) == (1, None)


def test_the_end_waits_for_the_save_under_way_and_saves_the_last_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = job()
    with StoreWriter(tmp_path, keep=2) as store, closing(TrainingState(store, tmp_path, one)) as state:
        gate = Gate(store, monkeypatch)
        one.train_step()
        state.save(1)
        one.train_step()
        waiting = threading.Timer(0.1, gate.opened.set)
        waiting.start()
        state.finish(2)
        waiting.join()
        assert state.saved == 2
    again = job()
    assert restored(tmp_path, again)
    assert int(again.step) == 2


def test_a_step_that_is_saved_is_not_saved_again(tmp_path: Path) -> None:
    saved(tmp_path, 3)
    before = newest(tmp_path, ".index").stat().st_mtime_ns
    one = job()
    with state_of(tmp_path, one) as state:
        state.restore()
        assert state.save(3)
        state.finish(3)
    assert newest(tmp_path, ".index").stat().st_mtime_ns == before
    assert len(list(tmp_path.glob("*.index"))) == 1


def test_the_two_newest_states_are_kept(tmp_path: Path) -> None:
    saved(tmp_path, 1, 2, 3, 4)
    assert sorted(path.name for path in tmp_path.glob("*.index")) == ["ckpt-3.index", "ckpt-4.index"]


def test_a_save_that_fails_is_logged_and_the_next_one_works(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    directory = tmp_path / "state"
    one = job()
    with state_of(directory, one) as state:
        one.train_step()
        shutil.rmtree(directory)
        directory.touch()
        with caplog.at_level(logging.ERROR):
            state.finish(1)
        assert "training state was not saved, training goes on" in caplog.text
        assert state.error is not None
        assert str(directory) in state.error
        directory.unlink()
        state.finish(1)
        assert state.saved == 1
        assert not state.error
    again = job()
    assert restored(directory, again)
    assert int(again.step) == 1


def growing() -> Job:
    """A job whose optimizer and model can get more variables."""
    model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(4)])
    optimizer = keras.optimizers.Adam()
    optimizer.build(model.trainable_variables)
    module = tf.Module()
    module.weights = tf.Variable(tf.zeros([3]))
    state = {"optimizer": optimizer, "module": module}
    return Job(model=model, step=tf.Variable(0, dtype=tf.int64), train_step=lambda: tf.zeros([]), state=state)


def more_layers(one: Job) -> None:
    one.model.add(keras.layers.Dense(2))


def more_variables(one: Job) -> None:
    one.state["module"].more = [tf.Variable(tf.ones([5]))]


def more_slots(one: Job) -> None:
    optimizer = one.state["optimizer"]
    optimizer.built = False
    optimizer.build([keras.Variable(np.ones([7], np.float32), name="other")])


@pytest.mark.parametrize("grow", [more_layers, more_variables, more_slots])
def test_variables_that_a_job_gets_while_it_trains_are_saved_and_restored(
    tmp_path: Path, grow: Callable[[Job], None]
) -> None:
    one, other = growing(), growing()
    with state_of(tmp_path, one) as state:
        state.finish(1)
        first = set(tf.train.load_checkpoint(tf.train.latest_checkpoint(tmp_path)).get_variable_to_shape_map())
        grow(one)
        for number, variable in enumerate(variables_of(one)):
            variable.assign(tf.fill(variable.shape, tf.cast(number, variable.dtype)))
        state.finish(2)
        assert (state.saved, state.error) == (2, None)
    second = set(tf.train.load_checkpoint(tf.train.latest_checkpoint(tmp_path)).get_variable_to_shape_map())
    assert first != second
    grow(other)
    assert restored(tmp_path, other)
    for number, variable in enumerate(variables_of(other)):
        np.testing.assert_array_equal(variable, np.full(variable.shape, number), err_msg=variable.name)


def variables_of(one: Job) -> list[tf.Variable]:
    """All of them; what counts steps apart."""
    return [
        *(variable.value for variable in one.model.variables),
        *(variable.value for variable in one.state["optimizer"].variables),
        *one.state["module"].variables,
    ]


def test_a_state_that_came_to_have_more_than_variables_is_a_save_that_failed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    one = growing()
    with state_of(tmp_path, one) as state:
        state.finish(1)
        one.state["module"].more = iter(tf.data.Dataset.range(3))
        state.finish(2)
        assert state.saved == 1
        assert "Job.state['module']: expected variables" in (state.error or "")
        assert "training state was not saved, training goes on" in caplog.text
        del one.state["module"].more
        state.finish(3)
        assert (state.saved, state.error) == (3, None)
