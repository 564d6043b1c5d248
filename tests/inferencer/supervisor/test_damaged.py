"""Versions that do harm in workers: files overwritten where they are mapped, and graphs that hang, kill or exhaust."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest

from inferencer.settings.settings import ModelSettings
from inferencer.supervisor import scrub, trial
from paramsync.status import State
from paramsync.v1 import sync_pb2 as pb
from tests.support.hostile_graphs import Endless, Greedy, Killing
from tests.support.http import call
from tests.support.programs import eventually
from tests.support.published import Publisher, proven
from tests.support.running import LONG, NOT_SERVING, SERVING, Running, refused, request, seen

pytestmark = pytest.mark.slow


@pytest.mark.promise
def test_another_version_answers_in_its_place_or_none_or_it_says_that_it_is_damaged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scrub, "BETWEEN_SECONDS", 0.1)
    one, other = Publisher(tmp_path / "one"), Publisher(tmp_path / "other")
    models = (
        ModelSettings(name="one", store=one.path, resident=1),
        ModelSettings(name="other", store=other.path, serve_damaged=True),
    )
    for step in (1, 2):
        one.publish(step)
    other.publish(1)
    running = Running(models=models, workers=2, poll_seconds=0.2)
    status = running.status

    def answered(model: str) -> tuple[int, list[float]]:
        answer = running.prediction_service.Predict(request(model), timeout=LONG, wait_for_ready=True)
        return int(answer.model_spec.version.value), seen(answer)

    def named(number: int) -> str:
        """How the version is refused to who asks for it by its number."""
        return refused(running.prediction_service.Predict, request("one", version=number))[1]

    eventually(lambda: status("one").serving and status("other").serving, lambda: "both to serve")
    assert answered("one")[0] == 2
    one.overwrite(2)
    # version 1 comes from the store: until it is there, nothing serves
    eventually(lambda: status("one").resident == (1,), lambda: f"version 1 to serve: {status('one')}")
    number, values = answered("one")
    assert proven(values, number)
    code, _ = refused(running.prediction_service.Predict, request("one", version=2))
    assert code == grpc.StatusCode.NOT_FOUND
    eventually(lambda: "'one' cannot be used: " in (text := named(2)) and "expected checksum" in text, lambda: named(2))
    assert (status("one").state, running.health("one")) == (State.SERVING, SERVING)

    one.overwrite(1)
    eventually(lambda: status("one").resident == (), lambda: f"nothing to serve: {status('one')}")
    assert status("one").state is State.WAITING
    code, text = refused(running.prediction_service.Predict, request("one"))
    assert (code, "is quarantined" in text, "expected checksum" in text) == (grpc.StatusCode.UNAVAILABLE, True, True)
    assert [running.health("one", control=control) for control in (False, True)] == [NOT_SERVING] * 2
    body = json.dumps({"instances": [[1.0, 1.0]]}).encode()
    assert call(running.rest_port, "POST", "/v1/models/one:predict", body=body).status == 503

    other.overwrite(1)
    eventually(lambda: status("other").state is State.DAMAGED, lambda: f"damage: {status('other')}")
    number, values = answered("other")
    assert (number, all(map(math.isnan, values))) == (1, True)
    eventually(lambda: running.health("other") == NOT_SERVING, lambda: "the workers' health to say so")
    other.publish(2)
    eventually(lambda: answered("other")[0] == 2, lambda: f"version 2 to answer: {status('other')}")
    assert running.health("other", control=True) == SERVING

    other.publish(3)
    eventually(lambda: answered("other")[0] == 3, lambda: f"version 3 to answer: {status('other')}")
    other.overwrite(3, unseen=True)  # which no look finds
    eventually(lambda: answered("other")[0] == 2, lambda: f"version 2 to answer: {status('other')}")
    assert "paramsync_scrubbed_bytes_total" in running.server._text().decode()
    running.close()
    for publisher in (one, other):
        publisher.close()


HOSTILE = {
    "endless": (Endless, "the graph was not called once within 20 s"),
    "killing": (Killing, "calling the graph once ended the process (SIG"),
    "greedy": (Greedy, "wants more memory than there is"),
}


@pytest.fixture
def publishers(tmp_path: Path) -> Iterator[dict[str, Publisher]]:
    found = {name: Publisher(tmp_path / name) for name in (*HOSTILE, "good")}
    for publisher in found.values():
        publisher.publish(1)
    yield found
    for publisher in found.values():
        publisher.close()


@pytest.fixture
def running(publishers: dict[str, Publisher], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Running]:
    monkeypatch.setattr(trial, "TRIAL_SECONDS", 20.0)
    running = Running(*(tmp_path / name for name in publishers), workers=2)
    for name in publishers:
        synced(running, name, 1)
    yield running
    running.close()


def synced(running: Running, model: str, version: int) -> None:
    list(running.sync.Sync(pb.SyncRequest(model=model, version=version), timeout=LONG))


def quarantined(running: Running, model: str, version: int) -> str:
    return eventually(
        lambda: running.status(model).quarantine_of(version),
        lambda: f"version {version} of {model} to be quarantined: {running.status(model)}",
    ).reason


def serves(running: Running, model: str, version: int) -> bool:
    answer = running.prediction_service.Predict(request(model), timeout=LONG)
    return answer.model_spec.version.value == version and proven(seen(answer), version)


def test_what_hangs_kills_or_takes_all_memory_is_quarantined_and_all_else_goes_on(
    running: Running, publishers: dict[str, Publisher]
) -> None:
    workers = running.server._fleet.workers.statuses()
    for name, (kind, _) in HOSTILE.items():
        publishers[name].publish(2, kind=kind)
    publishers["good"].publish(2)
    synced(running, "good", 2)  # while the others are tried
    for name, (_, reason) in HOSTILE.items():
        assert reason in quarantined(running, name, 2)
        assert serves(running, name, 1)
    for name, publisher in publishers.items():
        publisher.publish(3)
        synced(running, name, 3)
        assert serves(running, name, 3)
    assert running.server._fleet.workers.statuses() == workers
