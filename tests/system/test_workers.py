"""Workers: they change versions at one instant, may end at any moment, and never take the supervisor with them."""

from __future__ import annotations

import http.client
import os
import random
import re
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
import tensorflow as tf
from prometheus_client.parser import text_string_to_metric_families
from tensorflow_serving.apis import (
    model_management_pb2,
    model_service_pb2_grpc,
    predict_pb2,
    prediction_service_pb2_grpc,
)

from paramsync.graphs.capturing import capture
from paramsync.v1 import sync_pb2 as pb
from tests.support.inferencers import LONG, Process, of_witness
from tests.support.programs import PATIENCE, eventually, refused
from tests.support.published import Publisher, Witness, proven, publish_graph

pytestmark = pytest.mark.slow
WORKERS = 2
LOCAL = (
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.min_reconnect_backoff_ms", 2000),  # so long is a connection tried: 20 s by default
    ("grpc.max_reconnect_backoff_ms", 1000),  # and so long waited after one that failed: up to two minutes
)


class Bursting(Witness):
    """On zeros it wants far more memory than there is."""

    @tf.function(input_signature=[tf.TensorSpec([None, 2], tf.float32, name="x")])
    def __call__(self, x: tf.Tensor) -> dict[str, tf.Tensor]:
        text = tf.strings.as_string(tf.reduce_sum(x))
        for _ in range(44):
            text = tf.strings.join([text, text])
        return {"seen": tf.stack([part[0, 0] for part in self.parts]), "length": tf.strings.length(text)}


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return tmp_path / "m"


@pytest.fixture
def publisher(store: Path) -> Iterator[Publisher]:
    publisher = Publisher(store)
    yield publisher
    publisher.close()


@pytest.fixture
def program(publisher: Publisher, store: Path) -> Iterator[Process]:
    publisher.publish(1)
    program = Process.of(store, workers=WORKERS)
    program.connect()
    list(program.sync.Sync(pb.SyncRequest(), timeout=LONG))
    yield program
    program.close()


class Caller:
    """Asks on a connection of its own, one call after the other, and sees that versions never go back."""

    def __init__(self, address: str) -> None:
        self.answered = 0
        self.failed: list[grpc.StatusCode] = []
        self.wrong: list[str] = []
        self._over = threading.Event()
        self._address = address
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def end(self) -> None:
        self._over.set()
        self._thread.join(LONG)

    def _run(self) -> None:
        with grpc.insecure_channel(self._address, LOCAL) as channel:
            predict, last = prediction_service_pb2_grpc.PredictionServiceStub(channel).Predict, 0
            while not self._over.is_set():
                try:
                    answer = predict(of_witness(), timeout=LONG, wait_for_ready=True)
                except grpc.RpcError as error:
                    self.failed.append(error.code())
                    continue
                version = answer.model_spec.version.value
                if version < last or not proven(list(answer.outputs["seen"].float_val), version):
                    self.wrong.append(f"{version} after {last}: {list(answer.outputs['seen'].float_val)}")
                last = version
                self.answered += 1


def test_one_client_never_sees_a_version_go_back_whichever_worker_answers(
    program: Process, publisher: Publisher
) -> None:
    predict = prediction_service_pb2_grpc.PredictionServiceStub
    channels = [grpc.insecure_channel(program.address, LOCAL) for _ in range(8)]
    callers = [Caller(program.address) for _ in range(4)]
    last, counts = 0, 0
    for number in range(2, 42):
        publisher.publish(number)
        until = time.monotonic() + 0.1
        while time.monotonic() < until:
            for channel in channels:  # one client with connections to all workers
                answer = predict(channel).Predict(of_witness(), timeout=LONG)
                assert last <= answer.model_spec.version.value
                last, counts = answer.model_spec.version.value, counts + 1
    for one in callers:
        one.end()
    for channel in channels:
        channel.close()
    assert [(one.wrong, one.failed) for one in callers] == [([], [])] * len(callers)
    assert last >= 40
    assert counts > 100


