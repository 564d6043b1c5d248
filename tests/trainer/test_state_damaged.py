"""Training resumes from the newest state that can be read, of an earlier release too, but of no other job."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from paramsync.errors import SettingsError, UnreadableError
from tests.support.states import job, newest, restored, saved, saved_by_an_earlier_release, state_of
from tests.support.troubles import as_nobody


def spoil(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 0xFF
    path.write_bytes(content)


@pytest.mark.parametrize("suffix", [".index", ".data"])
@pytest.mark.parametrize("damage", [Path.unlink, spoil, lambda path: path.write_bytes(b"")])
@pytest.mark.parametrize("release", [saved, saved_by_an_earlier_release])
def test_a_save_that_cannot_be_read_is_passed_over_with_a_warning(
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    suffix: str,
    damage: Callable[[Path], None],
    release: Callable[..., None],
) -> None:
    release(tmp_path, 3, 5)
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


def test_after_falling_back_the_next_save_is_the_newest_again(tmp_path: Path) -> None:
    saved(tmp_path, 3, 5)
    newest(tmp_path, ".index").unlink()
    one = job()
    with state_of(tmp_path, one) as state:
        state.restore()
        one.train_step()
        state.finish(4)
    again = job()
    assert restored(tmp_path, again)
    assert int(again.step) == 4


def test_a_state_of_an_earlier_release_is_resumed_from_and_gives_way_to_two_of_ours(tmp_path: Path) -> None:
    saved_by_an_earlier_release(tmp_path, 3, 5)
    (tmp_path / "state-3_temp").mkdir()
    (tmp_path / "state-3_temp" / "part-00000-of-00001.data-00000-of-00001").touch()
    one = job()
    with state_of(tmp_path, one) as state:
        assert state.restore()
        assert (int(one.step), state.saved) == (5, 5)
        assert not list(tmp_path.glob("*_temp")), "what a killed save left"
        for step in (6, 7, 8):
            assert len(list(tmp_path.glob("state-*.index"))) == 2
            one.train_step()
            state.finish(step)
            listed = tf.train.get_checkpoint_state(str(tmp_path)).all_model_checkpoint_paths
            assert all(map(tf.compat.v1.train.checkpoint_exists, listed)), "what is removed is not listed"
            assert len(listed) == {6: 3, 7: 4, 8: 2}[step]
    assert not list(tmp_path.glob("state-*"))
    for _ in range(2):  # and so it stays
        again = job()
        assert restored(tmp_path, again)
        assert int(again.step) == 8


def test_training_begins_anew_where_no_save_can_be_read(tmp_path: Path) -> None:
    saved(tmp_path, 3, 5)
    for index in tmp_path.glob("*.index"):
        index.unlink()
    one = job()
    assert not restored(tmp_path, one)
    assert int(one.step) == 0


@pytest.mark.parametrize("release", [saved, saved_by_an_earlier_release])
def test_the_state_of_another_job_is_refused(tmp_path: Path, release: Callable[..., None]) -> None:
    release(tmp_path, 3)
    with pytest.raises(SettingsError, match=r"is of another job .* remove it or give another --state"):
        restored(tmp_path, job(size=7))
