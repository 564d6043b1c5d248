"""Pods of the manifests, imitated: they are ready once a version serves, and serve through killed containers."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import pytest

from tests.hostile.test_serving_campaigns import CLIENTS, Clients, total
from tests.support.buckets import SeaweedFs
from tests.support.imitated import Pod, Trainer
from tests.support.inferencers import Process
from tests.support.kubectl import kserve_pod, pods, variant
from tests.support.programs import eventually

pytestmark = pytest.mark.slow


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


@pytest.fixture
def server(tmp_path: Path, stack: ExitStack, monkeypatch: pytest.MonkeyPatch) -> SeaweedFs:
    started = stack.enter_context(SeaweedFs(tmp_path / "server"))
    for name, value in started.environment.items():
        monkeypatch.setenv(name, value)
    return started


def pod_of(name: str, folder: Path, server: SeaweedFs) -> Pod:
    """A pod of a variant with the model `m`."""
    address = f"s3://{server.bucket}/models/digits"
    bucket = dict(server.environment)
    if name == "kserve":
        del bucket["AWS_ALLOW_HTTP"]  # the variables that KServe makes of a Secret have an endpoint with http:// alone
        spec = kserve_pod("m", address)
    else:
        spec = pods(variant(name))["paramsync-inferencer"]
    return Pod(spec, name, folder, bucket, MODEL="m", ADDRESS=address)


def serving(server: Process) -> int:
    return int(server.metrics().get("paramsync_served_version", 0))


@pytest.mark.parametrize("name", ["sidecar", "kserve"])
def test_with_a_sidecar_a_server_starts_once_a_version_is_there_and_serves_through_killed_mirrors(
    name: str, tmp_path: Path, memory: Path, server: SeaweedFs, stack: ExitStack
) -> None:
    pod = pod_of(name, memory / "pod", server)
    stack.callback(pod.close)
    mirror = pod.start_mirror()
    trainer = Trainer(tmp_path / "m", f"s3://{server.bucket}/models/digits")
    stack.callback(trainer.close)
    assert not pod.has_started()
    trainer.publish(1)
    eventually(pod.has_started, lambda: f"the startup probe:\n{pod.log()}")
    program = pod.start_server()
    stack.callback(program.close)
    program.connect()
    eventually(lambda: pod.is_ready(program), lambda: "readiness")
    assert serving(program) == 1
    clients = Clients(program, tmp_path)
    for number in (2, 3, 4):
        mirror.kill()
        mirror.wait()
        trainer.publish(number)
        before = clients.answered
        eventually(partial(_answers, clients, before + 100), lambda: "answers while no mirror runs")
        assert pod.is_ready(program)
        assert serving(program) == number - 1
        mirror = pod.start_mirror()
        eventually(partial(_serves, program, number), pod.log)
    told = clients.end()
    assert [total(told, what) for what in ("backwards", "mixed")] == [0, 0]
    assert [(client["failed"], client["refused"], client["codes"]) for client in told] == [({}, 0, {})] * CLIENTS


def _answers(clients: Clients, count: int) -> bool:
    return clients.answered >= count


def _serves(program: Process, number: int) -> bool:
    return serving(program) == number


def test_a_killed_server_finds_its_copy_in_memory_while_the_bucket_is_away(
    tmp_path: Path, memory: Path, server: SeaweedFs, stack: ExitStack
) -> None:
    pod = pod_of("base", memory / "pod", server)
    program = pod.start_server()
    stack.callback(program.close)
    program.connect()
    assert not pod.is_ready(program)
    trainer = Trainer(tmp_path / "m", f"s3://{server.bucket}/models/digits")
    stack.callback(trainer.close)
    trainer.publish(1)
    eventually(lambda: pod.is_ready(program), lambda: "readiness")
    with server.away():
        program.close()
        program = pod.start_server()
        stack.callback(program.close)
        program.connect()
        eventually(lambda: pod.is_ready(program), lambda: "readiness")
        assert serving(program) == 1
    trainer.publish(2)
    eventually(partial(_serves, program, 2), lambda: "version 2")
