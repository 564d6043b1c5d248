"""A directory of what cannot be followed says what it is, at the first look, and what to do."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest
import tensorflow as tf

from paramsync.errors import CorruptCheckpointError
from paramsync.following.follower import Follower
from paramsync.store.commit import StoreWriter
from paramsync.store.store import Store
from tests.support.followers import saver_follower, serving
from tests.support.published import follower_of
from tests.support.stores import saved_by_v1
from tests.support.written import publish

v1 = tf.compat.v1


def saved(
    path: Path, *, latest_filename: str | None = None, write_version: int | None = None, sharded: bool = False
) -> None:
    """By a script of TensorFlow 1: x to y."""
    told = {} if write_version is None else {"write_version": write_version}
    with tf.Graph().as_default(), v1.Session() as session:
        x = v1.placeholder(tf.float32, [None, 2], name="x")
        tf.multiply(x, v1.get_variable("w", [2]), name="y")
        session.run(v1.global_variables_initializer())
        saver = v1.train.Saver(sharded=sharded, **told)
        for step in (1, 2):
            saver.save(session, str(path / "model"), global_step=step, latest_filename=latest_filename)


def said(follower: Follower) -> str:
    follower.run_once()
    assert serving(follower) is None
    return follower.status().reason


def test_a_saver_that_calls_its_state_otherwise(tmp_path: Path) -> None:
    saved(tmp_path, latest_filename="newest")
    text = said(saver_follower(tmp_path))
    assert "expected a file checkpoint, which names the latest one, found 'newest' in its place" in text
    assert text.endswith("leave out latest_filename='newest' where the Saver saves")
    saved(tmp_path)
    follower = saver_follower(tmp_path)
    follower.run_once()
    assert (serving(follower), follower.status().reason) == (2, "")


@pytest.mark.parametrize("sharded", [False, True])
def test_the_format_before_the_one_that_is_read(tmp_path: Path, sharded: bool) -> None:
    saved(tmp_path, write_version=v1.train.SaverDef.V1, sharded=sharded)
    text = said(saver_follower(tmp_path))
    name = "model-2-?????-of-00001" if sharded else "model-2"
    assert f"checkpoint: expected the files of {name}, found {name} itself, in TensorFlow's V1 format" in text
    assert "leave out write_version" in text
    with pytest.raises(CorruptCheckpointError, match="V1 format"):
        Store(tmp_path).latest()


def test_checkpoints_that_nothing_lists(tmp_path: Path) -> None:
    tf.train.Checkpoint(weights=tf.Variable(1.0)).write(str(tmp_path / "weights"))
    follower = follower_of(tmp_path)
    assert "found " not in said(follower)  # whoever saves may be about to list it
    then = time.time() - 5
    os.utime(tmp_path / "weights.index", (then, then))
    assert "found checkpoints ('weights.index') without it: save them by Checkpoint.save" in said(follower)


OTHERS = {
    "model.tflite": "found model.tflite, a TensorFlow Lite model",
    "export.meta": "found export.meta, a SessionBundle: export the model as a SavedModel",
    "export-00000-of-00001": "found export-00000-of-00001, a SessionBundle",
    "model.keras": "found model.keras, a model as Keras saves it",
    "model.onnx": "found model.onnx, a model of ONNX",
}


@pytest.mark.parametrize("where", ["1", "00000123", ""])
@pytest.mark.parametrize("name", OTHERS)
def test_models_of_other_kinds(tmp_path: Path, where: str, name: str) -> None:
    (tmp_path / where).mkdir(exist_ok=True)
    (tmp_path / where / name).write_bytes(b"TFL3")
    text = said(follower_of(tmp_path))
    assert OTHERS[name] in text
    assert str(tmp_path / where / "saved_model.pb") in text


def test_what_can_be_served_is_and_nothing_is_said_of_what_lies_beside_it(tmp_path: Path) -> None:
    saved_by_v1(tmp_path / "1", 1.0)
    (tmp_path / "2").mkdir()
    (tmp_path / "2" / "model.tflite").touch()
    follower = follower_of(tmp_path)
    follower.run_once()
    assert (serving(follower), follower.status().reason) == (1, "")


def test_nothing_is_said_of_what_may_still_become_something(tmp_path: Path) -> None:
    for name in ("3", "4/variables"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "notes").write_text("model_checkpoint_path: 'no file of this is here'")
    assert "found " not in said(follower_of(tmp_path))


def test_nothing_is_said_of_a_store_of_ours_before_its_first_version(tmp_path: Path) -> None:
    with StoreWriter(tmp_path):
        assert "found " not in said(follower_of(tmp_path))
    publish(tmp_path, 1)
    (tmp_path / "checkpoint").unlink()
    then = time.time() - 5
    os.utime(tmp_path / "ckpt-1.index", (then, then))
    assert "found " not in said(follower_of(tmp_path))
