"""What each command prints with --json is what the reference says, of a real server and a real store."""

from __future__ import annotations

import argparse
import itertools
import json
import select
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from paramsync.cli.__main__ import main
from paramsync.cli.arguments import parser
from paramsync.cli.up import Summary
from paramsync.v1 import sync_pb2 as pb
from tests.support.control_ports import paired
from tests.support.json_forms import check, commands, objects
from tests.support.programs import bounded
from tests.support.published import Publisher
from tests.support.running import LONG, Running, synced

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    publisher = Publisher(tmp_path_factory.mktemp("store") / "m")
    for step in (7, 8):
        publisher.publish(step)
    yield publisher.path
    publisher.close()


@pytest.fixture(scope="module")
def server(store: Path) -> Iterator[Running]:
    """Of two versions in memory, one with a label, and one in quarantine."""
    running = Running(store)
    synced(running)
    running.sync.Label(pb.LabelRequest(model="m", label="stable", version=7), timeout=LONG)
    yield running
    running.close()


def printed(capsys: pytest.CaptureFixture[str], *arguments: object) -> Any:
    assert main([*map(str, arguments), "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_every_command_with_json_is_in_the_reference() -> None:
    (actions,) = (one for one in parser()._actions if isinstance(one, argparse._SubParsersAction))
    programs = {"serve", "train", "completion", "open"}
    assert commands() == set(actions.choices) - programs
    named = {kind.split()[-1] for fields in objects().values() for kind in _bare(fields.values())}
    assert named <= {*objects(), "string", "integer", "number", "boolean", "any"}


def _bare(kinds: Any) -> Iterator[str]:
    return (kind.removesuffix(" or null") for kind in kinds)


def test_a_status_is_a_fleet(server: Running, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with paired(tmp_path) as pair, pair.training() as publisher:
        publisher.publish(7, wait=True)
        addresses = ["--server", f"127.0.0.1:{server.control_port}", "--trainer", pair.control.address]
        fleet = printed(capsys, "status", *addresses)
    check(fleet, "fleet")
    assert fleet["trainer"]["status"]["published"]["number"] == 7
    assert fleet["servers"][0]["models"][0]["labels"] == {"stable": 7}


def test_a_status_without_anybody_is_a_fleet(nobody: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["status", "--json", "--server", nobody, "--trainer", nobody]) == 1
    fleet = json.loads(capsys.readouterr().out)
    check(fleet, "fleet")
    assert fleet["servers"][0]["models"] is fleet["trainer"]["status"] is None


def test_a_change_is_one_whatever_changes(server: Running, capsys: pytest.CaptureFixture[str]) -> None:
    control = f"127.0.0.1:{server.control_port}"
    for words in ("sync m", "pin m 7", "unpin m", "rollback m", "unpin m", "label m canary 8", "unlabel m canary"):
        check(printed(capsys, *words.split(), "--server", control), "change")
    assert main(["pin", "m", "6", "--server", control, "--json"]) == 1
    change = json.loads(capsys.readouterr().out)
    check(change, "change")
    assert (change["status"], "version 6" in change["error"]) == (None, True)


@pytest.mark.parametrize("words", ["versions", "verify", "diff", "graph show"])
def test_a_command_that_fails_prints_why(words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*words.split(), str(tmp_path / "nowhere"), "--json"]) == 1
    out, err = capsys.readouterr()
    failure = json.loads(out)
    check(failure, "failure")
    assert f"paramsync {words.split()[0]}: {failure['error']}\n" == err


def test_an_event_is_one(server: Running) -> None:
    control = f"127.0.0.1:{server.control_port}"
    command = [sys.executable, "-m", "paramsync.cli", "watch", "--server", control, "--json"]
    with bounded(subprocess.Popen(command, stdout=subprocess.PIPE, text=True)) as process:
        assert process.stdout is not None
        numbers = itertools.cycle((7, 8))
        lines: list[str] = []
        while not lines:  # events are those from when it listens
            server.sync.Pin(pb.PinRequest(model="m", version=next(numbers)), timeout=LONG)
            lines += _read(process.stdout)
    check(json.loads(lines[0]), "event")


def _read(stream: Any, *, seconds: float = 0.2) -> list[str]:
    ready, _, _ = select.select([stream], [], [], seconds)
    return [stream.readline()] if ready else []


def test_a_sample_is_one(server: Running, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["top", "--server", f"127.0.0.1:{server.control_port}", "--seconds", "0.5", "--json"]) == 0
    for line in capsys.readouterr().out.splitlines():
        check(json.loads(line), "sample")


def test_a_replaced_worker_is_one(server: Running, capsys: pytest.CaptureFixture[str]) -> None:
    check(printed(capsys, "workers", "replace", "--server", f"127.0.0.1:{server.control_port}"), "replaced_worker")


def test_a_prediction_is_one(server: Running, capsys: pytest.CaptureFixture[str]) -> None:
    port = f"127.0.0.1:{server.port}"
    check(printed(capsys, "predict", "m", "--input", "x=[[1, 2]]", "--server", port), "prediction")


def test_stores_and_graphs_are_what_the_reference_says(
    store: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    check(printed(capsys, "versions", store), "store")
    check(printed(capsys, "verify", store, "--all"), "verdict")
    check(printed(capsys, "diff", store), "difference")
    check(printed(capsys, "keys", "new", tmp_path / "signing"), "key_pair")
    check(printed(capsys, "graph", "show", store), "outline")
    check(printed(capsys, "graph", "tensorboard", store, tmp_path), "event_file")


def test_a_run_is_what_the_reference_says() -> None:
    check(asdict(Summary()), "run")
