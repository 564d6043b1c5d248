"""The program: what it says to bad settings, and how it starts, follows, drains and ends as a process."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
import tensorflow as tf
from grpc_health.v1 import health_pb2, health_pb2_grpc
from tensorflow_serving.apis import predict_pb2, prediction_service_pb2_grpc

from inferencer.settings import ModelSettings, Settings, parse
from paramsync.errors import SettingsError, StoreError
from paramsync.v1 import sync_pb2 as pb
from paramsync.v1 import sync_pb2_grpc
from tests.programs import eventually, refused
from tests.published import GATED_OPS, Gated, Publisher, proven

LONG = 60.0
SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING
OK, UNAVAILABLE = grpc.StatusCode.OK, grpc.StatusCode.UNAVAILABLE
Predict = Any  # a stock client's method


# Settings -------------------------------------------------------------------------------------------------------------


def test_settings_as_documented(tmp_path: Path) -> None:
    found = parse(["--model", f"a={tmp_path}", "--model", "b=/not/there=yet"])
    models = (ModelSettings(name="a", store=tmp_path), ModelSettings(name="b", store=Path("/not/there=yet")))
    assert found == Settings(models=models)
    assert (found.host, found.port, found.control_port, found.poll_seconds) == ("127.0.0.1", 8500, 8502, 5.0)
    assert found.verify == "checksums"
    assert parse(["--model", "a=/s", "--verify", "sizes"]).verify == "sizes"


def test_ops_that_may_be_used_are_named_one_by_one() -> None:
    assert parse(["--model", "a=/s"]).allowed == ()
    assert parse(["--model", "a=/s", "--allow-op", "ReadFile", "--allow-op", "Add>Ons"]).allowed == (
        "ReadFile",
        "Add>Ons",
    )


def test_tensor_names_are_split() -> None:
    found = parse(["--model", "a=/s", "--inputs", "x:0, z:0", "--outputs", "y:0"])
    assert (found.inputs, found.outputs) == (("x:0", "z:0"), ("y:0",))


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ([], "--model"),
        (["--model", "digits"], "--model digits: expected NAME=STORE, such as digits=/"),
        (["--model", "=store"], "expected NAME=STORE"),
        (["--model", "digits="], "expected NAME=STORE"),
        (["--model", "two words=store"], "expected NAME=STORE"),
        (["--model", "a=x", "--model", "a=y"], "--model a=...: expected each name once, found it 2 times"),
        (["--model", "a=x", "--inputs", "x:0"], "expected --inputs and --outputs together"),
        (
            ["--model", "a=x", "--model", "b=y", "--inputs", "x:0", "--outputs", "y:0"],
            "--inputs and --outputs name tensors of one graph: expected one --model with them, found 2",
        ),
        (["--model", "a=x", "--inputs", "x:0,", "--outputs", "y:0"], "expected names of tensors"),
        (["--model", "a=x", "--port", "65536"], "expected a port from 0 to 65535, found '65536'"),
        (["--model", "a=x", "--port", "-1"], "port"),
        (["--model", "a=x", "--port", "9000", "--control-port", "9000"], "expected two different ports, found 9000"),
        (["--model", "a=x", "--poll-seconds", "0"], "expected seconds above 0, found '0'"),
        (["--model", "a=x", "--poll-seconds", "nan"], "expected seconds above 0, found 'nan'"),
        (["--model", "a=x", "--verify", "nothing"], "invalid choice: 'nothing'"),
        (["--model", "a=x", "--allow-op", "ReadFile,WriteFile"], "expected the name of one op, such as ReadFile"),
        (["--model", "a=x", "--wrong"], "--wrong"),
        (["--model", "a=/n\udcff"], "expected arguments in UTF-8, found 'a=/n\\udcff'"),
    ],
)
def test_wrong_settings_say_what_was_expected(arguments: list[str], text: str) -> None:
    with pytest.raises(SettingsError, match=re.escape(text)):
        parse(arguments)


def test_a_store_that_is_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(StoreError, match=f"store {tmp_path}/file: expected a directory, found a file"):
        parse(["--model", f"a={tmp_path}/file"])
    with pytest.raises(StoreError, match="Not a directory"):
        parse(["--model", f"a={tmp_path}/file/store"])


def ended(*arguments: str, user: str | int | None = None) -> tuple[int, str]:
    """Exit code and standard error of a run that ends by itself."""
    command = [sys.executable, "-m", "inferencer", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=LONG, user=user, check=False)
    return done.returncode, done.stderr


def test_bad_settings_end_with_one_line_and_exit_code_2(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    code, text = ended("--model", f"digits={tmp_path}/file")
    assert (code, text) == (2, f"inferencer: store {tmp_path}/file: expected a directory, found a file\n")


def test_a_taken_port_is_one_line_and_exit_code_2(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        code, text = ended("--model", f"digits={tmp_path}", "--port", str(port))
    assert code == 2
    assert text == f"inferencer: port {port} of 127.0.0.1 is taken; choose another with --port (0: any free)\n"


def test_a_path_that_is_not_utf8_is_one_line_and_exit_code_2() -> None:
    code, text = ended("--model", os.fsdecode(b"digits=/n\xff"))
    assert (code, text) == (2, "inferencer: expected arguments in UTF-8, found 'digits=/n\\udcff'\n")


def test_settings_are_judged_before_tensorflow_is_imported(tmp_path: Path) -> None:
    program = "import sys; from inferencer.__main__ import main; print(main(sys.argv[1:]), 'tensorflow' in sys.modules)"
    with socket.create_server(("127.0.0.1", 0)) as taken:
        arguments = ["--model", f"a={tmp_path}", "--port", str(taken.getsockname()[1])]
        done = subprocess.run([sys.executable, "-c", program, *arguments], capture_output=True, text=True, check=True)
    assert done.stdout == "2 False\n"


def test_signals_are_taken_over_before_anything_that_takes_time_is_imported() -> None:
    program = "import sys, inferencer.__main__; print({'argparse', 'asyncio', 'logging', 'grpc'} & {*sys.modules})"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"


def test_an_unreadable_store_is_refused(tmp_path: Path) -> None:
    store = tmp_path / "store"
    store.mkdir(mode=0)
    said = refused("inferencer", "--model", f"a={store}")
    assert said.startswith(f"inferencer: store {store}: cannot be read: permission denied")


# The process ----------------------------------------------------------------------------------------------------------


class Process:
    """A real inferencer, and what it logs."""

    def __init__(self, store: Path) -> None:
        command = [sys.executable, "-m", "inferencer", "--model", f"m={store}", "--port", "0", "--control-port", "0"]
        command += [word for op in GATED_OPS for word in ("--allow-op", op)]
        self.lines: list[str] = []
        self._ready = threading.Event()
        self.process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.lines.append(line)
            if "inferencer ready" in line:
                self._ready.set()
        self._ready.set()

    def connect(self) -> None:
        assert self._ready.wait(LONG)
        ports = re.search(r"inferencer ready: predictions (\S+), control (\S+)$", "".join(self.lines), re.MULTILINE)
        assert ports is not None, "".join(self.lines)
        self.address = ports[1]
        self.predictions = grpc.insecure_channel(self.address)
        self.control = grpc.insecure_channel(ports[2])
        self.sync = sync_pb2_grpc.SyncStub(self.control)
        self.predict = prediction_service_pb2_grpc.PredictionServiceStub(self.predictions).Predict
        self.health = health_pb2_grpc.HealthStub(self.predictions)

    def end(self, *signals: signal.Signals) -> int:
        for one in signals:
            self.process.send_signal(one)
        return self.ended()

    def ended(self) -> int:
        code = self.process.wait(LONG)
        self._reader.join(LONG)
        return code

    def close(self) -> None:
        self.process.kill()
        self.ended()
        assert self.process.stderr is not None
        self.process.stderr.close()
        for channel in (getattr(self, "predictions", None), getattr(self, "control", None)):
            if channel is not None:
                channel.close()


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return tmp_path / "store"


@pytest.fixture
def program(store: Path) -> Iterator[Process]:
    program = Process(store)
    yield program
    program.close()


@pytest.fixture
def publisher(store: Path) -> Iterator[Publisher]:
    publisher = Publisher(store)
    yield publisher
    publisher.close()


def of_witness() -> predict_pb2.PredictRequest:
    message = predict_pb2.PredictRequest()
    message.model_spec.name = "m"
    message.inputs["x"].CopyFrom(tf.make_tensor_proto(np.ones([1, 2], np.float32)))
    return message


def of_gated(called: Path, gate: Path) -> predict_pb2.PredictRequest:
    message = of_witness()
    message.inputs["called"].CopyFrom(tf.make_tensor_proto(str(called)))
    message.inputs["gate"].CopyFrom(tf.make_tensor_proto(str(gate)))
    return message


@pytest.mark.slow
def test_it_starts_without_a_store_and_serves_once_something_is_published(program: Process, store: Path) -> None:
    program.connect()
    assert program.health.Check(health_pb2.HealthCheckRequest()).status == NOT_SERVING
    with pytest.raises(grpc.RpcError) as raised:
        program.predict(of_witness(), timeout=LONG)
    assert raised.value.code() is grpc.StatusCode.UNAVAILABLE
    assert str(store) in str(raised.value.details())
    watched = program.health.Watch(health_pb2.HealthCheckRequest(service="m"), timeout=LONG)
    assert next(watched).status == NOT_SERVING
    publisher = Publisher(store)
    publisher.publish(3)
    assert next(watched).status == SERVING  # nobody asked for a sync
    answer = program.predict(of_witness(), timeout=LONG)
    assert proven(list(answer.outputs["seen"].float_val), answer.model_spec.version.value)
    assert answer.model_spec.version.value == 3
    publisher.close()
    assert program.end(signal.SIGINT) == 0
    assert "Traceback" not in "".join(program.lines)


@pytest.mark.slow
def test_killed_and_started_again_with_a_corrupt_newest_version_it_serves_the_newest_good_one(
    publisher: Publisher, store: Path
) -> None:
    publisher.publish(1)
    first = Process(store)
    first.connect()
    list(first.sync.Sync(pb.SyncRequest(), timeout=LONG))
    first.close()  # kill -9
    publisher.publish(2)
    publisher.publish_corrupt(3)
    second = Process(store)
    second.connect()
    with pytest.raises(grpc.RpcError, match="version 3 of model 'm' is quarantined"):
        list(second.sync.Sync(pb.SyncRequest(), timeout=LONG))
    answer = second.predict(of_witness(), timeout=LONG)
    assert (answer.model_spec.version.value, proven(list(answer.outputs["seen"].float_val), 2)) == (2, True)
    second.close()


@pytest.mark.slow
def test_a_request_in_flight_at_sigterm_is_answered_and_a_second_signal_changes_nothing(
    program: Process, publisher: Publisher, tmp_path: Path
) -> None:
    publisher.publish(4, kind=Gated)
    program.connect()
    list(program.sync.Sync(pb.SyncRequest(), timeout=LONG))
    watched = program.health.Watch(health_pb2.HealthCheckRequest(), timeout=LONG)
    assert next(watched).status == SERVING
    watching = program.sync.Watch(pb.WatchRequest(), timeout=LONG)  # a stream that nobody ends
    waiting = program.sync.Sync(pb.SyncRequest(version=99), timeout=LONG)
    assert next(waiting).phase == pb.SyncProgress.LOOKING

    called, gate = tmp_path / "called", tmp_path / "gate"
    answer = program.predict.future(of_gated(called, gate), timeout=LONG)
    eventually(called.exists, lambda: "the request to be computed")
    program.process.send_signal(signal.SIGTERM)
    assert next(watched).status == NOT_SERVING
    assert not answer.done()
    with pytest.raises(grpc.RpcError, match="stopping"):
        next(waiting)
    program.process.send_signal(signal.SIGTERM)
    program.process.send_signal(signal.SIGINT)
    gate.touch()
    assert list(answer.result().outputs["seen"].float_val) == [4.0] * 6
    assert program.ended() == 0
    assert list(watching) == []
    text = "".join(program.lines)
    assert "Traceback" not in text
    assert "inferencer stopped" in text


def connected(program: Process, count: int) -> list[Predict]:
    """As many clients of one process, each with a connection of its own that stands."""
    options = [("grpc.use_local_subchannel_pool", 1)]
    channels = [grpc.insecure_channel(program.address, options) for _ in range(count)]
    for one in channels:
        grpc.channel_ready_future(one).result(LONG)
    return [prediction_service_pb2_grpc.PredictionServiceStub(one).Predict for one in channels]


@pytest.mark.slow
def test_no_call_sent_before_sigterm_is_lost(program: Process, publisher: Publisher) -> None:
    publisher.publish(4)
    program.connect()
    list(program.sync.Sync(pb.SyncRequest(), timeout=LONG))
    clients = connected(program, 8)
    answers = [clients[at % 8].future(of_witness(), timeout=LONG) for at in range(400)]
    program.process.send_signal(signal.SIGTERM)
    codes = Counter(one.code() for one in answers)
    assert set(codes) <= {OK, UNAVAILABLE, grpc.StatusCode.RESOURCE_EXHAUSTED}, codes  # which is: too many at once
    assert codes[OK] >= 256, codes
    assert program.ended() == 0


@pytest.mark.slow
def test_clients_that_call_again_and_again_are_refused_at_the_end_and_lose_no_call(
    program: Process, publisher: Publisher
) -> None:
    publisher.publish(4)
    program.connect()
    list(program.sync.Sync(pb.SyncRequest(), timeout=LONG))
    codes: list[list[grpc.StatusCode]] = [[] for _ in range(16)]

    def call(client: Predict, mine: list[grpc.StatusCode]) -> None:
        while mine.count(OK) == len(mine):
            mine.append(client.future(of_witness(), timeout=LONG).code())

    threads = [
        threading.Thread(target=call, args=both) for both in zip(connected(program, len(codes)), codes, strict=True)
    ]
    for one in threads:
        one.start()
    eventually(lambda: all(len(mine) > 10 for mine in codes), lambda: "some answers for each")
    program.process.send_signal(signal.SIGTERM)
    for one in threads:
        one.join(LONG)
    assert [mine[-1] for mine in codes] == [UNAVAILABLE] * len(codes)
    assert program.ended() == 0


@pytest.mark.slow
def test_a_computation_that_never_ends_is_given_up_after_the_grace(
    program: Process, publisher: Publisher, tmp_path: Path
) -> None:
    publisher.publish(4, kind=Gated)
    program.connect()
    list(program.sync.Sync(pb.SyncRequest(), timeout=LONG))
    called = tmp_path / "called"
    answer = program.predict.future(of_gated(called, tmp_path / "never"), timeout=LONG)
    eventually(called.exists, lambda: "the request to be computed")
    assert program.end(signal.SIGTERM) == 0
    assert answer.code() is not OK
    text = "".join(program.lines)
    assert "Traceback" not in text
    assert "are given up: 1\n" in text


@pytest.mark.slow
def test_a_signal_before_it_is_ready_ends_it_quietly(program: Process) -> None:
    eventually(lambda: imports_tensorflow(program.process.pid), lambda: "TensorFlow to be imported")
    assert program.end(signal.SIGINT) == 0
    assert "Traceback" not in "".join(program.lines)


def imports_tensorflow(pid: int) -> bool:
    return "tensorflow" in Path(f"/proc/{pid}/maps").read_text()


@pytest.mark.slow
def test_a_second_server_on_the_same_port_is_refused(program: Process, store: Path) -> None:
    program.connect()
    port = re.search(r"predictions 127.0.0.1:(\d+)", "".join(program.lines))
    assert port is not None
    code, text = ended("--model", f"m={store}", "--port", port[1], "--control-port", "0")
    assert (code, len(text.splitlines())) == (2, 1)
    assert "is taken" in text
