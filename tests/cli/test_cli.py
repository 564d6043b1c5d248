"""Arguments, and the commands that change or watch servers, against stubs of the wire."""

from __future__ import annotations

import argparse
import json
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from datetime import datetime
from functools import partial
from typing import Any

import pytest

from paramsync.cli.__main__ import main
from paramsync.cli.arguments import parser
from paramsync.cli.formatting import to_json
from paramsync.cli.servers import ask_all
from paramsync.errors import CallError, ParamsyncError
from paramsync.rpc.server import plain
from paramsync.v1 import sync_pb2 as pb
from paramsync.v1 import sync_pb2_grpc
from tests.support.commands import on_terminal, only_line
from tests.support.programs import bounded
from tests.support.servers import CORRUPT, NEVER, SERVING, Sync, add_models, serving

WORDS = {
    "sync": ["digits"],
    "pin": ["digits", "420"],
    "unpin": ["digits"],
    "rollback": ["digits"],
    "label": ["digits", "canary", "420"],
    "unlabel": ["digits", "stable"],
}
CATS = pb.ModelStatus(model="cats", state=pb.ModelStatus.SERVING, serving=pb.Version(number=7, step=7), lag_seconds=0)
JOINED = pb.ModelStatus(model="joined", state=pb.ModelStatus.SERVING, parts=[pb.Part(model="cats")])


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    with serving(add_models(SERVING)) as address:
        yield address


@pytest.fixture(scope="module")
def other() -> Iterator[str]:
    """A server of two models more, of which one is joined from others."""
    with serving(add_models(SERVING, CATS, JOINED)) as address:
        yield address


