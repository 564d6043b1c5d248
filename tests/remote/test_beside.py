"""Mirrors beside real programs, over a real S3 server: training publishes to a bucket, and servers follow it."""

from __future__ import annotations

import json
import os
import pickle
import re
import signal
import socket
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path

import grpc
import numpy as np
import pytest
import tensorflow as tf
from tensorflow_serving.apis import predict_pb2

from paramsync import Follower, Publisher, Replica, latest
from paramsync.cli.__main__ import main
from paramsync.errors import SettingsError, UnknownLabelError, UnknownVersionError
from paramsync.remote import child, fleet, outgoing, state
from paramsync.remote.bucket import Bucket
from paramsync.remote.child import MirrorChild
from paramsync.remote.mirror import Mirror
from paramsync.remote.protocol import Found
from paramsync.rpc.client import Trainer
from paramsync.store.store import PublisherState, Store
from paramsync.version import Version
from tests.support.buckets import SeaweedFs
from tests.support.commands import NAMES, three_versions
from tests.support.inferencers import LONG, Process
from tests.support.mirrors import Pair
from tests.support.programs import ROOT, Program, eventually
from tests.support.published import Witness
from tests.support.training import Affine, put, values
from tests.support.training_to_bucket import Training

pytestmark = pytest.mark.slow


def serves(follower: Follower, number: int) -> None:
    def look() -> bool:
        status = follower.status()
        return status.serving is not None and status.serving.number == number

    eventually(look, lambda: f"version {number}: {follower.status()}")


def ended(follower: Follower, how: PublisherState) -> None:
    def look() -> bool:
        publisher = follower.status().publisher
        return publisher is not None and publisher.state is how

    eventually(look, lambda: f"{how}: {follower.status()}")


def test_what_training_publishes_serves_elsewhere_though_mirrors_are_killed(address: str, tmp_path: Path) -> None:
    training = Training(address)
    with Follower(Replica("m", address), poll_seconds=3600) as follower:
        for step in range(1, 6):
            training.publish(step)
            serves(follower, step)
            [seen] = {*follower.replica.predict({"x": np.ones([1, 2], np.float32)})[0]["seen"].numpy().tolist()}
            assert seen == step
            for pid in mirrors(address):
                os.kill(pid, signal.SIGKILL)
        training.publish(6)  # perhaps before the mirror is started again
        training.publisher.close()
        serves(follower, 6)
        ended(follower, PublisherState.FINISHED)
    assert [*tmp_path.glob("*/publisher.lock")] == []


@pytest.mark.parametrize(
    ("hour", "told"), [(3600, r"3[56]\d\d s or more ahead of"), (-3600, r"3[23]\d\d s or more behind")]
)
def test_versions_follow_an_uploading_host_whose_clock_is_an_hour_off_and_the_follower_says_so(
    hour: int, told: str, address: str, tmp_path: Path
) -> None:
    (tmp_path / "site").mkdir()
    shifted = f"import time\nnow = time.time\ntime.time = lambda: now() + {hour}\n"
    (tmp_path / "site" / "sitecustomize.py").write_text(shifted)
    path = os.pathsep.join([str(tmp_path / "site"), str(ROOT)])
    pair = Pair(tmp_path)
    with closing(pair), Mirror(address, str(tmp_path / "copy")) as follower:
        for step in (1, 2, 3):
            pair.publish(step)
            command = [sys.executable, "-m", "paramsync.cli", "mirror", str(pair.source.path), address, "--once"]
            subprocess.run(command, env={**os.environ, "PYTHONPATH": path}, check=True, timeout=LONG)
            follower.run_once()
            copied = follower.status.copied
            assert copied is not None
            assert copied.number == step
        assert re.fullmatch(f"the clock of the uploading host is {told} the bucket's: set it", follower.status.clock)


def mirrors(address: str) -> list[int]:
    """The mirrors of this process."""
    command = ["pgrep", "-P", str(os.getpid()), "-f", f"cli mirror .*{address}"]
    found = subprocess.run(command, capture_output=True, text=True, check=False)
    return [int(pid) for pid in found.stdout.split()]


