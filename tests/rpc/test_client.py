"""The client against real gRPC servers that speak the contract."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import grpc
import numpy as np
import pytest
from grpc_health.v1 import health, health_pb2, health_pb2_grpc

from paramsync import errors
from paramsync.rpc.client import Inferencer, Predictor, Trainer
from paramsync.v1 import sync_pb2 as pb
from tests.support.servers import (
    CORRUPT,
    ENDS_EARLY,
    SERVING,
    TRAINING,
    add_predictions,
    add_publisher,
    add_sync,
    serving,
)


@pytest.fixture
def inferencer() -> Iterator[Inferencer]:
    with (
        serving(add_sync) as address,
        Inferencer(address) as client,
    ):
        yield client


@pytest.fixture
def trainer() -> Iterator[Trainer]:
    with (
        serving(add_publisher) as address,
        Trainer(address) as client,
    ):
        yield client


@pytest.fixture
def predictor() -> Iterator[Predictor]:
    with serving(add_predictions) as address, Predictor(address) as client:
        yield client


def test_sync_returns_the_status_and_passes_its_progress_on(inferencer: Inferencer) -> None:
    phases: list[int] = []
    status = inferencer.sync("digits", progress=lambda progress: phases.append(progress.phase))
    assert status == SERVING
    assert phases == [pb.SyncProgress.LOOKING, pb.SyncProgress.VERIFYING, pb.SyncProgress.DONE]


def test_sync_gives_the_inferencers_reason(inferencer: Inferencer) -> None:
    with pytest.raises(errors.SyncError, match=r"^version 2 was refused: not finite$"):
        inferencer.sync("digits", version=CORRUPT)


def test_sync_does_not_take_an_early_end_for_success(inferencer: Inferencer) -> None:
    with pytest.raises(errors.SyncError, match="without saying that it is done"):
        inferencer.sync("digits", version=ENDS_EARLY)


def test_pin_and_unpin_return_the_status(inferencer: Inferencer) -> None:
    assert inferencer.pin("digits", 420).pinned == 420
    assert not inferencer.unpin("digits").HasField("pinned")


def test_the_trainers_calls_return_what_it_says(trainer: Trainer) -> None:
    assert trainer.status() == TRAINING
    assert trainer.publish().number == 7
    assert [version.number for version in trainer.watch()] == [5, 6, 7]


def test_wrong_inputs_are_the_callers_fault_and_one_line(predictor: Predictor) -> None:
    with pytest.raises(errors.RequestError, match=r"^input 'image', dtype: expected float32, found another$"):
        predictor.predict("strict", {"image": np.zeros(1, np.int64)})


def test_a_server_that_has_no_version_is_not_called_unreachable(predictor: Predictor) -> None:
    with pytest.raises(errors.CallError, match=r"^model 'waiting' is not serving: store /s is empty$") as found:
        predictor.predict("waiting", {"image": np.zeros(1)})
    assert not isinstance(found.value, errors.NotReachableError)


@pytest.mark.parametrize("client", [Trainer, Inferencer, Predictor])
def test_a_port_that_does_not_know_the_call_may_be_the_wrong_one(
    client: type[Trainer] | type[Inferencer] | type[Predictor],
) -> None:
    def ask(one: Trainer | Inferencer | Predictor) -> object:
        return one.predict("digits", {}) if isinstance(one, Predictor) else one.status()

    with serving() as address, client(address) as one, pytest.raises(errors.CallError) as found:
        ask(one)
    assert found.value.code == "UNIMPLEMENTED"
    assert str(found.value).startswith(f"{address} does not answer this call (Method not found!): it may be ")
    assert str(found.value).endswith(
        "the trainer's control port"
        if client is Trainer
        else ("its port for predictions" if client is Predictor else "its control port")
    )


def test_nobody_at_the_address_is_said_with_the_address() -> None:
    with serving() as address:
        pass
    with Inferencer(address) as client, pytest.raises(errors.NotReachableError) as found:
        client.status()
    assert str(found.value).startswith(f"inferencer not reachable at {address} (Connection refused)")
    assert "\n" not in str(found.value)


def test_a_silent_server_is_given_up_on() -> None:
    def silent(request: bytes, context: grpc.ServicerContext) -> bytes:
        ended = threading.Event()
        context.add_callback(ended.set)
        ended.wait()
        return b""

    handlers = {"Predict": grpc.unary_unary_rpc_method_handler(silent)}
    handler = grpc.method_handlers_generic_handler("tensorflow.serving.PredictionService", handlers)
    with (
        serving(lambda server: server.add_generic_rpc_handlers((handler,))) as address,
        Predictor(address) as client,
        pytest.raises(errors.CallError, match=rf"^inferencer at {address} did not answer within 0\.1 s$"),
    ):
        client.predict("digits", {}, seconds=0.1)


def test_health_is_false_for_a_service_that_is_not_known() -> None:
    servicer = health.HealthServicer()
    servicer.set("digits", health_pb2.HealthCheckResponse.SERVING)
    servicer.set("cats", health_pb2.HealthCheckResponse.NOT_SERVING)
    with (
        serving(lambda server: health_pb2_grpc.add_HealthServicer_to_server(servicer, server)) as address,
        Predictor(address) as client,
    ):
        assert [client.serves(model) for model in ("digits", "cats", "dogs")] == [True, False, False]


def test_an_answer_that_is_not_what_it_says_is_the_servers_fault(predictor: Predictor) -> None:
    with pytest.raises(errors.CallError, match=r"answered output 'image' float32 \[2\]: expected 8 bytes"):
        predictor.predict("cut off", {"image": np.zeros(2, np.float32)})
