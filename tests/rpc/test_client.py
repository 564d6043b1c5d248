"""The client against real gRPC servers that speak the contract; addresses as text, and ports that can be had or not."""

from __future__ import annotations

import argparse
import re
import socket
import threading
from collections.abc import Iterator

import grpc
import numpy as np
import pytest
from grpc_health.v1 import health, health_pb2, health_pb2_grpc

from paramsync import errors
from paramsync.errors import SettingsError
from paramsync.rpc import addresses
from paramsync.rpc.client import Inferencer, Predictor, Trainer
from paramsync.v1 import sync_pb2 as pb
from tests.support.servers import (
    CORRUPT,
    ENDS_EARLY,
    SERVING,
    add_predictions,
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
        if context.add_callback(ended.set):  # False: the caller has left already
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


def has_ipv6() -> bool:
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        return False
    return True


@pytest.mark.parametrize(("text", "port"), [("0", 0), ("8500", 8500), ("65535", 65535)])
def test_a_port_is_read(text: str, port: int) -> None:
    assert addresses.read_port(text) == port


@pytest.mark.parametrize("text", ["", "-1", "65536", "8500 ", "1e3", "1_000", "\u0663\u0664", "\u00b2", "9" * 5000])
def test_what_is_no_port_is_refused(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match=re.escape(f"expected a port from 0 to 65535, found {text!r}")):
        addresses.read_port(text)


@pytest.mark.parametrize(
    ("host", "whole"), [("127.0.0.1", "127.0.0.1:8500"), ("::1", "[::1]:8500"), ("localhost", "localhost:8500")]
)
def test_a_host_and_a_port_make_an_address(host: str, whole: str) -> None:
    assert addresses.address(host, 8500) == whole
    assert addresses.check_address(whole) == whole


@pytest.mark.parametrize(
    "text",
    [
        "", "localhost", ":8500", "localhost:", "localhost:0", "localhost:99999", "localhost:http", "::1:8500", "[::1]",
        "[localhost]:8500", "[]:8500", "http://localhost:8500", "local host:8500", "localhost:8500\n",
        "localhost:\u0668\u0665",
    ],
)  # fmt: skip
def test_what_is_no_address_is_refused(text: str) -> None:
    with pytest.raises(SettingsError, match=re.escape(f"address {text!r}: expected HOST:PORT")):
        addresses.check_address(text)


IPV6 = pytest.param("::1", marks=pytest.mark.skipif(not has_ipv6(), reason="this machine has no IPv6"))


@pytest.mark.parametrize("host", ["127.0.0.1", IPV6])
def test_a_port_that_is_taken_is_said_with_the_option_that_mends_it(host: str) -> None:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.create_server((host, 0), family=family) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(SettingsError, match=f"port {port} of {host} is taken; choose another with --port"):
            addresses.check_ports(host, {"--port": port, "--other": 0})
        assert "is taken" in str(addresses.refused(host, port, "--port"))
    addresses.check_ports(host, {"--port": port, "--other": 0})


def test_a_host_that_is_not_this_machines_is_refused() -> None:
    with pytest.raises(SettingsError, match="Cannot assign requested address; choose another with --host and --port"):
        addresses.check_port("192.0.2.1", 8500, "--port")
    assert "cannot listen on port 8500 of " in str(addresses.refused("no host", 8500, "--port"))


def test_one_port_given_twice_is_refused_but_for_any_free_one() -> None:
    with pytest.raises(SettingsError, match="expected two different ports, found 9000 for both --b and --c"):
        addresses.check_ports("127.0.0.1", {"--a": 0, "--b": 9000, "--c": 9000, "--d": 0})
