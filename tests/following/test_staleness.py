"""What tells an operator that nothing new comes: the age of what serves, and of what was published last."""

from __future__ import annotations

import json
import re
import urllib.request
from dataclasses import replace
from pathlib import Path

import pytest

from paramsync.cli.__main__ import main
from paramsync.status import State, Status
from paramsync.version import Version
from tests.inferencer.serving.test_metrics import parsed
from tests.support.programs import eventually
from tests.support.published import Publisher
from tests.support.running import Running

PUBLISHED = Version(number=7, step=7, prefix="ckpt-7", step_done_at=100.0, snapshot_at=100.1, committed_at=101.0)
SERVING = replace(PUBLISHED, number=5, step_done_at=90.0, committed_at=91.0)


@pytest.mark.parametrize(
    ("published", "serving", "now", "served_for", "since", "age"),
    [
        (PUBLISHED, PUBLISHED, 161.0, 0.0, 60.0, 61.0),
        (PUBLISHED, SERVING, 161.0, 0.0, 60.0, 71.0),
        (PUBLISHED, None, 161.0, 0.0, 60.0, None),
        (None, SERVING, 161.0, 0.0, None, 71.0),
        (None, None, 161.0, 0.0, None, None),
        (PUBLISHED, SERVING, 3.0, 8.0, 4.0, 8.0),  # the clock was set back
    ],
)
def test_ages_go_on_while_nothing_new_is_published(
    published: Version | None, serving: Version | None, now: float, served_for: float, since: float, age: float
) -> None:
    status = Status(model="m", store=Path("m"), published=published, serving=serving, state=State.SERVING)
    found = replace(status, found_at=1000.0, served_at=1004.0 - served_for).at(now, monotonic=1004.0)
    assert (found.since_publication_seconds, found.serving_age_seconds) == (since, age)


def test_metrics_and_status_say_how_old_what_serves_is(
    served: Running, publisher: Publisher, nobody: str, capsys: pytest.CaptureFixture[str]
) -> None:
    model = served.server.models.find("m")
    publisher.close()
    before = model.status()
    assert before.since_publication_seconds is not None
    assert before.serving_age_seconds is not None
    eventually(lambda: (model.status().since_publication_seconds or 0) > 1.5, lambda: "some time")
    with urllib.request.urlopen(f"http://127.0.0.1:{served.rest_port}/metrics", timeout=30) as answer:
        found = parsed(answer.read())
    label = (("model", "m"),)
    assert found["paramsync_lag_seconds"][label] == 0
    assert found["paramsync_since_publication_seconds"][label] > 1.5
    assert found["paramsync_serving_age_seconds"][label] >= found["paramsync_since_publication_seconds"][label]
    arguments = ["status", "--inferencer", f"127.0.0.1:{served.control_port}", "--trainer", nobody]
    assert main([*arguments, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["servers"][0]["models"][0]["since_publication_seconds"] > 1.5
    assert "trainer not reachable" in told["trainer"]["error"]
    assert main(arguments) == 0
    text = capsys.readouterr().out
    assert re.search(r"m: training finished [\d.]+ m?s ago, published [\d.]+ s ago, answers are [\d.]+ s old", text)
