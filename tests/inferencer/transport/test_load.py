"""Versions swapped in under load: parameters are a function of the version, so that every answer proves its own."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from paramsync.rpc import tensor_proto
from paramsync.rpc.client import Inferencer
from paramsync.v1 import serving_pb2
from tests.support.programs import ROOT, Program
from tests.support.published import PARAMETERS, Publisher
from tests.support.running import LONG, LocalRunning, request, seen, synced

CALLERS = 16


def test_a_hundred_swaps_under_load_fail_nothing_and_mix_nothing(served: LocalRunning, publisher: Publisher) -> None:
    over = threading.Event()

    def call() -> tuple[int, set[int]]:
        answered = 0
        versions: set[int] = set()
        while not over.is_set():
            answer = served.prediction_service.Predict(request(), timeout=LONG)
            number = answer.model_spec.version.value
            assert seen(answer) == [number] * PARAMETERS
            answered += 1
            versions.add(number)
        return answered, versions

    with ThreadPoolExecutor(4) as threads:
        calls = [threads.submit(call) for _ in range(4)]
        try:
            for step in range(8, 108):
                publisher.publish(step)
                synced(served)
        finally:
            over.set()
        found = [one.result(LONG) for one in calls]
    assert served.server.models.find("m").status().swaps == 101
    assert len(set().union(*(versions for _, versions in found))) > 10
    assert sum(answered for answered, _ in found) > 100


@pytest.mark.slow
def test_a_thousand_swaps_under_a_hundred_thousand_requests_fail_nothing_and_mix_nothing(tmp_path: Path) -> None:
    publisher = Publisher(tmp_path / "m")
    publisher.publish(1)
    asked = serving_pb2.PredictRequest(model_spec=serving_pb2.ModelSpec(name="m"), output_filter=["seen"])
    asked.inputs["x"].CopyFrom(tensor_proto.from_array(np.ones([1, 2], np.float32)))
    (tmp_path / "request").write_bytes(asked.SerializeToString())
    answered, versions, deadline = 0, 0, time.monotonic() + 400
    with _inferencer(tmp_path) as (predictions, control), Inferencer(control) as client, _publishing(publisher):
        while answered < 100_000 or client.status("m")[0].swaps < 1000:
            assert time.monotonic() < deadline
            callers = [_traffic(predictions, tmp_path / "request") for _ in range(2)]
            for one in callers:
                said, _ = one.communicate(timeout=120)
                found = json.loads(said)
                assert (found["failed"], found["mixed"]) == (0, 0), found
                answered, versions = answered + found["answered"], versions + found["versions"]
    assert versions > 500, versions  # how many passed before the eyes of each, together


@contextmanager
def _inferencer(folder: Path) -> Iterator[tuple[str, str]]:
    """Of model `m`, as a process; yields the addresses for predictions and control."""
    ports = ("--port", "0", "--rest-port", "0", "--control-port", "0")
    with Program("inferencer", "--model", f"m={folder / 'm'}", *ports, log=folder / "log") as program:
        ready = program.said(r"ready: predictions (\S+), control (\S+?),? ")
        with Inferencer(ready[2]) as client:
            client.sync("m")
        yield ready[1], ready[2]
        assert program.stop() == 0


@contextmanager
def _publishing(publisher: Publisher) -> Iterator[None]:
    """Dozens of versions a second, where the machine is not busy, until the block ends."""
    over = threading.Event()

    def publish() -> None:
        step = 2
        while not over.wait(0.02):
            publisher.publish(step)
            step += 1
        publisher.close()

    thread = threading.Thread(target=publish)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join(LONG)


def _traffic(address: str, request: Path) -> subprocess.Popen[str]:
    command = [
        sys.executable,
        "-m",
        "bench.traffic",
        address,
        str(request),
        "--callers",
        str(CALLERS),
        "--seconds",
        "8",
    ]
    return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
