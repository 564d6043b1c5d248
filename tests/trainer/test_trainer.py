"""The training program, from its arguments to its last breath, as real processes where that matters."""

from __future__ import annotations

import contextlib
import re
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
import tensorflow as tf

from paramsync.errors import SettingsError
from paramsync.store.commit import StoreWriter
from paramsync.store.store import Store
from paramsync.v1 import sync_pb2, sync_pb2_grpc
from tests.support.programs import PATIENCE, ROOT, refused
from trainer import settings

TIMEOUT = 3 * PATIENCE  # ends a trainer that hangs; a busy machine takes minutes to import TensorFlow


def test_settings_say_what_the_command_line_says() -> None:
    found = settings.parse(["--store", "here", "--every-steps", "10", "--steps", "100", "--control-port", "0"])
    assert (found.store, found.state, found.steps, found.control_port) == (Path("here"), Path("here/training"), 100, 0)
    assert (found.schedule.every_steps, found.schedule.every_seconds) == (10, None)
    assert (found.data, found.held_out, found.seed, found.keep, found.host) == (None, None, 0, 5, "127.0.0.1")
    assert (found.job, found.durable, found.state_seconds) == ("trainer.jobs.digits:job", False, 10)
    assert (found.tensorboard, found.allow_nan, found.publish_if) == (None, False, None)
    assert settings.parse(["--store", "here", "--allow-nan"]).allow_nan
    ops = settings.parse(["--store", "here", "--allow-op", "ReadFile", "--allow-op", "Own"]).allow_ops
    assert settings.parse(["--store", "here"]).schedule.every_seconds == 1
    assert (ops, settings.parse(["--store", "here"]).allow_ops) == (("ReadFile", "Own"), ())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "required: --store"),
        (["--every-steps", "0"], "--every-steps: expected a whole number of at least 1, found '0'"),
        (["--every-seconds", "-1"], "--every-seconds: expected seconds above 0, found '-1'"),
        (["--steps", "9" * 19], "--steps: expected a whole number of at most 999999999999999999, found '9999"),
        (["--held-out", "\udcff"], r"expected arguments in UTF-8, found '\udcff'"),
        (["--state", "here"], "--state here: expected another directory than the store, found the same"),
        (["--job", "x:y.z"], "--job: expected MODULE:FUNCTION, found 'x:y.z'"),
        (["--keep-every", "3600"], "--keep-every: expected --keep-for T with it, found 3600 alone"),
        (["--publish-if", "accuracy"], "--publish-if: invalid choice: 'accuracy' (choose from 'loss', 'min loss', "),
    ],
)
def test_arguments_that_cannot_be_used_are_refused_by_name(arguments: list[str], message: str) -> None:
    with pytest.raises(SettingsError, match=re.escape(message)):
        settings.parse([*(["--store", "here"] if arguments else []), *arguments])


def test_the_program_reads_its_settings_without_tensorflow() -> None:
    code = "import sys, trainer.program, trainer.settings; assert not {'tensorflow', 'keras'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True, timeout=TIMEOUT)


class Process:
    """`python -m trainer` and what it has logged so far."""

    def __init__(self, store: Path, *arguments: str, folder: Path = ROOT) -> None:
        self.lines: list[str] = []
        self._popen = subprocess.Popen(
            [sys.executable, "-m", "trainer", "--store", str(store), "--control-port", "0", *arguments],
            cwd=folder,
            stderr=subprocess.PIPE,
            text=True,
        )
        self._killer = threading.Timer(TIMEOUT, self._popen.kill)
        self._killer.start()

    def until(self, text: str) -> str:
        """The first line with this text, when it is there."""
        assert self._popen.stderr is not None
        for line in self._popen.stderr:
            self.lines.append(line)
            if text in line:
                return line
        pytest.fail(f"no {text!r} in what the trainer said:\n{''.join(self.lines)}")

    def send(self, number: signal.Signals) -> None:
        self._popen.send_signal(number)

    def end(self) -> int:
        """The exit code, when it has ended."""
        assert self._popen.stderr is not None
        self.lines += self._popen.stderr
        return self._popen.wait()

    def release(self) -> None:
        self._killer.cancel()
        self._popen.kill()
        self._popen.communicate()

    @property
    def text(self) -> str:
        return "".join(self.lines)


@contextlib.contextmanager
def trainer(store: Path, *arguments: str, folder: Path = ROOT) -> Iterator[Process]:
    process = Process(store, *arguments, folder=folder)
    try:
        yield process
    finally:
        process.release()