def test_a_publisher_that_does_not_start_leaves_no_mirror_and_no_store(address: str, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken, pytest.raises(SettingsError, match="is taken"):
        Publisher(address, Witness(), control_port=taken.getsockname()[1])
    assert [*tmp_path.iterdir()] == []
    eventually(lambda: not mirrors(address), lambda: "its mirror to end")


def epoch(address: str) -> int:
    found = Bucket(address).read()
    assert isinstance(found, Found)
    return state.from_json(found.content).epoch


def test_a_publisher_whose_port_is_taken_does_not_end_the_one_that_publishes(address: str) -> None:
    first = Training(address)
    with socket.create_server(("127.0.0.1", 0)) as taken, pytest.raises(SettingsError, match="is taken"):
        Publisher(address, Witness(), control_port=taken.getsockname()[1])
    first.publish(1)
    eventually(lambda: first.is_copied(1), lambda: first.mirror.reason)
    assert epoch(address) == 1
    first.publisher.close()


def test_a_mirror_whose_publisher_died_before_it_began_does_not_end_the_successor(address: str, tmp_path: Path) -> None:
    successor = Training(address)
    three_versions(tmp_path / "store")
    command = ["-m", "paramsync.cli", "mirror", str(tmp_path / "store"), address, "--json", "--beside", "b" * 32]
    done = subprocess.run([sys.executable, *command], stdin=subprocess.DEVNULL, check=False)
    assert done.returncode == 0
    assert epoch(address) == 1
    successor.publish(1)
    eventually(lambda: successor.is_copied(1), lambda: successor.mirror.reason)
    successor.publisher.close()


def test_a_trainer_that_is_started_twice_ends_the_second_time_and_the_first_goes_on(
    address: str, tmp_path: Path
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = str(free.getsockname()[1])
    options = ("--store", address, "--every-steps", "5")
    with Program(
        "trainer", *options, "--control-port", port, "--state", tmp_path / "first", log=tmp_path / "log"
    ) as first:
        first.said("trainer ready")
        before = epoch(address)
        for name, other in (("first", "0"), ("other", port)):
            arguments = (*options, "--control-port", other, "--state", tmp_path / name)
            with Program("trainer", *arguments, log=tmp_path / "second") as second:
                assert second.end() == 2, second.text
        assert epoch(address) == before
        assert first.stop() == 0
        assert "another publisher" not in first.text


@pytest.mark.parametrize("dies", [False, True], ids=["stopped", "killed"])
def test_a_publisher_that_another_one_replaced_does_not_take_the_bucket_back(
    address: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, dies: bool
) -> None:
    monkeypatch.setattr(child, "_FIRST_WAIT", 0.0)
    first = Training(address)
    first.publish(1)
    eventually(lambda: first.is_copied(1), lambda: "version 1")
    [stopped] = mirrors(address)
    os.kill(stopped, signal.SIGSTOP)
    second = Training(address)
    second.publish(2)
    eventually(lambda: second.is_copied(2), lambda: "version 2")
    first.publish(3)
    os.kill(stopped, signal.SIGKILL if dies else signal.SIGCONT)
    eventually(lambda: first.mirror.over, lambda: first.mirror.reason)
    assert "another publisher has begun" in first.mirror.reason
    assert first.publisher.status().last_error == first.mirror.reason
    first.publisher.close()
    assert f"version 3 is not in the bucket: {address}: another publisher" in caplog.text
    second.publish(4)
    second.publisher.close()
    assert second.mirror.newest == 4


def test_a_publisher_reads_the_newest_number_only_once_its_predecessor_can_add_no_more(
    address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = Training(address)
    first.publish(10)
    eventually(lambda: first.is_copied(10), lambda: "version 10")
    newest, epochs = outgoing._newest, []

    def read(bucket: Bucket) -> Version | None:
        epochs.append(epoch(bucket.address))
        return newest(bucket)

    monkeypatch.setattr(outgoing, "_newest", read)
    second = Training(address)
    assert epochs == [2]
    for training in (second, first):
        training.publisher.close()


def test_a_publisher_that_is_killed_leaves_no_store_and_its_last_version_in_the_bucket(
    address: str, tmp_path: Path
) -> None:
    pid = os.fork()
    if pid == 0:
        code = f"from tests.remote.test_beside import *; child._MEMORY = Path({str(tmp_path)!r})"
        code += f"; Training({address!r}).publish(7); os.kill(os.getpid(), signal.SIGKILL)"
        os.execv(sys.executable, [sys.executable, "-c", code])
    assert os.waitpid(pid, 0)[1] == signal.SIGKILL
    eventually(lambda: [*tmp_path.iterdir()] == [], lambda: "the end of the mirror")
    with Follower(Replica("m", address), poll_seconds=3600) as follower:
        serves(follower, 7)
        ended(follower, PublisherState.DIED)
    assert [*tmp_path.glob("*/publisher.lock")] == []


def test_servers_obey_a_pin_and_a_label_of_versions_that_they_lack(address: str) -> None:
    training = Training(address)
    for step in (1, 2, 3):
        training.publish(step)
        eventually(lambda step=step: training.is_copied(step), lambda: training.mirror.reason)  # type: ignore[misc]
    with Follower(Replica("m", address), poll_seconds=3600) as follower:
        serves(follower, 3)
        fleet.choose(address, fleet.pin(address, 2))
        serves(follower, 2)
        fleet.choose(address, fleet.label(address, "stable", 1))
        eventually(lambda: follower.replica.labels == {"stable": 1}, lambda: f"{follower.status()}")
        fleet.choose(address, fleet.pin(address, None))
        serves(follower, 3)
        assert follower.replica.predict({"x": np.ones([1, 2], np.float32)}, label="stable")[1].number == 1
    training.publisher.close()


def test_a_version_that_was_damaged_while_no_mirror_ran_serves_once_one_runs(address: str, tmp_path: Path) -> None:
    training, copy = Training(address), tmp_path / "copy"
    training.publish(1)
    mirror = MirrorChild(address, str(copy))
    eventually(lambda: mirror.newest == 1 and Store(copy).latest() is not None, lambda: mirror.reason)
    mirror.close(LONG)
    [data] = copy.glob("ckpt-1.data*")
    content = data.read_bytes()
    data.write_bytes(content[: len(content) // 2] + bytes(len(content) - len(content) // 2))
    with Follower(Replica("m", copy), poll_seconds=3600) as follower:
        eventually(lambda: follower.status().quarantined, lambda: f"{follower.status()}")
        mirror = MirrorChild(address, str(copy))
        serves(follower, 1)
    mirror.close(LONG)
    training.publisher.close()


def test_a_restarted_training_goes_on_above_the_versions_in_the_bucket(address: str) -> None:
    first = Training(address)
    first.publish(10)
    first.publisher.close()
    second = Training(address)
    second.publish(3)
    second.publisher.close()
    with Follower(Replica("m", address), poll_seconds=3600) as follower:
        serves(follower, 11)
        status = follower.status()
        assert status.serving is not None
        assert status.serving.step == 3


def test_the_training_program_publishes_to_a_bucket_and_goes_on_above_its_versions(
    address: str, tmp_path: Path
) -> None:
    number = 0
    for folder in ("first", "second"):
        options = ("--state", tmp_path / folder, "--steps", "20", "--every-steps", "5", "--control-port", "0")
        with Program("trainer", "--store", address, *options, log=tmp_path / "log") as program:
            assert program.end() == 0, program.text
            assert re.search(f"trainer ready: control .*, store {address}\n", program.text)
        with Follower(Replica("m", address), poll_seconds=3600) as follower:
            eventually(lambda: follower.status().serving, lambda: "a version")
            status = follower.status()
            assert status.serving is not None
            assert status.serving.step == 20
            assert status.serving.number > number
            number = status.serving.number


def test_status_of_a_publisher_names_the_bucket(address: str) -> None:
    with Publisher(address, Witness(), control_port=0) as publisher:
        assert publisher.control is not None
        with Trainer(publisher.control) as training:
            assert training.status().store == address


def test_values_of_other_frameworks_go_to_a_bucket_for_a_graph_that_is_in_a_directory(
    address: str, tmp_path: Path
) -> None:
    put(tmp_path, Affine())
    with Publisher.of_graph(address, graph=tmp_path) as publisher:
        publisher.publish(1, values=values(2.0), wait=True)
    with Follower(Replica("m", address), poll_seconds=3600) as follower:
        serves(follower, 1)
        outputs, _ = follower.replica.predict({"x": np.ones([1, 4], np.float32)})
        assert next(iter(outputs.values())).numpy().tolist() == [[4.0] * 4]


def test_the_command_copies_the_newest_version_for_stock_tensorflow(
    address: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source, target = tmp_path / "source", tmp_path / "target"
    assert main(["mirror", str(source), address, "--once"]) == 1
    assert "nothing is published" in capsys.readouterr().err
    three_versions(source)
    assert main(["mirror", str(source), address, "--once"]) == 0
    assert re.fullmatch(r"version 30: whole, 33 kB of 33 kB \(.*%\), .*\n", capsys.readouterr().out)
    assert main(["mirror", address, str(target), "--once", "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert (facts["version"], facts["way"], facts["deltas"]) == (30, "whole", 0)
    assert main(["mirror", address, str(target), "--once"]) == 0
    assert "has the newest version, 30" in capsys.readouterr().out
    assert main(["pin", address, "20"]) == 1
    assert "there are: 30" in capsys.readouterr().err
    assert main(["pin", address, "30"]) == 0
    assert capsys.readouterr().out == f"{address}: all followers serve version 30; no labels\n"
    assert main(["label", address, "stable", "30", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {
        "address": address,
        "pinned": 30,
        "serve_at": None,
        "labels": {"stable": 30},
    }
    assert main(["unpin", address, "--in", "600"]) == 0
    text = rf"{address}: all followers follow the newest version from \d\d:\d\d:\d\d on; stable is version 30\n"
    assert re.fullmatch(text, capsys.readouterr().out)
    assert main(["status", address, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["serve_at"] > time.time()
    assert main(["sync", address, "--in", "600", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["pinned"] is None
    assert main(["sync", address]) == 2
    assert "expected --at TIME or --in S" in capsys.readouterr().err
    found = {name for name, _ in tf.train.list_variables(str(target))}
    assert found == {*NAMES}
    assert main(["verify", str(target)]) == 0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_the_command_well(address: str, tmp_path: Path, number: signal.Signals) -> None:
    three_versions(tmp_path / "source")
    command = ("paramsync.cli", "mirror", tmp_path / "source", address)
    with Program(*command, log=tmp_path / "log") as program:
        program.said("version 30: ")
        assert program.stop(number) == 0
    assert "Traceback" not in (tmp_path / "log").read_text()


def answer(program: Process) -> tuple[set[float], int]:
    message = predict_pb2.PredictRequest()
    message.model_spec.name = "m"
    message.inputs["x"].CopyFrom(tf.make_tensor_proto(np.ones([1, 2], np.float32)))
    found = program.predict(message, timeout=LONG)
    return {*found.outputs["seen"].float_val}, found.model_spec.version.value


def answers(program: Process, number: int) -> bool:
    try:
        seen, version = answer(program)
    except grpc.RpcError:
        return False
    assert seen == {version}
    return version == number


def test_a_server_answers_from_its_copy_while_the_bucket_is_away_and_after_a_restart(
    address: str, seaweedfs: SeaweedFs, tmp_path: Path
) -> None:
    training = Training(address)
    training.publish(1)
    arguments = ("--model", f"m={address}", "--cache", tmp_path / "cache", "--workers", "1")
    program = Process(*arguments)
    program.connect()
    eventually(lambda: answers(program, 1), lambda: "version 1")
    with seaweedfs.away():
        training.publish(2)
        assert answer(program)[1] == 1
        program.close()
        program = Process(*arguments)
        program.connect()
        eventually(lambda: answers(program, 1), lambda: "version 1 from the copy")
    eventually(lambda: answers(program, 2), lambda: "version 2, published while the bucket was away")
    program.close()
    training.publisher.close()
    assert Bucket(address).objects("versions")


def test_a_job_fetches_one_version_and_leaves_no_file(address: str, tmp_path: Path) -> None:
    training = Training(address)
    for step in (1, 2):
        training.publish(step)
        eventually(lambda step=step: training.is_copied(step), lambda: f"it in the bucket: {training.mirror.status}")  # type: ignore[misc]
    files = {*tmp_path.rglob("*")}
    fleet.choose(address, fleet.label(address, "stable", 1))
    for model, number in ((latest(address), 2), (latest(address, version=1), 1), (latest(address, label="stable"), 1)):
        with model:
            assert {*model.predict({"x": np.ones([1, 2], np.float32)})["seen"].tolist()} == {float(number)}
    assert {*tmp_path.rglob("*")} == files
    with pytest.raises(UnknownLabelError, match=r"label 'x' of model '.*' is not there; there are: 'stable'"):
        latest(address, label="x")
    training.publisher.close()


def test_a_worker_that_starts_after_its_version_left_the_bucket_is_told_to_use_a_label(address: str) -> None:
    training = Training(address, keep=2)
    training.publish(1)
    eventually(lambda: training.is_copied(1), lambda: f"it in the bucket: {training.mirror.status}")
    task = pickle.dumps(latest(address))
    for step in (2, 3):
        training.publish(step)
        eventually(lambda step=step: training.is_copied(step), lambda: f"it in the bucket: {training.mirror.status}")  # type: ignore[misc]
    late = pickle.loads(task)
    with pytest.raises(UnknownVersionError, match=r"version 1 of .* is not there; there are: 2, 3; have .* label"):
        late.predict({"x": np.ones([1, 2], np.float32)})
    training.publisher.close()