def test_workers_that_are_killed_at_random_are_replaced_and_lose_what_was_in_flight_on_them(
    program: Process, publisher: Publisher
) -> None:
    callers = [Caller(program.address) for _ in range(4)]
    chosen = random.Random(7)
    killed: list[int] = []
    number = 1
    until = time.monotonic() + PATIENCE

    def living() -> list[int]:
        return [worker for worker in program.workers if worker not in killed]  # one may be there for a while yet

    while (len(killed) < 6 or sum(one.answered for one in callers) <= 1000) and time.monotonic() < until:
        number += 1
        publisher.publish(number)
        workers = living()
        if len(workers) == WORKERS:
            killed.append(chosen.choice(workers))
            os.kill(killed[-1], signal.SIGKILL)
        time.sleep(0.3)
    eventually(lambda: len(living()) == WORKERS, lambda: "all workers to be there")
    for one in callers:
        one.end()
    assert len(killed) >= 6
    assert [one.wrong for one in callers] == [[]] * len(callers)
    failed = [code for one in callers for code in one.failed]
    assert set(failed) <= {grpc.StatusCode.UNAVAILABLE}, "".join(program.lines)
    assert len(failed) <= len(killed) * len(callers)
    assert sum(one.answered for one in callers) > 1000
    list(program.sync.Sync(pb.SyncRequest(), timeout=LONG))
    answer = program.predict(of_witness(), timeout=LONG, wait_for_ready=True)
    assert answer.model_spec.version.value == number


def test_a_worker_that_was_stopped_is_replaced_and_holds_no_swap_up_for_long(
    program: Process, publisher: Publisher
) -> None:
    stopped = program.workers[0]
    os.kill(stopped, signal.SIGSTOP)
    publisher.publish(2)
    began = time.monotonic()
    list(program.sync.Sync(pb.SyncRequest(), timeout=LONG))
    assert time.monotonic() - began < LONG / 2
    eventually(lambda: stopped not in program.workers and len(program.workers) == WORKERS, lambda: "it to be replaced")
    for _ in range(8):
        with grpc.insecure_channel(program.address, LOCAL) as channel:
            predict = prediction_service_pb2_grpc.PredictionServiceStub(channel).Predict
            assert predict(of_witness(), timeout=LONG, wait_for_ready=True).model_spec.version.value == 2