def control_of(process: Process) -> Any:
    ready = process.until("trainer ready: ")
    found = re.search(r"trainer ready: control (\S+), device (.+), store (\S+)", ready)
    assert found is not None
    return sync_pb2_grpc.PublisherStub(grpc.insecure_channel(found[1]))


def versions(stub: Any, count: int) -> list[int]:
    """The next ones to be published."""
    call = stub.Watch(sync_pb2.WatchPublisherRequest(), timeout=TIMEOUT)
    numbers = [next(call).number for _ in range(count)]
    call.cancel()
    return numbers


def refusal(store: Path, *arguments: str, folder: Path = ROOT) -> str:
    """The one line that a trainer says before it ends with exit code 2."""
    with trainer(store, *arguments, folder=folder) as process:
        assert process.end() == 2
    assert len(process.lines) == 1, process.text
    assert process.text.startswith("paramsync train: ")
    return process.text


def test_directories_that_cannot_be_used_are_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert f"{tmp_path}/file is a file; expected a directory" in refusal(tmp_path / "file")
    text = refusal(tmp_path / "store", "--tensorboard", str(tmp_path / "file" / "board"))
    assert f"{tmp_path}/file/board cannot be made" in text
    with StoreWriter(tmp_path / "state"):
        text = refusal(tmp_path / "store", "--state", str(tmp_path / "state"))
    assert f"store {tmp_path / 'state'}: already has a publisher" in text
    tmp_path.chmod(0o500)
    assert f"paramsync train: {tmp_path}/new cannot be made" in refused("trainer", "--store", tmp_path / "new")
    assert f"paramsync train: {tmp_path} cannot be read and written" in refused("trainer", "--store", tmp_path)


def test_a_taken_port_bad_data_and_a_job_that_is_not_there_are_one_line_each(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        text = refusal(tmp_path, "--control-port", str(port))
    assert f"port {port} of 127.0.0.1 is taken; choose another with --control-port" in text
    assert "cannot be read as an .npz file" in refusal(tmp_path, "--data", str(tmp_path / "none.npz"))
    with StoreWriter(tmp_path):  # the job is looked for before the store is locked
        text = refusal(tmp_path, "--job", "nosuch:small", folder=tmp_path)
    assert f"--job nosuch:small: expected a module nosuch in {tmp_path} or among what is installed" in text


@pytest.mark.slow
def test_the_last_step_is_published_and_the_examples_held_out_are_there(tmp_path: Path) -> None:
    store, held_out = tmp_path / "store", tmp_path / "held-out.npz"
    arguments = ["--steps", "700", "--every-steps", "100", "--keep", "100", "--held-out", str(held_out)]
    with trainer(store, *arguments) as process:
        assert process.end() == 0, process.text
    assert "trainer ready: control 127.0.0.1:" in process.text
    assert "training stopped at step 700, version 700 is the last published" in process.text
    steps = [version.step for version in Store(store).versions()]
    assert steps[-1] == 700
    assert set(steps) <= set(range(0, 701, 100))
    latest = Store(store).latest()
    assert latest is not None
    assert latest.metrics["loss"] > 0
    reader = tf.train.load_checkpoint(str(store))
    assert reader.get_variable_to_shape_map()
    with np.load(held_out) as file:
        assert file["x"].shape == (2000, 784)


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_publishes_the_current_step_saves_it_and_ends_well(tmp_path: Path, number: signal.Signals) -> None:
    with trainer(tmp_path, "--every-seconds", "3600") as process:
        stub = control_of(process)
        asked = stub.Publish(sync_pb2.PublishRequest(), timeout=TIMEOUT)
        status = stub.GetStatus(sync_pb2.GetPublisherStatusRequest(), timeout=TIMEOUT)
        assert status.state == sync_pb2.PublisherStatus.TRAINING
        assert status.published.number == asked.number
        process.send(number)
        process.send(number)
        assert process.end() == 0, process.text
    assert "Traceback" not in process.text
    latest = Store(tmp_path).latest()
    assert latest is not None
    assert latest.step > asked.step
    assert f"training stopped at step {latest.step}" in process.text
    saved = tf.train.load_checkpoint(str(tmp_path / "training"))
    assert saved.get_tensor("step/.ATTRIBUTES/VARIABLE_VALUE") == latest.step


@pytest.mark.slow
def test_a_signal_during_tensorflows_import_ends_well(tmp_path: Path) -> None:
    with trainer(tmp_path) as process:
        process.until("importing TensorFlow")
        process.send(signal.SIGINT)
        process.send(signal.SIGINT)
        assert process.end() == 0, process.text
    assert "Traceback" not in process.text
    assert "trainer ready" not in process.text
