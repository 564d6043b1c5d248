"""The composition on a real Docker engine: built, brought up, called, killed, stopped and taken down."""

from __future__ import annotations

import http.client
import json
import os
import re
import ssl
import sys
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
import yaml

from paramsync.errors import CallError
from paramsync.rpc.client import Credentials, Inferencer
from paramsync.rpc.tls import ClientTls
from tests.support.programs import ROOT
from tests.support.prometheus import DEPLOYED
from tests.system.compose import base_image
from tests.system.compose.commands import CommandError, run, wait_for
from tests.system.compose.engine import NoEngineError, engine
from tests.system.compose.stack import PROGRAMS, TOKEN, Stack, compose_command

pytestmark = pytest.mark.docker

MONITORING = {
    name: service["image"]
    for name, service in yaml.safe_load((ROOT / "docker-compose.yml").read_text())["services"].items()
    if service.get("profiles") == ["monitoring"]
}
BUCKET = yaml.safe_load((ROOT / "docker-compose.bucket.yml").read_text())["services"]["bucket"]["image"]
NO_COMPOSE = "neither docker compose nor docker-compose is installed"
Predict = Callable[[], "tuple[int, float]"]


@pytest.fixture(scope="module")
def planned(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """A stack whose image is built."""
    try:
        with engine() as environment:
            command = compose_command(environment)
            if command is None:
                pytest.skip(NO_COMPOSE)
            base, folder = base_image.find_or_make(environment), tmp_path_factory.mktemp("stack")
            images = {service: base_image.can_be_had(environment, image) for service, image in MONITORING.items()}
            stack = Stack.plan(command, environment, base_image=base, images=images, folder=folder)
            stack.compose("build", timeout=1200)
            yield stack
    except (NoEngineError, base_image.NoBaseImageError) as reason:
        pytest.skip(str(reason))


@pytest.fixture(scope="module")
def stack(planned: Stack, request: pytest.FixtureRequest) -> Iterator[Stack]:
    """The running stack, serving."""
    with planned.up():
        try:
            wait_for("all are healthy", lambda: _all_healthy(planned), timeout=180)
            yield planned
        finally:
            if request.session.testsfailed or sys.exc_info()[0]:
                sys.stderr.write("".join(f"{planned.tail(service)}\n" for service in planned.services))
    assert planned.left_over() == ""


@pytest.fixture
def predict(stack: Stack) -> Iterator[Predict]:
    """Asks in plain."""
    with grpc.insecure_channel(stack.address("PARAMSYNC_PORT")) as channel:
        yield _asks(channel)


def _asks(channel: grpc.Channel) -> Predict:
    """Asks a stock TensorFlow Serving client; answers the version and the accuracy on digits it has not seen."""
    # Here, not above: it imports TensorFlow, which whoever leaves these tests out should not wait for.
    import tensorflow as tf
    from tensorflow_serving.apis import predict_pb2, prediction_service_pb2_grpc

    from trainer.jobs import glyphs

    images, labels = glyphs.draw(500, seed=99)
    request = predict_pb2.PredictRequest()
    request.model_spec.name = "digits"
    request.inputs["image"].CopyFrom(tf.make_tensor_proto(images))

    service = prediction_service_pb2_grpc.PredictionServiceStub(channel)

    def ask() -> tuple[int, float]:
        answer = service.Predict(request, timeout=10)
        logits = tf.make_ndarray(answer.outputs["logits"])
        return int(answer.model_spec.version.value), float(np.mean(logits.argmax(axis=1) == labels))

    return ask


def test_a_stock_tensorflow_serving_client_sees_the_version_advance(stack: Stack, predict: Predict) -> None:
    first, _ = predict()
    _, accuracy = wait_for("a later version", partial(_later, predict, first), timeout=60)
    assert accuracy > 0.5


def test_prometheus_scrapes_both_programs_and_has_every_alert(stack: Stack) -> None:
    both = {"http://inferencer:8501/metrics", "http://trainer:8504/metrics"}
    wait_for("it scrapes both", lambda: _scraped(stack) == both, timeout=60)
    assert _alerts(stack) == set(re.findall(r"- alert: (\w+)", (DEPLOYED / "alerts.yml").read_text()))


def test_the_operator_command_is_in_the_image(stack: Stack) -> None:
    said = stack.compose("exec", "-T", "inferencer", "paramsync", "status", "--json")
    assert json.loads(said)["servers"][0]["models"][0]["serving"]["number"] > 0


def test_nothing_runs_as_root_and_ports_are_on_loopback_only(stack: Stack) -> None:
    for service, user in {**dict.fromkeys(PROGRAMS, "10001"), "prometheus": "65534"}.items():
        look = "id -u; grep -E 'CapEff|NoNewPrivs' /proc/1/status"
        uid, *privileges = stack.compose("exec", "-T", service, "sh", "-c", look).split()
        assert uid == user
        assert privileges == ["CapEff:", "0000000000000000", "NoNewPrivs:", "1"]
        exposed = stack.inspect(service)["NetworkSettings"]["Ports"].values()
        assert {binding["HostIp"] for ports in exposed for binding in ports or ()} == {"127.0.0.1"}


def test_the_inferencer_cannot_write_to_the_store(stack: Stack) -> None:
    with pytest.raises(CommandError, match="Read-only file system"):
        stack.compose("exec", "-T", "inferencer", "touch", "/store/checkpoint")


@pytest.mark.parametrize("service", PROGRAMS)
def test_a_killed_program_comes_back(stack: Stack, predict: Predict, service: str) -> None:
    before = stack.inspect(service)
    version, _ = predict()
    stack.kill(service)
    wait_for(f"{service} runs again", lambda: _restarted(stack, service, before["RestartCount"]), timeout=60)
    # Without its trainer the inferencer serves as before; without the inferencer nobody answers for a while.
    answer = predict if service == "trainer" else partial(_unless_away, predict)
    wait_for("a later version", lambda: _newer(answer(), version), timeout=120)
    assert stack.inspect(service)["Id"] == before["Id"]
    wait_for("all are healthy again", lambda: _all_healthy(stack), timeout=120)


@pytest.fixture(scope="module")
def beyond(planned: Stack) -> Iterator[Stack]:
    """A trainer, an S3 server and two inferencers, serving."""
    beyond = planned.over_a_bucket(public=base_image.can_be_had(planned.environment, BUCKET))
    with beyond.up():
        wait_for("all are healthy", lambda: _all_healthy(beyond), timeout=180)
        yield beyond
    assert beyond.left_over() == ""


@pytest.fixture
def predict_at_both(beyond: Stack) -> Iterator[tuple[Predict, Predict]]:
    with (
        grpc.insecure_channel(beyond.address("PARAMSYNC_PORT")) as first,
        grpc.insecure_channel(beyond.address("PARAMSYNC_PORT_2")) as second,
    ):
        yield _asks(first), _asks(second)


def test_over_a_bucket_both_inferencers_follow_a_trainer_that_they_cannot_reach(
    beyond: Stack, predict_at_both: tuple[Predict, Predict]
) -> None:
    for predict, service in zip(predict_at_both, ("inferencer", "inferencer-2"), strict=True):
        before, _ = predict()
        _, accuracy = wait_for("a later version", partial(_later, predict, before), timeout=120)
        assert accuracy > 0.5
        look_up = "exec", "-T", service, "python3", "-c", "import socket, sys; socket.getaddrinfo(sys.argv[1], 0)"
        beyond.compose(*look_up, "bucket")
        with pytest.raises(CommandError, match="gaierror"):
            beyond.compose(*look_up, "trainer")


def test_over_a_bucket_both_answer_while_the_bucket_is_away_and_catch_up_afterwards(
    beyond: Stack, predict_at_both: tuple[Predict, Predict]
) -> None:
    beyond.compose("stop", "bucket")
    before = [predict()[0] for predict in predict_at_both]
    beyond.compose("start", "bucket")
    for predict, version in zip(predict_at_both, before, strict=True):
        wait_for("a later version", partial(_later, predict, version), timeout=120)


def test_over_a_bucket_a_killed_trainer_comes_back_and_versions_never_go_back(
    beyond: Stack, predict_at_both: tuple[Predict, Predict]
) -> None:
    count = beyond.inspect("trainer")["RestartCount"]
    before = [predict()[0] for predict in predict_at_both]
    beyond.kill("trainer")
    wait_for("the trainer runs again", lambda: _restarted(beyond, "trainer", count), timeout=60)
    for predict, version in zip(predict_at_both, before, strict=True):
        at_least = predict()[0]
        assert at_least >= version
        wait_for("a later version", partial(_later, predict, at_least), timeout=120)


@pytest.fixture(scope="module")
def secured(stack: Stack, tmp_path_factory: pytest.TempPathFactory) -> Stack:
    """The stack by mutual TLS from now on. Its certificates are made by the commands that the page has."""
    secured = stack.by_tls(tmp_path_factory.mktemp("tls"))
    secured.start()
    return secured


@pytest.fixture
def predict_by_tls(secured: Stack) -> Iterator[Predict]:
    ca, certificate, key = (file.read_bytes() for file in _certificates(secured).values())
    credentials = grpc.ssl_channel_credentials(ca, key, certificate)
    with grpc.secure_channel(secured.address("PARAMSYNC_PORT"), credentials) as channel:
        yield _asks(channel)


def test_stopping_ends_both_with_exit_code_0_and_starting_by_mutual_tls_resumes(
    stack: Stack, predict: Predict, request: pytest.FixtureRequest
) -> None:
    version, _ = predict()
    stack.compose("stop", *PROGRAMS)
    codes = {service: stack.inspect(service)["State"]["ExitCode"] for service in PROGRAMS}
    assert codes == dict.fromkeys(PROGRAMS, 0)
    predict_by_tls: Predict = request.getfixturevalue("predict_by_tls")
    wait_for("a later version", lambda: _newer(_unless_away(predict_by_tls), version), timeout=180)


def test_by_mutual_tls_an_operator_syncs(secured: Stack, predict_by_tls: Predict) -> None:
    before, _ = wait_for("it serves", lambda: _unless_away(predict_by_tls), timeout=180)
    shown = {f"PARAMSYNC_TLS_{name}": str(file) for name, file in _certificates(secured).items()}
    address = secured.address("PARAMSYNC_CONTROL_PORT")
    synced = _paramsync("sync", "digits", "--fresh", "--inferencer", address, "--json", shown=shown)
    serving = synced["status"]["serving"]["number"]
    assert serving > before  # so the trainer published for the inferencer, by TLS
    assert re.search(r"Sync/Sync.* who='ops' .*outcome='done'", secured.tail("inferencer"))


def test_by_mutual_tls_who_shows_no_certificate_is_refused(secured: Stack) -> None:
    ca, certificate, key = _certificates(secured).values()
    for port in ("PARAMSYNC_PORT", "PARAMSYNC_CONTROL_PORT", "PARAMSYNC_TRAINER_PORT"):
        with Inferencer(secured.address(port), Credentials(tls=ClientTls(ca, certificate, key))) as client:
            wait_for(f"{port} serves who shows one", partial(_serves, client), timeout=60)
        for shown in (Credentials(), Credentials(tls=ClientTls(ca))):
            with Inferencer(secured.address(port), shown) as client, pytest.raises(CallError) as refused:
                client.serves()
            assert refused.value.code == "UNAVAILABLE"
    rest, context = secured.address("PARAMSYNC_REST_PORT"), ssl.create_default_context(cafile=str(ca))
    with pytest.raises(urllib.error.HTTPError, match="401"):
        urllib.request.urlopen(f"https://{rest}/v2/repository/models/digits/load", b"{}", timeout=10, context=context)
    with pytest.raises((OSError, http.client.HTTPException)):  # which of them, is a matter of when it hangs up
        urllib.request.urlopen(f"http://{rest}/v1/models/digits", timeout=10)


def test_the_gpu_file_gives_a_device_to_the_trainer_alone() -> None:
    command = compose_command(os.environ)
    if command is None:
        pytest.skip(NO_COMPOSE)
    files = (f"--file={ROOT / name}" for name in ("docker-compose.yml", "docker-compose.gpu.yml"))
    config = run(*command, *files, "config")
    with_gpu = [
        name for name, body in re.findall(r"^  (\w+):\n((?:    .*\n)+)", config, re.MULTILINE) if "- gpu" in body
    ]
    assert with_gpu == ["trainer"]


def _all_healthy(stack: Stack) -> bool:
    return all(stack.inspect(service)["State"]["Health"]["Status"] == "healthy" for service in stack.services)


def _restarted(stack: Stack, service: str, count: int) -> bool:
    now = stack.inspect(service)
    return bool(now["RestartCount"] > count and now["State"]["Running"])


def _newer(answer: tuple[int, float] | None, than: int) -> tuple[int, float] | None:
    return answer if answer and answer[0] > than else None


def _later(predict: Predict, than: int) -> tuple[int, float] | None:
    return _newer(predict(), than)


def _unless_away(predict: Predict) -> tuple[int, float] | None:
    """The answer, or None while the server is away or has nothing to serve yet."""
    try:
        return predict()
    except grpc.RpcError as error:
        if error.code() is not grpc.StatusCode.UNAVAILABLE:
            raise
        return None


def _paramsync(*arguments: str, shown: Mapping[str, str] = {"PARAMSYNC_TOKEN": TOKEN}) -> dict[str, Any]:
    return dict(json.loads(run(sys.executable, "-m", "paramsync.cli", *arguments, env={**os.environ, **shown})))


def _serves(client: Inferencer) -> bool:
    with suppress(CallError):
        return client.serves()
    return False


def _certificates(secured: Stack) -> dict[str, Path]:
    """Who signed all, and what the operator shows."""
    folder = Path(secured.environment["PARAMSYNC_TLS"])
    return {"CA": folder / "ca.pem", "CERT": folder / "ops.pem", "KEY": folder / "ops.key"}


def _alerts(stack: Stack) -> set[str]:
    """The names of the alerts that it evaluates."""
    return {rule["name"] for group in _ask_prometheus(stack, "rules")["groups"] for rule in group["rules"]}


def _scraped(stack: Stack) -> set[str]:
    """What it has reached when it last scraped it."""
    targets = _ask_prometheus(stack, "targets")["activeTargets"]
    return {target["scrapeUrl"] for target in targets if target["health"] == "up"}


def _ask_prometheus(stack: Stack, what: str) -> Any:
    address = stack.address("PARAMSYNC_PROMETHEUS_PORT")
    with urllib.request.urlopen(f"http://{address}/api/v1/{what}", timeout=10) as answer:
        return json.load(answer)["data"]
