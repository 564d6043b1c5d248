"""Each method of each service and each path of HTTP, tried without a right token: what changes something is refused."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection_pb2
from tensorflow_serving.apis import model_service_pb2, prediction_service_pb2

from inferencer.protocols.kserve import http as kserve_http
from paramsync.kserve import open_inference_pb2
from paramsync.publishing.control_port import ControlPort
from paramsync.rpc.access import Access, Effect, effect_of
from paramsync.rpc.tokens import Tokens
from paramsync.v1 import sync_pb2
from tests.support.http import Got, call
from tests.support.in_process import InProcess
from tests.support.published import Publisher
from tests.support.running import LONG, OPTIONS, Running

SECRET = "5ecret-of-the-operators"
TOKENS = Tokens("PARAMSYNC_TOKEN", None, f"ops:{SECRET}")
WRONG = {
    "none": None,
    "another one": "Bearer another-5ecret-of-theirs",
    "a prefix": f"Bearer {SECRET[:-1]}",
    "more": f"Bearer {SECRET}x",
    "another scheme": f"Basic {SECRET}",
    "only the token": SECRET,
}
OPEN = 0.5  # seconds after which a stream is one that goes on
RIGHT = f"Bearer {SECRET}"
UNAUTHENTICATED, DENIED = grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.PERMISSION_DENIED

FILES = (
    sync_pb2.DESCRIPTOR,
    prediction_service_pb2.DESCRIPTOR,
    model_service_pb2.DESCRIPTOR,
    open_inference_pb2.DESCRIPTOR,
    health_pb2.DESCRIPTOR,
    reflection_pb2.DESCRIPTOR,
)
SERVICES = {service.full_name: service for file in FILES for service in file.services_by_name.values()}
METHODS = {f"{name}/{method.name}": method for name, service in SERVICES.items() for method in service.methods}

# Every other method reads: a new one that changes something has to be added here.
HEALTH = {
    "grpc.health.v1.Health/Check",
    "grpc.health.v1.Health/Watch",
    "inference.GRPCInferenceService/ServerLive",
    "inference.GRPCInferenceService/ServerReady",
}
CHANGES = {
    "paramsync.v1.Publisher/Publish",
    *(
        f"paramsync.v1.Sync/{name}"
        for name in ("Sync", "Pin", "Unpin", "Rollback", "Label", "Unlabel", "ReplaceWorkers")
    ),
    "tensorflow.serving.ModelService/HandleReloadConfigRequest",
    *(
        f"inference.GRPCInferenceService/{name}"
        for name in (
            "RepositoryModelLoad",
            "RepositoryModelUnload",
            "SystemSharedMemoryRegister",
            "SystemSharedMemoryUnregister",
            "CudaSharedMemoryRegister",
            "CudaSharedMemoryUnregister",
            "TraceSetting",
            "LogSettings",
        )
    ),
}
READS = set(METHODS) - HEALTH - CHANGES

HTTP_CHANGES = {
    "RepositoryModelLoad": ("POST", "/v2/repository/models/m/load"),
    "RepositoryModelUnload": ("POST", "/v2/repository/models/m/unload"),
    "TraceSetting": ("POST", "/v2/models/m/trace/setting"),
    "LogSettings": ("POST", "/v2/logging"),
}
HTTP_READS = (
    ("GET", "/metrics"),
    ("GET", "/v1/models/m"),
    ("GET", "/v1/models/m/metadata"),
    ("POST", "/v1/models/m:predict"),
    ("GET", "/v2"),
    ("GET", "/v2/models/m/ready"),
    ("POST", "/v2/models/m/infer"),
    ("POST", "/v2/repository/index"),
)


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """Model `m` in version 7, of a server that has tokens."""
    publisher = Publisher(tmp_path_factory.mktemp("store") / "m")
    publisher.publish(7)
    running = Running(publisher.path, tokens=TOKENS)
    running.server.models.follower("m").sync(timeout=LONG)
    yield running
    running.close()
    publisher.close()


@pytest.fixture
def trainer(tmp_path: Path) -> Iterator[grpc.Channel]:
    """A trainer's control port that has them too."""
    access = Access(host="127.0.0.1", tokens=TOKENS)
    with (
        closing(ControlPort("127.0.0.1", 0, store=tmp_path, access=access)) as control,
        grpc.insecure_channel(control.address) as channel,
    ):
        yield channel


def code_of(channel: grpc.Channel, method: str, header: str | None = None) -> grpc.StatusCode:
    """How a call with an empty message is answered."""
    described = METHODS[method]
    make: Any = channel.unary_stream if described.server_streaming else channel.unary_unary
    metadata = None if header is None else [("authorization", header)]
    answer = make(f"/{method}")
    try:
        if not described.server_streaming:
            answer(b"", timeout=LONG, metadata=metadata)
        elif method.endswith("Watch"):
            stream = answer(b"", timeout=LONG, metadata=metadata)
            stream.initial_metadata()
            ended = threading.Event()
            if not stream.add_callback(ended.set) or ended.wait(OPEN):  # a refusal comes with the metadata
                return grpc.StatusCode(stream.code())
            stream.cancel()
        else:
            list(answer(b"", timeout=LONG, metadata=metadata))
    except grpc.RpcError as error:
        return error.code()
    return grpc.StatusCode.OK


