"""Graphs of others that hang, kill or exhaust the process that calls them: their versions end, and nothing else."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from inferencer.supervisor import trial
from paramsync.v1 import sync_pb2 as pb
from tests.support.hostile_graphs import Endless, Greedy, Killing
from tests.support.programs import eventually
from tests.support.published import Publisher, proven
from tests.support.running import LONG, Running, request, seen

pytestmark = pytest.mark.slow
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