def test_the_supervisor_knows_no_tensorflow_and_takes_its_workers_with_it(program: Process) -> None:
    pid, family = program.process.pid, program.workers
    assert "tensorflow" not in Path(f"/proc/{pid}/maps").read_text()
    resident = re.search(r"VmRSS:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    assert resident is not None
    assert int(resident[1]) < 80 * 1024
    assert len(family) == WORKERS
    os.kill(pid, signal.SIGKILL)
    eventually(lambda: not any(is_alive(one) for one in family), lambda: f"{family} to end")


def is_alive(pid: int) -> bool:
    try:
        return "(zombie)" not in Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False


def test_a_graph_that_takes_all_memory_is_quarantined_and_what_served_goes_on(
    program: Process, publisher: Publisher
) -> None:
    before = program.workers
    publisher.publish(2, kind=Bursting)
    with pytest.raises(grpc.RpcError, match="version 2 of model 'm' is quarantined"):
        list(program.sync.Sync(pb.SyncRequest(), timeout=LONG))
    assert program.predict(of_witness(), timeout=LONG).model_spec.version.value == 1
    publisher.publish(3)
    list(program.sync.Sync(pb.SyncRequest(), timeout=LONG))
    assert program.predict(of_witness(), timeout=LONG).model_spec.version.value == 3
    assert program.workers == before


def test_what_changes_the_models_changes_them_for_all_workers_and_counts_are_of_all(
    program: Process, publisher: Publisher, tmp_path: Path
) -> None:
    other = Publisher(tmp_path / "other")
    other.publish(7)
    message = model_management_pb2.ReloadConfigRequest()
    for name in ("m", "other"):
        message.config.model_config_list.config.add(name=name, base_path=str(tmp_path / name))
    channels = [grpc.insecure_channel(program.address, LOCAL) for _ in range(8)]
    answer = model_service_pb2_grpc.ModelServiceStub(channels[0]).HandleReloadConfigRequest(message, timeout=LONG)
    assert answer.status.error_code == 0
    request = of_witness()
    request.model_spec.name = "other"
    for channel in channels:
        predict = prediction_service_pb2_grpc.PredictionServiceStub(channel).Predict
        assert predict(request, timeout=LONG).model_spec.version.value == 7
        channel.close()
    families = text_string_to_metric_families(fetched(program, "/metrics"))
    counted = {
        sample.labels["model"]: sample.value
        for family in families
        for sample in family.samples
        if sample.name == "paramsync_requests_total"
    }
    assert counted["other"] == len(channels)
    other.close()


class Wide(tf.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.scale = tf.Variable(tf.ones([width]))

    @tf.function
    def __call__(self, x: tf.Tensor) -> dict[str, tf.Tensor]:
        return {"y": x * self.scale}


def publish_wide(store: Path, number: int, width: int, factor: float) -> None:
    module = Wide(width)
    found = capture(module.__call__.get_concrete_function(tf.TensorSpec([None, width], tf.float32, name="x")))
    values = {one.name: np.full([width], factor, np.float32) for one in found.graph.parameters}
    publish_graph(store, found.graph, number, values)


def test_models_that_are_joined_answer_once_they_fit_and_go_on_while_they_do_not(tmp_path: Path) -> None:
    config = tmp_path / "models.toml"
    config.write_text(
        "[server]\nworkers = 2\n[models.encoder]\nstore = 'encoder'\n[models.head]\nstore = 'head'\n"
        "[models.joined]\nconnect = ['encoder', 'head']\ninputs = {x = 'y'}\n"
    )
    publish_wide(tmp_path / "encoder", 1, 6, 2.0)
    publish_wide(tmp_path / "head", 1, 7, 3.0)
    program = Process("--config", config)
    program.connect()
    for name in ("encoder", "head"):
        list(program.sync.Sync(pb.SyncRequest(model=name), timeout=LONG))
    assert ask_joined(program)[0] == grpc.StatusCode.UNAVAILABLE
    publish_wide(tmp_path / "head", 2, 6, 3.0)
    list(program.sync.Sync(pb.SyncRequest(model="head"), timeout=LONG))
    assert ask_joined(program) == (6.0, 2)
    publish_wide(tmp_path / "encoder", 2, 5, 2.0)
    list(program.sync.Sync(pb.SyncRequest(model="encoder"), timeout=LONG))
    assert ask_joined(program) == (6.0, 2)
    [status] = program.sync.GetStatus(pb.GetStatusRequest(model="joined"), timeout=LONG).models
    assert status.reason
    assert status.serving.number == 2
    publish_wide(tmp_path / "encoder", 3, 6, 5.0)
    list(program.sync.Sync(pb.SyncRequest(model="encoder"), timeout=LONG))
    assert ask_joined(program) == (15.0, 2)
    program.close()


def ask_joined(program: Process) -> tuple[Any, Any]:
    message = predict_pb2.PredictRequest()
    message.model_spec.name = "joined"
    message.inputs["x"].CopyFrom(tf.make_tensor_proto(np.ones([1, 6], np.float32)))
    try:
        found = program.predict(message, timeout=LONG)
    except grpc.RpcError as error:
        return error.code(), error.details()
    [value] = set(tf.make_ndarray(found.outputs["y"]).reshape(-1).tolist())
    return value, found.model_spec.version.value


def fetched(program: Process, path: str) -> str:
    connection = http.client.HTTPConnection(program.http_address, timeout=LONG)
    connection.request("GET", path)
    text = connection.getresponse().read().decode()
    connection.close()
    return text


@pytest.mark.parametrize(
    ("count", "bound"), [("0", "least 1"), ("-1", "least 1"), ("1000", "most 64"), ("two", "least 1")]
)
def test_a_number_of_workers_that_cannot_be_is_refused_in_one_line(tmp_path: Path, count: str, bound: str) -> None:
    ports = ("--port", "0", "--rest-port", "0", "--control-port", "0")
    said = refused("inferencer", "--model", f"m={tmp_path}", *ports, "--workers", count)
    assert f"--workers: expected a whole number of at {bound}" in said
