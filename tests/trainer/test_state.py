"""A training state comes back bit for bit, is what TensorFlow would save, and consists of variables."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from paramsync.errors import SettingsError
from paramsync.publishing.job import Job
from tests.support.states import adam_job, content, job, restored, saved, state_of


def test_nothing_is_restored_where_nothing_was_saved(tmp_path: Path) -> None:
    one = job()
    assert not restored(tmp_path / "new", one)
    assert int(one.step) == 0


def test_training_goes_on_where_it_was_saved_last(tmp_path: Path) -> None:
    saved(tmp_path, 3, 5)
    one = job()
    with state_of(tmp_path, one) as state:
        assert state.restore()
        assert (state.saved, state.error) == (5, None)
    assert int(one.step) == 5
    np.testing.assert_array_equal(one.model.weights, np.full(1000, 5))


def test_model_optimizer_random_numbers_and_step_come_back_bit_for_bit(tmp_path: Path) -> None:
    one, other = adam_job(1), adam_job(2)
    with state_of(tmp_path, one) as state:
        for _ in range(3):
            one.train_step()
        one.state["random"].normal([5])
        state.finish(3)
    assert restored(tmp_path, other)
    wanted, found = content(one), content(other)
    assert len(wanted) == len(found) > 12
    for (name, value), again in zip(wanted.items(), found.values(), strict=True):
        np.testing.assert_array_equal(value, again, err_msg=name)


def test_what_is_saved_is_what_tensorflow_would_save(tmp_path: Path) -> None:
    one = adam_job(1)
    one.train_step()
    with state_of(tmp_path / "ours", one) as state:
        state.finish(1)
    stock = tf.train.Checkpoint(model=one.model, step=one.step, **one.state).save(str(tmp_path / "stock"))
    readers = [tf.train.load_checkpoint(where) for where in (str(tmp_path / "ours"), stock)]
    ours, theirs = (reader.get_variable_to_shape_map() for reader in readers)
    assert ours == theirs
    for name in ours:
        if name != "_CHECKPOINTABLE_OBJECT_GRAPH" and "save_counter" not in name:
            found, wanted = (reader.get_tensor(name) for reader in readers)
            np.testing.assert_array_equal(found, wanted, err_msg=name)


def test_stock_tensorflow_restores_the_state(tmp_path: Path) -> None:
    one, other = adam_job(1), adam_job(2)
    one.train_step()
    with state_of(tmp_path, one) as state:
        state.finish(1)
    prefix = tf.train.latest_checkpoint(tmp_path)
    stock = tf.train.Checkpoint(model=other.model, step=other.step, **other.state)
    stock.restore(prefix).assert_existing_objects_matched().assert_consumed()
    for value, again in zip(content(one).values(), content(other).values(), strict=True):
        np.testing.assert_array_equal(value, again)


def test_the_variables_of_a_distribution_strategy_are_saved_once_and_restored(tmp_path: Path) -> None:
    def mirrored(seed: int) -> Job:
        with tf.distribute.MirroredStrategy(["CPU:0"]).scope():
            return adam_job(seed)

    one, other = mirrored(1), mirrored(2)
    one.step.assign(5)
    with state_of(tmp_path, one) as state:
        state.finish(5)
        assert state.error is None
    with state_of(tmp_path, other) as state:
        assert state.restore()
        assert state.saved == 5
    for value, again in zip(one.model.get_weights(), other.model.get_weights(), strict=True):
        np.testing.assert_array_equal(value, again)


def test_a_model_with_a_table_is_saved_without_it(tmp_path: Path) -> None:
    def with_table() -> Job:
        one = job()
        one.model.table = tf.lookup.experimental.MutableHashTable(tf.string, tf.int64, default_value=-1)
        return one

    one = with_table()
    one.train_step()
    with state_of(tmp_path, one) as state:
        state.finish(1)
    again = with_table()
    assert restored(tmp_path, again)
    assert int(again.step) == 1


def iterator() -> Any:
    return iter(tf.data.Dataset.range(3))


@pytest.mark.parametrize(
    ("state", "message"),
    [
        (iterator, r"Job.state\['more'\]: expected variables, .* found OwnedIterator"),
        (lambda: tf.train.Checkpoint(a=tf.Variable(1), b=iterator()), "found OwnedIterator"),
        (tf.compat.v1.train.AdamOptimizer, "found AdamOptimizer"),
        (lambda: 7, r"Job.state: expected variables, .* says: .*got 7"),
        (tf.Module, "found Module"),
        (keras.optimizers.Adam, r"'more' has an optimizer \(adam.*call its build"),
    ],
)
def test_a_state_that_variables_are_not_all_of_is_refused(
    tmp_path: Path, state: Callable[[], Any], message: str
) -> None:
    one = job()
    more = Job(model=one.model, step=one.step, train_step=one.train_step, state={"more": state()})
    with pytest.raises(SettingsError, match=message):
        restored(tmp_path, more)


def test_a_compiled_model_whose_optimizer_is_not_built_is_refused(tmp_path: Path) -> None:
    model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(1)])
    model.compile("adam", "mse")
    one = Job(model=model, step=tf.Variable(0), train_step=lambda: tf.zeros([]))
    with pytest.raises(SettingsError, match=r"'model' has an optimizer .* first"):
        restored(tmp_path, one)
