"""Several servers at once, over real gRPC: who is asked, what each says, and what it costs that one is dead."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial

import pytest

from paramsync.cli.__main__ import main
from paramsync.cli.servers import ask_all
from paramsync.errors import CallError, ParamsyncError
from paramsync.v1 import sync_pb2 as pb
from paramsync.v1 import sync_pb2_grpc
from tests.support.commands import only_line
from tests.support.servers import CORRUPT, SERVING, Sync, add_models, serving

pytestmark = pytest.mark.usefixtures("eighty_columns")

CATS = pb.ModelStatus(model="cats", state=pb.ModelStatus.SERVING, serving=pb.Version(number=7, step=7), lag_seconds=0)
JOINED = pb.ModelStatus(model="joined", state=pb.ModelStatus.SERVING, parts=[pb.Part(model="cats")])


@pytest.fixture
def other() -> Iterator[str]:
    """A server of two models more, and of one that is joined from others."""
    with serving(add_models(SERVING, CATS, JOINED)) as address:
        yield address


def test_status_of_a_fleet_has_a_row_for_every_model_and_for_who_does_not_answer(
    inferencer: str, other: str, nobody: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["status", *(f"--server={one}" for one in (inferencer, other, nobody)), "--trainer", nobody]) == 1
    said = capsys.readouterr()
    rows = [line.split()[:3] for line in said.out.splitlines() if line.startswith("127.")]
    assert [inferencer, "digits", "serving"] in rows
    assert [other, "cats", "serving"] in rows
    assert [nobody, "–", "lost"] in rows  # noqa: RUF001
    assert f"paramsync status: inferencer not reachable at {nobody} (Connection refused): start it" in said.err


def test_a_trainer_that_nobody_named_may_be_away_where_servers_were_named(
    inferencer: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["status", "--server", inferencer]) == 0
    assert "trainer" not in capsys.readouterr().err


def test_servers_come_from_the_environment_unless_an_option_names_them(
    inferencer: str, other: str, nobody: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PARAMSYNC_SERVER", f"{inferencer}, {other},{inferencer}")
    assert main(["status", "--trainer", nobody, "--json"]) == 0
    assert addresses(capsys.readouterr().out) == [inferencer, other]
    assert main(["status", "--trainer", nobody, "--json", "--inferencer", other]) == 0  # the older name of --server
    assert addresses(capsys.readouterr().out) == [other]
    monkeypatch.setenv("PARAMSYNC_SERVER", "localhost")
    assert main(["status", "--trainer", nobody]) == 2
    assert only_line(capsys.readouterr().err).startswith("paramsync status: PARAMSYNC_SERVER: address 'localhost'")


def addresses(text: str) -> list[str]:
    return [server["address"] for server in json.loads(only_line(text))["servers"]]


def test_all_are_asked_at_the_same_time() -> None:
    met = threading.Barrier(5)

    def ask(number: int) -> int:
        met.wait(30)  # until all five are there
        if number == 3:
            raise CallError("away", "UNAVAILABLE")
        return number

    answers = ask_all(range(5), ask)
    assert [answer for answer in answers if not isinstance(answer, ParamsyncError)] == [0, 1, 2, 4]
    assert str(answers[3]) == "away"


def test_sync_all_waits_for_every_model_of_every_server_and_says_which_did_not(
    inferencer: str, other: str, nobody: str, capsys: pytest.CaptureFixture[str]
) -> None:
    servers = [f"--server={one}" for one in (inferencer, other, nobody)]
    assert main(["sync", "--all", *servers]) == 1
    said = capsys.readouterr()
    assert [line.partition(" (")[0] for line in said.out.splitlines()] == [
        f"{inferencer} digits: version 420",
        f"{other} digits: version 420",
        f"{other} cats: version 7",
    ]
    assert only_line(said.err).startswith(f"paramsync sync: inferencer not reachable at {nobody}")


def test_sync_all_as_json_is_an_object_for_each(
    inferencer: str, other: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["sync", "--all", "--server", f"{inferencer},{other}", "--json"]) == 0
    found = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [(one["server"], one["model"], one["error"]) for one in found] == [
        (inferencer, "digits", None),
        (other, "digits", None),
        (other, "cats", None),
    ]


def test_a_change_at_several_servers_is_told_for_each(
    inferencer: str, other: str, capsys: pytest.CaptureFixture[str]
) -> None:
    servers = [f"--server={one}" for one in (inferencer, other)]
    assert main(["pin", "cats", "7", *servers]) == 1
    said = capsys.readouterr()
    assert only_line(said.out) == f"{other} cats: pinned to version 7; version 420 serves"
    why = "model 'cats' is not served here; served: 'digits'"
    assert only_line(said.err) == f"paramsync pin: {inferencer} cats: {why}"
    assert main(["pin", "cats", "7", *servers, "--json"]) == 1
    found = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [(one["server"], one["error"], (one["status"] or {}).get("pinned")) for one in found] == [
        (inferencer, why, None),
        (other, None, 7),
    ]


def test_a_sync_that_fails_at_one_server_names_it(
    inferencer: str, other: str, capsys: pytest.CaptureFixture[str]
) -> None:
    servers = [f"--server={one}" for one in (inferencer, other)]
    assert main(["sync", "digits", "--version", str(CORRUPT), *servers]) == 1
    lines = capsys.readouterr().err.splitlines()
    assert [line.partition(" digits: ")[0] for line in lines] == [
        f"paramsync sync: {one}" for one in (inferencer, other)
    ]
    assert all("version 2 was refused: not finite; " in line for line in lines)


@pytest.mark.parametrize("more", [["digits"], ["--version", "7"]])
def test_sync_all_takes_no_model_and_no_version(more: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["sync", "--all", *more]) == 2
    assert "without --all" in only_line(capsys.readouterr().err)


@pytest.mark.slow
def test_a_watch_of_several_servers_tells_which_is_lost_goes_on_and_tells_that_it_is_back() -> None:
    servicers, addresses = (Sync(), Sync()), []
    with ExitStack() as stack, ExitStack() as lost:
        for servicer, entered in zip(servicers, (stack, lost), strict=True):
            add = partial(sync_pb2_grpc.add_SyncServicer_to_server, servicer)
            addresses.append(entered.enter_context(serving(add)))
        stays, goes = addresses
        command = [sys.executable, "-m", "paramsync.cli", "watch", "--server", f"{stays},{goes}"]
        process = stack.enter_context(
            subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        )
        stack.callback(process.kill)
        assert process.stdout is not None
        assert process.stderr is not None
        first = {process.stdout.readline().split()[1] for _ in range(2)}
        assert first == {stays, goes}
        lost.close()
        assert process.stderr.readline().startswith(f"paramsync watch: {goes} lost: ")
        servicers[0].changed.set()
        assert process.stdout.readline().split()[1] == stays
        with serving(add_models(SERVING), at=goes):
            back = process.stderr.readline()
            assert back == f"paramsync watch: {goes} answers again; it serves digits version 420\n"
            assert process.stdout.readline().split()[1] == goes
            process.send_signal(signal.SIGINT)
            assert process.wait(30) == 130