def channel_of(method: str, running: Running, trainer: grpc.Channel) -> grpc.Channel:
    if method.startswith("paramsync.v1.Publisher"):
        return trainer
    return running.control if method.startswith("paramsync.v1") else running.predictions


def test_each_method_is_known_to_read_or_to_change_something() -> None:
    assert set(METHODS) >= HEALTH | CHANGES
    for effect, methods in ((Effect.HEALTH, HEALTH), (Effect.READS, READS), (Effect.CHANGES, CHANGES)):
        assert {method: effect_of(method) for method in methods} == dict.fromkeys(methods, effect)


def test_ports_have_no_service_that_is_not_listed_here(running: Running, trainer: grpc.Channel) -> None:
    for channel in (running.predictions, running.control, trainer):
        ask: Any = channel.stream_stream(
            "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo",
            reflection_pb2.ServerReflectionRequest.SerializeToString,
            reflection_pb2.ServerReflectionResponse.FromString,
        )
        requests = iter([reflection_pb2.ServerReflectionRequest(list_services="")])
        [answer] = ask(requests, timeout=LONG)
        assert {service.name for service in answer.list_services_response.service} <= set(SERVICES)


@pytest.mark.parametrize("method", sorted(CHANGES))
def test_what_changes_something_is_refused_without_the_right_token(
    method: str, running: Running, trainer: grpc.Channel
) -> None:
    channel = channel_of(method, running, trainer)
    codes = {why: code_of(channel, method, header) for why, header in WRONG.items()}
    assert codes == dict.fromkeys(WRONG, UNAUTHENTICATED)
    assert code_of(channel, method, RIGHT) not in (UNAUTHENTICATED, DENIED)


@pytest.mark.parametrize("method", sorted((HEALTH | READS) - {"inference.GRPCInferenceService/ModelStreamInfer"}))
def test_what_reads_needs_none(method: str, running: Running, trainer: grpc.Channel) -> None:
    if "ServerReflection" not in method:  # asked above
        assert code_of(channel_of(method, running, trainer), method) not in (UNAUTHENTICATED, DENIED)


def asked(running: Running, method: str, path: str, header: str | None, **headers: str) -> Got:
    shown = {} if header is None else {"Authorization": header}
    return call(running.rest_port, method, path, b"{}" if method == "POST" else None, **shown, **headers)


def test_each_path_of_kserve_that_changes_something_is_tried() -> None:
    calls = {called for _, _, called in kserve_http._PATHS}
    assert {called for called in calls if f"{kserve_http.SERVICE}/{called}" in CHANGES} == set(HTTP_CHANGES)


@pytest.mark.parametrize(
    "where",
    [
        *HTTP_CHANGES.values(),
        ("POST", "/made/up"),
        ("POST", "/api/models/m/pin"),
        ("DELETE", "/v3"),
        ("PUT", "/healthz"),
    ],
)
def test_a_request_that_changes_something_is_refused_without_the_right_token(
    where: tuple[str, str], running: Running
) -> None:
    for header in WRONG.values():
        got = asked(running, *where, header)
        assert (got.status, got.headers["WWW-Authenticate"]) == (401, "Bearer"), got.error
        assert "expected a token that is known here" in got.error
    assert asked(running, *where, RIGHT).status not in (401, 403)


def test_a_page_of_another_site_changes_nothing(running: Running) -> None:
    where = HTTP_CHANGES["RepositoryModelLoad"]
    here = f"http://127.0.0.1:{running.rest_port}"
    for origin in ("https://evil.example", "null", f"{here}.evil.example", here.replace("127.0.0.1", "localhost")):
        assert asked(running, *where, RIGHT, Origin=origin).status == 403
    assert asked(running, *where, RIGHT, Origin=here).status == 200


def test_reading_by_http_needs_none(running: Running) -> None:
    for where in (*HTTP_READS, ("GET", "/healthz"), ("HEAD", "/healthz")):
        assert asked(running, *where, None).status not in (401, 403), where


def test_changes_and_refusals_are_in_the_log(publisher: Publisher, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "paramsync.audit")
    publisher.publish(7)
    with closing(Running(publisher.path, tokens=TOKENS)) as running:  # nobody was refused yet: of many some are told
        running.server.models.follower("m").sync(timeout=LONG)
        pin: Any = running.control.unary_unary("/paramsync.v1.Sync/Pin", sync_pb2.PinRequest.SerializeToString, bytes)
        request = sync_pb2.PinRequest(model="m\nwho='root'", version=7)
        with pytest.raises(grpc.RpcError):
            pin(request, timeout=LONG)
        with pytest.raises(grpc.RpcError):
            pin(request, timeout=LONG, metadata=[("authorization", RIGHT)])
        with closing(InProcess(publisher.path, tokens=TOKENS)) as worker:
            asked(worker, *HTTP_CHANGES["RepositoryModelLoad"], RIGHT)
    refused, failed, done = [record.getMessage() for record in caplog.records if record.name == "paramsync.audit"]
    assert refused.startswith("what='paramsync.v1.Sync/Pin' from='ipv4:127.0.0.1:")
    assert "outcome='refused' why='paramsync.v1.Sync/Pin: expected a token that is known here, found none" in refused
    assert "request='model: \"m\\\\nwho=\\\\\\'root\\\\\\'\" version: 7' who='ops' from='ipv4:127.0.0.1:" in failed
    assert "outcome='failed' why=\"model \"" in failed or "is not served here" in failed
    assert done.startswith("what='inference.GRPCInferenceService/RepositoryModelLoad' request='model_name: \"m\"'")
    assert done.endswith("outcome='done'")
    assert all(line.isprintable() for line in (refused, failed, done))
    assert SECRET not in caplog.text


