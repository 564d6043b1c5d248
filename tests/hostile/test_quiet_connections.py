"""Clients that hold connections and say nothing, against a real inferencer: others get in, and calls go on."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import grpc
import numpy as np
import pytest
from tensorflow_serving.apis import predict_pb2, prediction_service_pb2_grpc

from paramsync.rpc import tensor_proto
from paramsync.v1 import sync_pb2, sync_pb2_grpc
from tests.support.echoes import Echoes
from tests.support.http2_client import connected
from tests.support.inferencers import LONG, Process
from tests.support.programs import eventually

FEW = 200  # descriptors
OPTIONS = [("grpc.use_local_subchannel_pool", 1), ("grpc.enable_retries", 0)]


@pytest.fixture
def few(tmp_path: Path) -> Iterator[Process]:
    echoes = Echoes(tmp_path / "m")
    echoes.publish(4)
    with Process("--model", f"m={tmp_path / 'm'}", "--rest-port", "0", descriptors=FEW) as program:
        yield program
    echoes.close()


def port(address: str) -> int:
    return int(address.rpartition(":")[2])


def predicted(address: str) -> bool:
    """By a connection of its own."""
    message = predict_pb2.PredictRequest(output_filter=["version"])
    message.model_spec.name, message.model_spec.signature_name = "m", "shaped"
    message.inputs["x"].ParseFromString(tensor_proto.from_array(np.ones(2, np.float32)).SerializeToString())
    with grpc.insecure_channel(address, OPTIONS) as channel:
        try:
            prediction_service_pb2_grpc.PredictionServiceStub(channel).Predict(message, timeout=5)
        except grpc.RpcError:
            return False
    return True


def told(address: str) -> bool:
    with grpc.insecure_channel(address, OPTIONS) as channel:
        try:
            sync_pb2_grpc.SyncStub(channel).GetStatus(sync_pb2.GetStatusRequest(), timeout=5)
        except grpc.RpcError:
            return False
    return True


@pytest.mark.slow
def test_with_few_descriptors_quiet_clients_shut_nobody_out(few: Process) -> None:
    assert few.sync.GetStatus(sync_pb2.GetStatusRequest(), timeout=LONG)
    watch = few.sync.Watch(sync_pb2.WatchRequest(), timeout=10 * LONG)
    watch.initial_metadata()
    control = few.control_address
    clients = [connected(port(address)) for _ in range(FEW) for address in (few.address, control)]
    for _ in range(3):
        eventually(lambda: predicted(few.address), lambda: "a prediction by a new connection")
        eventually(lambda: told(control), lambda: "a status by a new connection")
        clients += [connected(port(address)) for _ in range(FEW // 4) for address in (few.address, control)]
    assert few.http("GET", "/v1/models/m")[0] == 200
    assert watch.is_active()
    watch.cancel()
    for client in clients:
        client.close()
    assert "Traceback" not in "".join(few.lines)
