"""More calls at once than are answered: each is refused by name, or answered from the version that it names."""

from __future__ import annotations

import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
import numpy as np
import pytest
from prometheus_client.parser import text_string_to_metric_families
from tensorflow_serving.apis import prediction_service_pb2_grpc

from tests.support.http import Plain, call
from tests.support.programs import eventually
from tests.support.published import Gated, Publisher
from tests.support.running import LONG, OPTIONS, LocalRunning, request, seen, synced

Code = grpc.StatusCode
CALLERS = 48


def test_calls_that_come_while_the_event_loop_is_held_up_are_answered_or_refused_by_name(
    running: LocalRunning, publisher: Publisher
) -> None:
    publisher.publish(7)
    synced(running)
    release, held = threading.Event(), threading.Event()

    def hold() -> None:
        held.set()
        release.wait(LONG)

    channels = [
        grpc.insecure_channel(f"127.0.0.1:{running.port}", [*OPTIONS, ("grpc.use_local_subchannel_pool", 1)])
        for _ in range(4)
    ]
    for one in channels:
        grpc.channel_ready_future(one).result(LONG)
    stubs = [prediction_service_pb2_grpc.PredictionServiceStub(one).Predict for one in channels]
    running._loop.call_soon_threadsafe(hold)
    assert held.wait(LONG)
    message = request()
    calls = [
        stubs[at % 4].future(message, timeout=LONG) for at in range(2400)
    ]  # of which gRPC alone would end some beyond 1000
    release.set()
    codes = Counter(one.code() for one in calls)
    assert set(codes) <= {Code.OK, Code.RESOURCE_EXHAUSTED}, codes
    assert codes[Code.OK] >= 256
    for one in channels:
        one.close()


def _call_until(over: threading.Event, running: LocalRunning, number: int) -> tuple[int, set[int]]:
    """One caller; how many answers there were, and of which versions."""
    answered, versions = 0, set()
    x = np.full([1 + number % 3, 2], 1 + number, np.float32)
    message = request(x=x)
    while not over.is_set():
        answer = running.prediction_service.Predict(message, timeout=LONG)
        version = answer.model_spec.version.value
        assert answer.outputs["y"].float_val == (x * version).reshape(-1).tolist()
        answered += 1
        versions.add(version)
    return answered, versions


def _together(running: LocalRunning) -> Counter[str]:
    """How many calls there were (count), for how many requests (sum)."""
    families = text_string_to_metric_families(running.server.exposition.text().decode())
    [found] = [one for one in families if one.name == "paramsync_batch_requests"]
    counted = Counter[str]()
    for sample in found.samples:
        counted[sample.name.rpartition("_")[2]] += int(sample.value)
    return counted


def test_rows_that_are_computed_together_come_from_the_version_that_each_answer_names(
    running: LocalRunning, publisher: Publisher
) -> None:
    publisher.publish(1, kind=Plain)
    synced(running)
    over, pause = threading.Event(), threading.Event()
    with ThreadPoolExecutor(CALLERS) as callers:
        calling = [callers.submit(_call_until, over, running, number) for number in range(CALLERS)]
        try:
            for step in range(2, 42):
                publisher.publish(step, kind=Plain)
                synced(running)  # none is skipped, however busy the machine is
                pause.wait(0.05)
        finally:
            over.set()
    answered = sum(one.result()[0] for one in calling)
    assert len(set[int]().union(*(one.result()[1] for one in calling))) > 20
    eventually(lambda: _together(running)["sum"] >= answered, lambda: "all to be counted")  # just after its answer
    counted = _together(running)
    assert counted["sum"] - counted["count"] > 50  # went with another


def test_beyond_the_queue_both_protocols_refuse_at_once_and_others_are_answered(tmp_path: Path, gate: Path) -> None:
    running, publisher = LocalRunning(tmp_path / "m", queue=8), Publisher(tmp_path / "m")
    publisher.publish(5, kind=Gated)
    synced(running)
    called = tmp_path / "called"
    endless = request(called=str(called), gate=str(gate), x=np.ones([1, 2], np.float32))
    waiting = [running.prediction_service.Predict.future(endless, timeout=LONG) for _ in range(8)]
    eventually(lambda: running.server.predicting.batcher.held == 8, lambda: "the queue to be full")
    for _ in range(20):
        with pytest.raises(grpc.RpcError, match="8 requests are waiting or being answered already") as raised:
            running.prediction_service.Predict(endless, timeout=LONG)
        assert raised.value.code() is Code.RESOURCE_EXHAUSTED
        inputs = {"x": [[1.0, 1.0]], "called": str(called), "gate": str(gate)}
        got = call(running.rest_port, "POST", "/v1/models/m:predict", {"inputs": inputs})
        assert (got.status, "8 requests are waiting" in got.error) == (429, True)
    assert call(running.rest_port, "GET", "/v1/models/m").status == 200
    gate.touch()
    assert all(seen(one.result()) == [5.0] * 6 for one in waiting)
    assert seen(running.prediction_service.Predict(endless, timeout=LONG)) == [5.0] * 6
    running.drain()
    running.close()
    publisher.close()


def test_callers_of_one_connection_wait_beyond_its_calls_and_none_is_refused(served: LocalRunning) -> None:
    call = served.predictions.unary_unary("/tensorflow.serving.PredictionService/Predict", bytes, bytes)
    content = request().SerializeToString()
    calls = [call.future(content, timeout=2 * LONG) for _ in range(2500)]
    assert Counter(one.code() for one in calls) == {Code.OK: 2500}
