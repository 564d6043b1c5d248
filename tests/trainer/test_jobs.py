"""The training program with a user's job, as real processes: output, state, resuming after a kill."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import signal
import struct
import subprocess
import sys
import termios
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from paramsync.store.store import Store
from paramsync.v1 import sync_pb2
from tests.support import jobs
from tests.support.programs import bounded, eventually
from tests.trainer.test_trainer import TIMEOUT, control_of, trainer, versions

SMALL = ("--job", "small_job:small")


def status(stub: Any) -> sync_pb2.PublisherStatus:
    found: sync_pb2.PublisherStatus = stub.GetStatus(sync_pb2.GetPublisherStatusRequest(), timeout=TIMEOUT)
    return found


def scalars(directory: Path) -> dict[str, dict[int, float]]:
    """Every point by name and step, as TensorFlow's own reader of event files finds them."""
    found: dict[str, dict[int, float]] = {}
    for file in sorted(map(str, directory.glob("events.out.tfevents.*"))):
        for record in tf.data.TFRecordDataset(file):
            event = tf.compat.v1.Event.FromString(record.numpy())
            for value in event.summary.value:
                assert value.metadata.plugin_data.plugin_name == "scalars"
                found.setdefault(value.tag, {})[event.step] = float(tf.make_ndarray(value.tensor))
    return found


def values(directory: Path) -> list[Any]:
    """Every array of the newest checkpoint there."""
    reader = tf.train.load_checkpoint(str(directory))
    found = [reader.get_tensor(name) for name in reader.get_variable_to_shape_map()]
    return [value for value in found if isinstance(value, np.ndarray)]


@pytest.mark.slow
def test_a_job_that_does_not_count_its_steps_is_refused_at_the_first(tmp_path: Path) -> None:
    jobs.put(tmp_path, jobs.SMALL.replace("FIRST_STEP = 1", "FIRST_STEP = 2"))
    with trainer(tmp_path / "store", *SMALL, folder=tmp_path) as process:
        assert process.end() == 2
    assert "paramsync train: Job.step: expected train_step to add 1, so that it is 1, found 2" in process.text


@pytest.mark.slow
def test_a_job_of_ones_own_is_trained_published_and_drawn_to_its_last_step(tmp_path: Path) -> None:
    jobs.put(tmp_path)
    (tmp_path / "wanted").write_text("3.5")
    store, board = tmp_path / "store", tmp_path / "board"
    began = time.monotonic()
    arguments = ("--data", "wanted", "--steps", "3000", "--every-steps", "500", "--durable", "--tensorboard", "board")
    with trainer(store, *SMALL, *arguments, folder=tmp_path) as process:
        assert process.end() == 0, process.text
    latest = Store(store).latest()
    assert latest is not None
    assert latest.step == 3000
    assert latest.metrics["loss"] < 1e-3
    assert sorted(value.shape for value in values(store)) == [(1,), (3,), (3, 1), (4, 3)]
    drawn = scalars(board)
    assert set(drawn) == {"loss", "steps_per_second", "published_version", "stall_ms"}
    assert drawn["loss"][3000] == pytest.approx(latest.metrics["loss"])
    assert 0 < drawn["stall_ms"][3000] < 1000 * (time.monotonic() - began)
    assert drawn["published_version"][3000] in range(0, 3001, 500)  # 0 if the first publication is late
    last = re.findall(r"(\S+)=(\S+)", [line for line in process.text.splitlines() if " step=3000 " in line][-1])
    assert [name for name, _ in last] == ["step", "loss", "steps_per_second", "version", "stall_ms"]
    assert all(float(value) >= 0 for _, value in last)


@pytest.mark.slow
def test_a_killed_trainer_resumes_model_and_optimizer_from_the_state_that_was_saved_behind_it(tmp_path: Path) -> None:
    jobs.put(tmp_path)
    store, arguments = tmp_path / "store", (*SMALL, "--every-steps", "20", "--state-seconds", "0.05")
    with trainer(store, *arguments, folder=tmp_path) as process:
        stub = control_of(process)
        seen = versions(stub, 10)
        eventually(lambda: status(stub).saved_step > 20, lambda: "a saved state")
        process.send(signal.SIGKILL)
        assert process.end() == -signal.SIGKILL
    reader = tf.train.load_checkpoint(str(store / "training"))
    saved = int(reader.get_tensor("step/.ATTRIBUTES/VARIABLE_VALUE"))
    assert saved > 20
    assert reader.get_tensor("optimizer/_iterations/.ATTRIBUTES/VARIABLE_VALUE") == saved
    last = Store(store).latest()
    assert last is not None
    with trainer(store, *arguments, folder=tmp_path) as process:
        stub = control_of(process)
        assert f"resumed at step {saved} from {store}/training/ckpt-" in process.text
        after = versions(stub, 3)
        process.send(signal.SIGTERM)
        assert process.end() == 0, process.text
    assert [*seen, last.number, *after] == sorted([*seen, last.number, *after])
    assert min(after) > last.number
    latest = Store(store).latest()
    assert latest is not None
    reader = tf.train.load_checkpoint(str(store / "training"))
    assert latest.step == reader.get_tensor("step/.ATTRIBUTES/VARIABLE_VALUE") > saved
    saved_values = [value.tobytes() for value in values(store / "training")]
    assert all(value.tobytes() in saved_values for value in values(store)), "the last step is published and saved"


@pytest.mark.slow
def test_on_a_terminal_a_bar_shows_how_training_goes(tmp_path: Path) -> None:
    jobs.put(tmp_path)
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    command = [sys.executable, "-m", "trainer", "--store", "store", "--control-port", "0", "--steps", "20000", *SMALL]
    environment = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES", "NO_COLOR")}
    environment["TERM"] = "xterm"
    process = subprocess.Popen(command, cwd=tmp_path, stderr=theirs, env=environment, start_new_session=True)
    with bounded(process):
        os.close(theirs)
        text, stopped = "", False
        while True:
            try:
                text += os.read(ours, 65536).decode(errors="replace")
            except OSError:  # the other end is closed
                break
            if not stopped and re.search(r"version [1-9]", text):
                process.send_signal(signal.SIGTERM)
                stopped = True
        assert process.wait() == 0, text
    os.close(ours)
    plain = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", text)
    shown = re.findall(r"step ([\d,]+) +\S+ +loss ([\d.]+) +(\d+) steps/s +version (\d+) +stall ([\d.]+) ms", plain)
    assert shown, plain
    assert int(shown[-1][0].replace(",", "")) > 0
    bars = [line for line in re.split(r"[\r\n]+", plain) if "steps/s" in line]  # others are TensorFlow's
    assert max(map(len, bars)) <= 80
    assert "training stopped at step" in re.sub(r"\s+", " ", plain)
    assert "Traceback" not in plain
