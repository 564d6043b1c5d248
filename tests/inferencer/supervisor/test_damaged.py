"""The file of a version that serves is overwritten where the workers have it mapped."""

from __future__ import annotations

import json
import math
from pathlib import Path

import grpc
import pytest

from inferencer.settings.settings import ModelSettings
from inferencer.supervisor import scrub
from paramsync.status import State
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
