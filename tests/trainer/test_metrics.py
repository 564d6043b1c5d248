"""/metrics of the training program, read by Prometheus' parser; slow, foreign and too many callers."""

from __future__ import annotations

import contextlib
import re
import signal
import socket
import time
import urllib.request
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
import tensorflow as tf
from prometheus_client import CollectorRegistry, Gauge

from paramsync.errors import SettingsError
from paramsync.publishing.control_port import Training
from paramsync.publishing.publisher import Publisher
from tests.inferencer.serving.test_metrics import Samples, parsed
from tests.support import jobs
from tests.support.http import call
from tests.support.programs import PATIENCE, ROOT, Program, events
from tests.support.prometheus import promtool
from tests.support.training import ON_REQUEST, Counters, latest
from trainer import settings
from trainer.metrics import MetricsPort, TrainerMetrics

SECONDS = 30


def scraped(address: str) -> Samples:
    with urllib.request.urlopen(f"http://{address}/metrics", timeout=SECONDS) as answer:
        assert answer.headers["Content-Type"].startswith("text/plain; version=")
        return parsed(answer.read())


def only(found: Samples, name: str) -> float:
    ((_, value),) = found[f"paramsync_trainer_{name}"].items()
    return value


@pytest.fixture
def port() -> Iterator[MetricsPort]:
    registry = CollectorRegistry()
    Gauge("x", "", registry=registry).set(1)
    with closing(MetricsPort("127.0.0.1", 0, registry)) as port:
        yield port


def test_metrics_say_how_training_and_publishing_go(tmp_path: Path) -> None:
    model = Counters()
    with Publisher(tmp_path, model, schedule=ON_REQUEST) as publisher:
        training = Training(publisher=publisher, device="CPU")
        begun: list[Training] = []
        exposition = TrainerMetrics(lambda: begun[0] if begun else None, clock=lambda: (version.committed_at or 0) + 60)
        assert not any(name.startswith("paramsync") for name in parsed(exposition.text()))
        begun.append(training)
        publisher.publish_if_due(0)
        version = publisher.publish(7, wait=True)
        publisher.meter.advance(9, tf.constant(0.5), time.monotonic())
        found = parsed(exposition.text())
        model.many[0].assign(tf.fill(model.many[0].shape, float("nan")))
        with pytest.raises(Exception, match="NaN"):
            publisher.publish(10, wait=True)
        failed = parsed(exposition.text())
    expected = {
        "step": 9,
        "steps_total": 9,
        "loss": 0.5,
        "published_version": 7,
        "published_step": 7,
        "since_publication_seconds": 60,
    }
    assert {name: only(found, name) for name in expected} == pytest.approx(expected)
    assert (only(found, "publications_total"), only(found, "publishing_failing")) == (1, 0)
    assert (only(failed, "publications_refused_total"), only(failed, "publishing_failing")) == (1, 1)
    assert "process_resident_memory_bytes" in found
    documented = set(re.findall(r"`(paramsync_trainer_[a-z_]+)`", (ROOT / "docs" / "reference.md").read_text()))
    told = {name for name in found if name.startswith("paramsync_trainer") and not name.endswith("_created")}
    of_buckets = {name for name in documented if "_bucket_" in name}  # tests/remote/test_lag.py has these
    elsewhere = {"paramsync_trainer_last_stall_duration_seconds", "paramsync_trainer_saved_step", *of_buckets}
    assert told | elsewhere == documented
    assert promtool("check", "metrics", given=exposition.text()) == ""


@pytest.mark.parametrize(
    ("host", "code"),
    [
        ("localhost:9", 200),
        ("evil.example:8504", 403),
    ],
)
def test_metrics_are_read_under_names_of_this_machine_only(port: MetricsPort, host: str, code: int) -> None:
    answer = call(int(port.address.rpartition(":")[2]), "GET", "/metrics", Host=host)
    assert answer.status == code
    assert (b"x 1.0" in answer.body) == (code == 200)
    assert (b"GET /metrics: expected a loopback address in the header Host" in answer.body) == (code == 403)


def test_callers_that_say_nothing_or_no_http_keep_nobody_away(port: MetricsPort) -> None:
    host, _, number = port.address.rpartition(":")
    with contextlib.ExitStack() as stack:
        for said in [b""] * 20 + [b"\r\n\r\n", b"\xff\xfe\n\n", b"x" * 20_000]:
            caller = stack.enter_context(socket.create_connection((host, int(number)), SECONDS))
            caller.sendall(said)
        assert scraped(port.address)["x"]


def test_a_caller_too_many_ends_the_oldest_connection(port: MetricsPort, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trainer.metrics._Handler.timeout", None)  # as if each caller sent a byte now and then
    host, _, number = port.address.rpartition(":")
    with contextlib.ExitStack() as stack:
        callers = [stack.enter_context(socket.create_connection((host, int(number)), SECONDS)) for _ in range(40)]
        assert [caller.recv(1) for caller in callers[:-8]] == [b""] * 32
        for caller in callers[-8:]:
            caller.setblocking(False)
            with pytest.raises(BlockingIOError):
                caller.recv(1)
        assert scraped(port.address)["x"]


def test_a_port_that_is_taken_is_refused(port: MetricsPort) -> None:
    host, _, number = port.address.rpartition(":")
    with pytest.raises(SettingsError, match=f"port {number} of 127.0.0.1 is taken; choose another with --metrics-port"):
        MetricsPort(host, int(number), CollectorRegistry())
    assert settings.parse(["--store", "here"]).metrics_port is None


@pytest.mark.slow
def test_the_training_program_has_metrics_logs_json_and_tells_a_service_manager(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs.put(tmp_path)
    store = tmp_path / "store"
    arguments = ["--control-port", "0", "--metrics-port", "0", "--every-seconds", "0.2", "--log-format", "json"]
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(tmp_path / "notify"))
        manager.settimeout(PATIENCE)
        monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "notify"))
        with Program("trainer", "--store", store, *arguments, log=tmp_path / "log") as program:
            address = program.said(r"metrics by HTTP: ([^\s\"]+)")[1]
            assert manager.recv(4096).startswith(b"READY=1\nSTATUS=control 127.0.0.1:")
            program.said("step=[1-9].* version=[1-9]")
            found = scraped(address)
            assert only(found, "step") > 0
            assert only(found, "publications_total") > 0
            assert program.stop(signal.SIGTERM) == 0
            assert manager.recv(4096).startswith(b"STOPPING=1\n")
    last = latest(store)
    assert last.step >= only(found, "published_step")
    end = events((tmp_path / "log").read_text().splitlines())[-1]
    assert (end["step"], end["version"]) == (last.step, last.number)
