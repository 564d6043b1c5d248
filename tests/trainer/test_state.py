"""A training state is restored bit for bit; a damaged one is skipped; training goes on while one is saved."""

from __future__ import annotations

import logging
import shutil
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from paramsync.errors import SettingsError, UnreadableError
from paramsync.publishing.job import Job
from paramsync.store.commit import StoreWriter
from tests.support.troubles import as_nobody
from trainer.state import TrainingState


def job(size: int = 1000) -> Job:
    module = tf.Module()
    module.weights = tf.Variable(tf.zeros([size]))
    step = tf.Variable(0, dtype=tf.int64)

    def train_step() -> tf.Tensor:
        module.weights.assign_add(tf.ones([size]))
        step.assign_add(1)
        return tf.reduce_sum(module.weights)

    return Job(model=module, step=step, train_step=train_step)


def adam_job(seed: int) -> Job:
    keras.utils.set_random_seed(seed)
    model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(16), keras.layers.Dense(1)])
    optimizer = keras.optimizers.Adam()
    optimizer.build(model.trainable_variables)
    step = tf.Variable(0, dtype=tf.int64)

    def train_step() -> tf.Tensor:
        gradients = [tf.random.normal(weight.shape) for weight in model.trainable_variables]
        optimizer.apply(gradients, model.trainable_variables)
        step.assign_add(1)
        return tf.reduce_sum(gradients[0])

    generator = tf.random.Generator.from_seed(seed)
    return Job(model=model, step=step, train_step=train_step, state={"optimizer": optimizer, "random": generator})


@contextmanager
def state_of(directory: Path, one: Job) -> Iterator[TrainingState]:
    with StoreWriter(directory, keep=2) as store, closing(TrainingState(store, directory, one)) as state:
        yield state


def restored(directory: Path, one: Job) -> bool:
    with state_of(directory, one) as state:
        return state.restore()


def saved(directory: Path, *steps: int) -> None:
    one = job()
    with state_of(directory, one) as state:
        for step in range(1, max(steps) + 1):
            one.train_step()
            if step in steps:
                state.finish(step)


def newest(directory: Path, suffix: str) -> Path:
    prefix = tf.train.latest_checkpoint(directory)
    return next(Path(prefix).parent.glob(f"{Path(prefix).name}{suffix}*"))


def content(one: Job) -> dict[str, Any]:
    variables = [*one.model.variables, *one.state["optimizer"].variables, one.state["random"].state, one.step]
    return {f"{position} {variable.name}": np.asarray(variable) for position, variable in enumerate(variables)}


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


def test_tensorflow_saves_the_same_and_restores_it(tmp_path: Path) -> None:
    one = adam_job(1)
    one.train_step()
    with state_of(tmp_path / "ours", one) as state:
        state.finish(1)
    other = adam_job(2)
    checkpoint = tf.train.Checkpoint(model=other.model, step=other.step, **other.state)
    restoring = checkpoint.restore(tf.train.latest_checkpoint(tmp_path / "ours"))
    restoring.assert_existing_objects_matched().assert_consumed()
    for value, again in zip(content(one).values(), content(other).values(), strict=True):
        np.testing.assert_array_equal(value, again)
    stock = tf.train.Checkpoint(model=one.model, step=one.step, **one.state).save(str(tmp_path / "stock"))
    readers = [tf.train.load_checkpoint(where) for where in (str(tmp_path / "ours"), stock)]
    ours, theirs = (reader.get_variable_to_shape_map() for reader in readers)
    assert ours == theirs
    for name in ours:
        if name != "_CHECKPOINTABLE_OBJECT_GRAPH" and "save_counter" not in name:
            found, wanted = (reader.get_tensor(name) for reader in readers)
            np.testing.assert_array_equal(found, wanted, err_msg=name)


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


