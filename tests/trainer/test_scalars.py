"""What is written for TensorBoard, read back by TensorFlow, and what is said to people who have none."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
import tensorflow as tf

from paramsync.publishing.metrics import Meter
from tests.publishing.test_write_behind import version
from trainer.scalars import Scalars
from trainer.screen import TrainingScreen


def meter(*, loss: float | None, stall: float | None) -> Meter:
    made = Meter(41, 0.0)
    if loss is not None:
        made.advance(42, tf.constant(loss), 2.0)
    made.stall = stall
    return made


def points(directory: Path) -> list[tuple[int, str, float]]:
    (file,) = directory.glob("events.out.tfevents.*")
    events = [tf.compat.v1.Event.FromString(record.numpy()) for record in tf.data.TFRecordDataset(str(file))]
    return [
        (event.step, one.tag, float(tf.make_ndarray(one.tensor))) for event in events for one in event.summary.value
    ]


def test_each_point_is_at_its_step_and_what_there_is_not_has_none(tmp_path: Path) -> None:
    scalars = Scalars(tmp_path / "board")
    scalars.write(meter(loss=None, stall=None), None)
    scalars.write(meter(loss=0.5, stall=0.00025), version(40))
    written = points(tmp_path / "board")  # at once: a killed trainer leaves no gap
    assert written == [
        (41, "steps_per_second", 0.0),
        (42, "loss", 0.5),
        (42, "steps_per_second", 0.5),
        (42, "published_version", 40.0),
        (42, "stall_ms", 0.25),
    ]
    scalars.close()
    assert points(tmp_path / "board") == written


def test_a_folder_that_cannot_be_written_is_told_of_once_and_training_goes_on(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "board").touch()
    scalars = Scalars(tmp_path / "board")
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            scalars.write(meter(loss=0.5, stall=None), None)
    scalars.close()
    assert caplog.text.count("nothing more is written for TensorBoard") == 1
    assert str(tmp_path / "board") in caplog.text


def test_without_a_terminal_a_line_names_everything_there_is(caplog: pytest.LogCaptureFixture) -> None:
    screen = TrainingScreen()
    with caplog.at_level(logging.INFO):
        screen.show(meter(loss=None, stall=None), None, out_of=None)
        screen.show(meter(loss=0.5, stall=0.00025), version(40), out_of=100)
    assert caplog.messages == [
        "step=41 steps_per_second=0.0",
        "step=42 loss=0.5 steps_per_second=0.5 version=40 stall_ms=0.250",
    ]
