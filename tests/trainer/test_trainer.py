"""The training program: arguments, errors, signals, TensorBoard and log lines."""

from __future__ import annotations

import logging
import re
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import grpc
import pytest
import tensorflow as tf

from paramsync.errors import SettingsError
from paramsync.publishing.metrics import Meter
from paramsync.store.commit import StoreWriter
from paramsync.store.store import Store
from paramsync.v1 import sync_pb2, sync_pb2_grpc
from tests.support.programs import PATIENCE, ROOT, Program, refused
from tests.support.written import version
from trainer import settings
from trainer.scalars import Scalars
from trainer.screen import TrainingScreen

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
        (["--store", "s3://b/m"], "--store s3://b/m: expected --state DIR with the address of a bucket, found none"),
        (["--store", "s3://b/m", "--state", "s", "--keep-for", "9"], "--keep-for: expected a directory as --store"),
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


def trainer(store: Path, *arguments: str, folder: Path = ROOT) -> Program:
    log = Path(f"{store}.log")
    return Program("trainer", "--store", store, "--control-port", "0", *arguments, log=log, folder=folder)


def control_of(process: Program) -> Any:
    address = process.said(r"trainer ready: control (\S+), device .+, store \S+")[1]
    return sync_pb2_grpc.PublisherStub(grpc.insecure_channel(address))


def versions(stub: Any, count: int) -> list[int]:
    """The numbers of the next `count` published versions."""
    call = stub.Watch(sync_pb2.WatchPublisherRequest(), timeout=TIMEOUT)
    numbers = [next(call).number for _ in range(count)]
    call.cancel()
    return numbers


def test_directories_that_cannot_be_used_are_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert f"{tmp_path}/file is a file; expected a directory" in refused("trainer", "--store", tmp_path / "file")
    program = ("trainer", "--store", tmp_path / "store")
    text = refused(*program, "--tensorboard", tmp_path / "file" / "board")
    assert f"{tmp_path}/file/board cannot be made" in text
    with StoreWriter(tmp_path / "state"):
        text = refused(*program, "--state", tmp_path / "state")
    assert f"store {tmp_path / 'state'}: already has a publisher" in text
    tmp_path.chmod(0o500)
    assert f"paramsync train: {tmp_path}/new cannot be made" in refused("trainer", "--store", tmp_path / "new")
    assert f"paramsync train: {tmp_path} cannot be read and written" in refused("trainer", "--store", tmp_path)


def test_a_taken_port_bad_data_and_a_job_that_is_not_there_are_one_line_each(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        text = refused("trainer", "--store", tmp_path, "--control-port", str(port))
    assert f"port {port} of 127.0.0.1 is taken; choose another with --control-port" in text
    program = ("trainer", "--store", tmp_path, "--control-port", "0")
    assert "cannot be read as an .npz file" in refused(*program, "--data", tmp_path / "none.npz")
    with StoreWriter(tmp_path):  # the job is looked for before the store is locked
        text = refused(*program, "--job", "nosuch:small")
    assert f"--job nosuch:small: expected a module nosuch in {ROOT} or among what is installed" in text


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
        process.said("importing TensorFlow")
        process.send(signal.SIGINT)
        process.send(signal.SIGINT)
        assert process.end() == 0, process.text
    assert "Traceback" not in process.text
    assert "trainer ready" not in process.text


# For people -----------------------------------------------------------------------------------------------------------


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