def spoil(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 0xFF
    path.write_bytes(content)


@pytest.mark.parametrize("suffix", [".index", ".data"])
@pytest.mark.parametrize("damage", [Path.unlink, spoil, lambda path: path.write_bytes(b"")])
def test_a_save_that_cannot_be_read_is_passed_over_with_a_warning(
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    suffix: str,
    damage: Callable[[Path], None],
) -> None:
    saved(tmp_path, 3, 5)
    damage(newest(tmp_path, suffix))
    one = job()
    with caplog.at_level(logging.WARNING):
        assert restored(tmp_path, one)
    assert int(one.step) == 3
    np.testing.assert_array_equal(one.model.weights, np.full(1000, 3))
    assert "cannot be read, trying the one before" in caplog.text


@pytest.mark.parametrize("suffix", [".index", ".data"])
def test_a_save_that_may_not_be_read_now_is_not_trained_once_more(tmp_path: Path, suffix: str) -> None:
    saved(tmp_path, 3, 5)
    path = newest(tmp_path, suffix)
    before = path.stat().st_mode
    path.chmod(0)

    def refused() -> str:
        with pytest.raises(UnreadableError) as caught:
            restored(tmp_path, job())
        return str(caught.value)

    assert as_nobody(refused) == f"store {tmp_path}: {path.name} cannot be read: Permission denied"
    path.chmod(before)
    one = job()
    assert restored(tmp_path, one)
    assert int(one.step) == 5


def test_training_begins_anew_if_no_state_can_be_read(tmp_path: Path) -> None:
    assert not restored(tmp_path / "new", job())
    saved(tmp_path, 3, 5)
    for index in tmp_path.glob("*.index"):
        index.unlink()
    one = job()
    assert not restored(tmp_path, one)
    assert int(one.step) == 0


def test_the_state_of_another_job_is_refused(tmp_path: Path) -> None:
    saved(tmp_path, 3)
    with pytest.raises(SettingsError, match=r"is of another job .* remove it or give another --state"):
        restored(tmp_path, job(size=7))


class Gate:
    """Holds the writing of a training state until it is opened."""

    def __init__(self, store: StoreWriter, monkeypatch: pytest.MonkeyPatch) -> None:
        self.reached, self.opened = threading.Event(), threading.Event()
        commit = store.commit

        def held(*arguments: Any, **more: Any) -> Any:
            self.reached.set()
            assert self.opened.wait(300)
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
        assert gate.reached.wait(300)
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
    assert all(np.isfinite(variable.numpy()).all() for variable in again.model.trainable_variables)
    with StoreWriter(tmp_path, keep=2) as store, closing(TrainingState(store, tmp_path, one, allow_nan=True)) as state:
        state.finish(2)
        assert (state.saved, state.error) == (2, None)


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


def test_variables_that_a_job_gets_while_it_trains_are_saved_and_restored(
    tmp_path: Path,
) -> None:
    one, other = growing(), growing()
    with state_of(tmp_path, one) as state:
        state.finish(1)
        first = set(tf.train.load_checkpoint(tf.train.latest_checkpoint(tmp_path)).get_variable_to_shape_map())
        more_layers(one)
        for number, variable in enumerate(variables_of(one)):
            variable.assign(tf.fill(variable.shape, tf.cast(number, variable.dtype)))
        state.finish(2)
        assert (state.saved, state.error) == (2, None)
    second = set(tf.train.load_checkpoint(tf.train.latest_checkpoint(tmp_path)).get_variable_to_shape_map())
    assert first != second
    more_layers(other)
    assert restored(tmp_path, other)
    for number, variable in enumerate(variables_of(other)):
        np.testing.assert_array_equal(variable, np.full(variable.shape, number), err_msg=variable.name)


def variables_of(one: Job) -> list[tf.Variable]:
    """All variables of the job except its step counter."""
    return [
        *(variable.value for variable in one.model.variables),
        *(variable.value for variable in one.state["optimizer"].variables),
        *one.state["module"].variables,
    ]
