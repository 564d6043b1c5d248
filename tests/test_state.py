"""TrainingState over real directories, whole and broken."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from paramsync.errors import SettingsError
from trainer.job import Job
from trainer.state import TrainingState


def job(size: int = 1000) -> Job:
    module = tf.Module()
    module.weights = tf.Variable(tf.zeros([size]))
    step = tf.Variable(0, dtype=tf.int64)

    def train_step() -> tf.Tensor:
        module.weights.assign_add(tf.ones([size]))
        step.assign_add(1)
        return tf.reduce_sum(module.weights)

    return Job(model=module, step=step, train_step=train_step, steps_per_epoch=1)


def saved(directory: Path, *steps: int) -> None:
    one = job()
    state = TrainingState(directory, one)
    for step in range(1, max(steps) + 1):
        one.train_step()
        if step in steps:
            state.save()


def newest(directory: Path, suffix: str) -> Path:
    prefix = tf.train.latest_checkpoint(directory)
    return next(Path(prefix).parent.glob(f"{Path(prefix).name}{suffix}*"))


def test_nothing_is_restored_where_nothing_was_saved(tmp_path: Path) -> None:
    one = job()
    assert not TrainingState(tmp_path / "new", one).restore()
    assert int(one.step) == 0


def test_training_goes_on_where_it_was_saved_last(tmp_path: Path) -> None:
    saved(tmp_path, 3, 5)
    one = job()
    assert TrainingState(tmp_path, one).restore()
    assert int(one.step) == 5
    np.testing.assert_array_equal(one.model.weights, np.full(1000, 5))


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1000])


def spoil(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 0xFF
    path.write_bytes(content)


@pytest.mark.parametrize("suffix", [".index", ".data"])
@pytest.mark.parametrize("damage", [Path.unlink, spoil, lambda path: path.write_bytes(b"")])
def test_a_save_that_cannot_be_read_is_passed_over_with_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, suffix: str, damage: Callable[[Path], None]
) -> None:
    saved(tmp_path, 3, 5)
    damage(newest(tmp_path, suffix))
    one = job()
    with caplog.at_level(logging.WARNING):
        assert TrainingState(tmp_path, one).restore()
    assert int(one.step) == 3
    np.testing.assert_array_equal(one.model.weights, np.full(1000, 3))
    assert "cannot be read, trying the one before" in caplog.text


def test_after_falling_back_the_next_save_is_the_newest_again(tmp_path: Path) -> None:
    saved(tmp_path, 3, 5)
    newest(tmp_path, ".index").unlink()
    one = job()
    state = TrainingState(tmp_path, one)
    state.restore()
    one.train_step()
    state.save()
    again = job()
    assert TrainingState(tmp_path, again).restore()
    assert int(again.step) == 4


def test_what_a_killed_save_left_is_removed(tmp_path: Path) -> None:
    saved(tmp_path, 3)
    (tmp_path / "state-2_temp").mkdir()
    (tmp_path / "state-2_temp" / "part-00000-of-00001.data-00000-of-00001").touch()
    one = job()
    assert TrainingState(tmp_path, one).restore()
    assert not list(tmp_path.glob("*_temp"))


def test_training_begins_anew_where_no_save_can_be_read(tmp_path: Path) -> None:
    saved(tmp_path, 3, 5)
    for index in tmp_path.glob("*.index"):
        index.unlink()
    one = job()
    assert not TrainingState(tmp_path, one).restore()
    assert int(one.step) == 0


def test_the_state_of_another_job_is_refused(tmp_path: Path) -> None:
    saved(tmp_path, 3)
    with pytest.raises(SettingsError, match=r"is of another job .* remove it or give another --state"):
        TrainingState(tmp_path, job(size=7)).restore()


def test_a_save_that_fails_is_logged_and_training_goes_on(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    directory = tmp_path / "state"
    one = job()
    state = TrainingState(directory, one)
    one.train_step()
    shutil.rmtree(directory)
    directory.touch()
    with caplog.at_level(logging.ERROR):
        state.save()
    assert "training state was not saved, training goes on" in caplog.text


def test_stock_tensorflow_reads_the_state(tmp_path: Path) -> None:
    saved(tmp_path, 3)
    reader = tf.train.load_checkpoint(str(tmp_path))
    assert reader.get_tensor("step/.ATTRIBUTES/VARIABLE_VALUE") == 3