def test_help_names_every_command_and_fits_in_80_columns(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    with pytest.raises(SystemExit) as ended:
        main(["--help"])
    text = capsys.readouterr().out
    assert ended.value.code == 0
    assert all(f"\n    {command} " in text for command in (*WORDS, "status", "watch", "up", "predict", "graph"))
    assert "paramsync sync digits" in text
    below = [parser()]
    for each in below:
        assert max(map(len, each.format_help().splitlines())) <= 80, each.prog
        actions = [action for action in each._actions if isinstance(action, argparse._SubParsersAction)]
        below += [sub for action in actions for sub in action.choices.values()]
    assert len(below) > len(WORDS)


@pytest.mark.parametrize(
    "arguments",
    [
        "",
        "nosuch",
        "status --colour",
        "sync digits --version newest",
        "sync digits --timeout nan",
        "pin digits",
        "pin digits -1",
        "up --port 70000",
        "pin digits 9999999999999999999",
        "pin digits \u0663",
        "predict digits",
        "predict digits --input =1",
        "graph",
        "graph show",
        "verify s ten",
        "verify s 10 --all",
    ],
)
def test_wrong_arguments_get_one_line_that_names_the_help(arguments: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(arguments.split())
    assert ended.value.code == 2
    line = only_line(capsys.readouterr().err)
    assert line.startswith("paramsync")
    assert line.endswith("--help`")


@pytest.mark.parametrize(("typed", "meant"), [("statsu", "status"), ("role back", ""), ("rolback digits", "rollback")])
def test_a_mistyped_command_is_told_which_was_meant(typed: str, meant: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(typed.split())
    line = only_line(capsys.readouterr().err)
    assert line.startswith(f"paramsync: expected a command, found '{typed.split()[0]}'")
    assert (f"did you mean {meant}?" in line) == bool(meant)


@pytest.mark.parametrize("command", WORDS)
def test_an_error_is_one_line(command: str, server: str, nobody: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([command, *WORDS[command], "--server", nobody]) == 1
    line = only_line(capsys.readouterr().err)
    assert line.startswith(f"paramsync {command}: inferencer not reachable at {nobody} (Connection refused): start it")
    assert main([command, "cats", *WORDS[command][1:], "--server", server]) == 1
    assert only_line(capsys.readouterr().err).endswith("model 'cats' is not served here; served: 'digits'")
    assert main([command, "\udcff", *WORDS[command][1:]]) == 2
    assert only_line(capsys.readouterr().err) == r"paramsync: expected arguments in UTF-8, found '\udcff'"


@pytest.mark.parametrize(
    ("words", "code", "text"),
    [
        ("sync digits", 0, "digits: version 420 (step 420) serves, "),
        ("sync digits --fresh", 0, "digits: version 420 (step 420) serves, "),
        ("pin digits 420", 0, "digits: pinned to version 420; version 420 serves\n"),
        ("unpin digits", 0, "digits: follows the newest version; version 420 serves\n"),
        ("rollback digits --dry-run", 0, "digits: back from version 420 to version 419, which served before\n"),
        (
            "rollback digits",
            0,
            "digits: back from version 420 to version 419, which served before\n"
            "digits: pinned to version 419; version 419 serves\n",
        ),
        ("label digits canary 420", 0, "digits: canary is version 420, stable is version 419\n"),
        ("unlabel digits stable", 0, "digits: no labels\n"),
        (
            f"sync digits --version {CORRUPT}",
            1,
            "version 2 was refused: not finite; what served goes on",
        ),
        (f"sync digits --version {NEVER} --timeout 0.2", 1, "did not answer within 0.2 s; see `paramsync status`"),
        ("sync --all digits", 2, "without --all"),
        ("sync --all --version 7", 2, "without --all"),
    ],
)
def test_a_change_says_what_holds_now(
    words: str, code: int, text: str, server: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*words.split(), "--inferencer", server]) == code  # the older name of --server
    out, err = capsys.readouterr()
    assert text in (err if code else out)
    assert len((err if code else out).splitlines()) == max(1, text.count("\n"))


@pytest.mark.parametrize(
    ("status", "text"),
    [
        ({"rollback_to": 7}, "back from version 9 to version 7, the next lower one, which has not served here"),
        ({}, "version 9 serves, and there is no version to go back to"),
    ],
)
def test_rollback_names_what_never_served_and_what_is_not_there(
    status: Any, text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    model = pb.ModelStatus(model="m", serving=pb.Version(number=9), **status)
    with serving(add_models(model)) as address:
        assert main(["rollback", "m", "--dry-run", "--server", address]) == 0
    assert only_line(capsys.readouterr().out) == f"m: {text}"


def test_servers_come_from_the_environment_unless_an_option_names_them(
    server: str, other: str, nobody: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def addresses() -> list[str]:
        return [told["address"] for told in json.loads(only_line(capsys.readouterr().out))["servers"]]

    monkeypatch.setenv("PARAMSYNC_SERVER", f"{server}, {other},{server}")
    assert main(["status", "--trainer", nobody, "--json"]) == 0
    assert addresses() == [server, other]
    assert main(["status", "--trainer", nobody, "--json", "--server", other]) == 0
    assert addresses() == [other]
    monkeypatch.setenv("PARAMSYNC_SERVER", "localhost")
    assert main(["status"]) == 2
    assert only_line(capsys.readouterr().err).startswith("paramsync status: PARAMSYNC_SERVER: address 'localhost'")


def test_all_servers_are_asked_at_the_same_time() -> None:
    met = threading.Barrier(5)

    def ask(number: int) -> int:
        met.wait(300)  # until all five are there
        if number == 3:
            raise CallError("away", "UNAVAILABLE")
        return number

    answers = ask_all(range(5), ask)
    assert [answer for answer in answers if not isinstance(answer, ParamsyncError)] == [0, 1, 2, 4]
    assert str(answers[3]) == "away"


def test_sync_all_waits_for_every_model_of_every_server_and_says_which_did_not(
    server: str, other: str, nobody: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["sync", "--all", "--server", f"{server},{other},{nobody}"]) == 1
    out, err = capsys.readouterr()
    assert [line.partition(" (")[0] for line in out.splitlines()] == [
        f"{server} digits: version 420",
        f"{other} digits: version 420",
        f"{other} cats: version 7",
    ]
    assert only_line(err).startswith(f"paramsync sync: inferencer not reachable at {nobody}")


def test_a_change_at_several_servers_is_told_for_each(
    server: str, other: str, capsys: pytest.CaptureFixture[str]
) -> None:
    servers = ["--server", f"{server},{other}"]
    assert main(["pin", "cats", "7", *servers]) == 1
    out, err = capsys.readouterr()
    assert only_line(out) == f"{other} cats: pinned to version 7; version 420 serves"
    why = "model 'cats' is not served here; served: 'digits'"
    assert only_line(err) == f"paramsync pin: {server} cats: {why}"
    assert main(["pin", "cats", "7", *servers, "--json"]) == 1
    told = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [(change["server"], change["error"], (change["status"] or {}).get("pinned")) for change in told] == [
        (server, why, None),
        (other, None, 7),
    ]


@pytest.mark.slow
def test_a_watch_of_several_servers_tells_which_is_lost_and_that_it_is_back() -> None:
    servicers, addresses = (Sync(), Sync()), []
    with ExitStack() as stack, ExitStack() as lost:
        for servicer, entered in zip(servicers, (stack, lost), strict=True):
            add = partial(sync_pb2_grpc.add_SyncServicer_to_server, servicer)
            addresses.append(entered.enter_context(serving(add)))
        stays, goes = addresses
        command = [sys.executable, "-m", "paramsync.cli", "watch", "--server", f"{stays},{goes}"]
        pipe = subprocess.PIPE
        process = stack.enter_context(bounded(subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True)))
        assert process.stdout is not None
        assert process.stderr is not None
        assert {process.stdout.readline().split()[1] for _ in range(2)} == {stays, goes}
        lost.close()
        assert process.stderr.readline().startswith(f"paramsync watch: {goes} lost: ")
        servicers[0].changed.set()
        assert process.stdout.readline().split()[1] == stays
        with serving(add_models(SERVING), at=goes):
            back = f"paramsync watch: {goes} answers again; it serves digits version 420\n"
            assert process.stderr.readline() == back
            assert process.stdout.readline().split()[1] == goes
            process.send_signal(signal.SIGINT)
            assert process.wait(300) == 130


def test_json_has_a_string_for_what_is_no_number_and_null_for_what_is_absent() -> None:
    status = pb.PublisherStatus(loss=float("nan"), published=pb.Version(metrics={"loss": float("inf")}))
    found = json.loads(to_json(plain(status)))
    assert (found["loss"], found["published"]["metrics"], found["total_steps"]) == ("nan", {"loss": "inf"}, None)


@pytest.mark.parametrize("columns", [40, 80])
def test_a_terminal_shows_how_far_it_is_and_then_why_it_failed(columns: int, server: str) -> None:
    code, drawn = on_terminal("sync", "--version", str(CORRUPT), "--server", server, columns=columns, TERM="xterm")
    assert code == 1
    assert "5/10 bytes" in drawn
    plain = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", drawn)
    bars = [line for line in re.split(r"[\r\n]+", plain) if "bytes" in line]
    assert max(map(len, bars)) <= columns
    assert plain.rstrip().endswith(
        "version 2 was refused: not finite; what served goes on serving, see `paramsync status`"
    )


@pytest.mark.parametrize("command", ["sync", "pin", "unpin", "rollback"])
def test_a_moment_is_given_as_a_time_or_as_seconds_from_now(command: str) -> None:
    words = [command, *WORDS[command]]
    soon = datetime.fromtimestamp(int(time.time()) + 600).astimezone()
    for text in (f"{soon:%Y-%m-%d %H:%M:%S}", soon.isoformat()):
        assert parser().parse_args([*words, "--at", text]).at == soon.timestamp()
    assert 500 < parser().parse_args([*words, "--in", "600"]).at - time.time() <= 600
    assert parser().parse_args(words).at is None


@pytest.mark.parametrize(
    "given",
    [["--at", "noon"], ["--at", "2020-01-01 12:00"], ["--in", "3601"], ["--in", "0"], ["--in", "5", "--at", "1"]],
)
def test_a_moment_that_cannot_be_waited_for_is_refused(given: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["pin", "digits", "420", *given])
    assert ended.value.code == 2
    assert "expected" in only_line(capsys.readouterr().err) or "not allowed with" in given
