"""`paramsync status --check`: one line, and 0 for good, 1 for degraded, 2 for bad."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest

from paramsync.cli.__main__ import main
from paramsync.cli.check import Level, of_model, of_server, summary
from paramsync.v1 import sync_pb2 as pb
from tests.support.programs import ROOT

GOOD = pb.ModelStatus(
    model="m",
    state=pb.ModelStatus.SERVING,
    serving=pb.Version(number=7),
    published=pb.Version(number=7),
    lag_seconds=0,
    serving_age_seconds=500,
    publisher=pb.ModelStatus.TRAINING,
    publisher_since=900,
)
WAITING: dict[str, Any] = {"state": pb.ModelStatus.WAITING, "serving": None}
CASE = pb.Quarantine(number=8, reason="not finite", since=950)


@pytest.mark.parametrize(
    ("change", "level", "text"),
    [
        ({}, Level.GOOD, "m: version 7 serves"),
        ({"publisher": pb.ModelStatus.FINISHED}, Level.GOOD, "m: version 7 serves"),
        ({"pinned": 7, "lag_seconds": 60}, Level.GOOD, "m: version 7 serves"),
        ({"quarantined": [CASE]}, Level.GOOD, "m: version 7 serves"),  # and a newer one does
        ({"lag_seconds": 61}, Level.DEGRADED, "m: 61 s behind"),
        ({"pinned": 7, "lag_seconds": 61}, Level.DEGRADED, "m: pinned, and 61 s behind"),
        ({"serving_age_seconds": 601}, Level.DEGRADED, "m: answers are 10 min old"),
        ({"publisher": pb.ModelStatus.DIED, "publisher_since": 988}, Level.DEGRADED, "m: the trainer died 12 s ago"),
        ({"reason": "the disk is away"}, Level.DEGRADED, "m: the disk is away"),
        ({"reason": "/s: is empty"}, Level.DEGRADED, "m: /s: is empty"),
        ({"state": pb.ModelStatus.DRAINING}, Level.DEGRADED, "m: the server is stopping"),
        ({"state": pb.ModelStatus.DAMAGED}, Level.BAD, "m: version 7 serves and is damaged"),
        (WAITING, Level.BAD, "m: no version serves: none has come"),
        ({**WAITING, "reason": "/s: no such directory"}, Level.BAD, "m: no version serves: /s: no such directory"),
        (
            {"published": pb.Version(number=8), "quarantined": [CASE], "lag_seconds": 2},
            Level.DEGRADED,
            "m: the newest version, 8, is in quarantine: not finite",
        ),
        (
            {**WAITING, "quarantined": [CASE], "publisher": pb.ModelStatus.DIED},
            Level.BAD,
            "m: no version serves: version 8 is in quarantine: not finite",
        ),
    ],
)
def test_what_is_said_of_a_model(change: dict[str, Any], level: Level, text: str) -> None:
    model = pb.ModelStatus()
    model.CopyFrom(GOOD)
    for name in change:
        model.ClearField(name)
    model.MergeFrom(pb.ModelStatus(**change))
    assert summary(list(of_server(pb.GetStatusResponse(models=[model]), 1000.0, max_lag=None, max_age=600))) == (
        level,
        text,
    )


def test_the_worst_comes_first_and_what_is_good_goes_without_saying() -> None:
    late = pb.ModelStatus(model="late", serving=pb.Version(number=1), lag_seconds=5)
    none = pb.ModelStatus(model="none")
    found = of_server(pb.GetStatusResponse(models=[GOOD, late, none]), 1000.0, max_lag=4, max_age=None)
    assert summary(list(found)) == (Level.BAD, "none: no version serves: none has come; late: 5.0 s behind")
    assert list(of_model(late, 1000.0, max_lag=6, max_age=None)) == []


@pytest.mark.parametrize(
    ("states", "level", "text"),
    [
        (["ANSWERING", "ENDED"], Level.DEGRADED, "1 of 2 workers answer"),
        (["STARTING", "ENDED"], Level.BAD, "no worker answers"),
    ],
)
def test_workers_that_do_not_answer_are_told(states: list[str], level: Level, text: str) -> None:
    workers = [pb.WorkerStatus(number=at, state=state) for at, state in enumerate(states)]
    found = of_server(pb.GetStatusResponse(models=[GOOD], workers=workers), 1000.0, max_lag=None, max_age=None)
    assert summary(list(found)) == (level, text)


def test_it_is_one_line_and_the_exit_code(inferencer: str, nobody: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["status", "--check", "--server", inferencer]) == 1
    told = capsys.readouterr()
    assert told.out.startswith("degraded: 1 of 2 workers answer; digits: the newest version, 421, is in quarantine: ")
    assert (told.out.count("\n"), told.err) == (1, "")
    assert main(["status", "--check", "--server", nobody]) == 2
    assert capsys.readouterr().out.startswith(f"bad: inferencer not reachable at {nobody}")
    assert main(["status", "--check", "--server", f"{inferencer},{nobody}", "--max-lag", "11"]) == 2
    text = capsys.readouterr().out
    assert text.startswith(f"bad: {nobody} not reachable")
    assert f"{inferencer} digits: 12 s behind" in text
    assert main(["status", "cats", "--check", "--server", inferencer]) == 2
    assert "model 'cats' is not served here" in capsys.readouterr().out


@pytest.mark.parametrize("typed", ["--check --json", "--check --watch", "--max-lag 3", "--max-age 3"])
def test_options_that_do_not_go_together_are_refused(typed: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["status", *typed.split()]) == 2
    assert "--check" in capsys.readouterr().err


def test_it_imports_neither_tensorflow_nor_what_draws(nobody: str) -> None:
    script = (
        "import json, sys; from paramsync.cli.__main__ import main;"
        f" main(['status', '--check', '--server', '{nobody}']);"
        " sys.stderr.write(json.dumps(sorted({'rich', 'tensorflow', 'numpy'} & set(sys.modules))))"
    )
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=True)
    assert json.loads(done.stderr) == []