def test_reading_can_need_a_token_too_and_health_never_does(publisher: Publisher) -> None:
    publisher.publish(7)
    with closing(Running(publisher.path, tokens=TOKENS, auth_reads=True)) as running:
        running.server.models.follower("m").sync(timeout=LONG)
        for method in (READS - CHANGES) - {"grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo"}:
            if not method.startswith("paramsync.v1.Publisher"):
                channel = channel_of(method, running, running.control)
                assert code_of(channel, method) is UNAUTHENTICATED, method
                if not METHODS[method].client_streaming:
                    assert code_of(channel, method, RIGHT) is not UNAUTHENTICATED, method
        for method in HEALTH:
            if not method.endswith("Watch"):
                assert code_of(running.predictions, method) is grpc.StatusCode.OK
        for where in HTTP_READS:
            assert asked(running, *where, None).status == 401, where
            assert asked(running, *where, RIGHT).status != 401, where
        for path in ("/healthz", "/v2/health/live", "/v2/health/ready"):
            assert asked(running, "GET", path, None).status == 200


@pytest.mark.parametrize("method", sorted(CHANGES - {"paramsync.v1.Publisher/Publish"}))
def test_where_others_can_call_and_nothing_is_configured_nothing_is_changed(
    method: str, open_to_others: Running
) -> None:
    channel = channel_of(method, open_to_others, open_to_others.control)
    assert {code_of(channel, method, header) for header in (None, RIGHT)} == {DENIED}


def test_by_http_neither(open_to_others: Running) -> None:
    for where in HTTP_CHANGES.values():
        got = asked(open_to_others, *where, None)
        assert (got.status, "start with --token-file FILE" in got.error) == (403, True)


def test_a_trainer_that_others_can_call_publishes_for_nobody(tmp_path: Path) -> None:
    with closing(ControlPort("0.0.0.0", 0, store=tmp_path)) as control:
        port = control.address.rpartition(":")[2]
        with grpc.insecure_channel(f"127.0.0.1:{port}", OPTIONS) as channel:
            assert code_of(channel, "paramsync.v1.Publisher/Publish") is DENIED
            assert code_of(channel, "paramsync.v1.Publisher/GetStatus") is grpc.StatusCode.OK


@pytest.fixture(scope="module")
def open_to_others(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    running = Running(tmp_path_factory.mktemp("open") / "m", host="0.0.0.0")
    yield running
    running.close()


PATHS = [
    ("GET", "/metrics"), ("GET", "/monitoring/prometheus/metrics"), ("GET", "/healthz"), ("HEAD", "/healthz"),
    ("GET", "/v1/models/m"), ("GET", "/v1/models/m/metadata"), ("POST", "/v1/models/m:predict"), ("GET", "/v2"),
    ("GET", "/v2/models/m"), ("POST", "/v2/models/m/infer"), ("GET", "/"), ("GET", "/nothing"), ("PUT", "/v1/models/m"),
]  # fmt: skip


def test_on_loopback_no_path_answers_to_a_name_of_another_site_unless_it_is_allowed(publisher: Publisher) -> None:
    publisher.publish(7)
    with closing(Running(publisher.path, allowed_hosts=("Proxy.example",))) as running:
        running.server.models.follower("m").sync(timeout=LONG)
        for method, path in PATHS:
            for host in ("evil.example", f"proxy.example.evil:{running.rest_port}"):
                assert call(running.rest_port, method, path, None, Host=host).status == 403, (method, path, host)
            for host in (
                "proxy.example",
                f"PROXY.EXAMPLE:{running.rest_port}",
                "localhost",
                f"localhost.:{running.rest_port}",
                f"127.1.2.3:{running.rest_port}",
            ):
                assert call(running.rest_port, method, path, None, Host=host).status != 403, (method, path, host)
        where = HTTP_CHANGES["RepositoryModelLoad"]
        got = asked(running, *where, None, Host="127.0.0.1.evil.example")
        assert (got.status, "expected a loopback address in the header Host" in got.error) == (403, True)
        assert asked(running, *where, None, Host=f"[::1]:{running.rest_port}").status == 200


def test_where_others_can_call_any_name_may_lead_here(open_to_others: Running) -> None:
    assert call(open_to_others.rest_port, "GET", "/metrics", None, Host="models.example").status == 200
