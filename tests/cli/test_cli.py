"""The operator's commands, all but up and predict, against real servers that speak the contract."""

from __future__ import annotations

import argparse
import json
import socket
from typing import Any

import pytest

from paramsync.cli.__main__ import main
from paramsync.cli.arguments import parser
from paramsync.cli.formatting import duration, plain, to_json
from paramsync.v1 import sync_pb2 as pb
from tests.support.commands import only_line
from tests.support.servers import CORRUPT, NEVER, SERVING, add_models, serving

pytestmark = pytest.mark.usefixtures("eighty_columns")

WORDS = {
    "status": [],
    "sync": ["digits"],
    "watch": ["digits"],
    "pin": ["digits", "420"],
    "unpin": ["digits"],
    "rollback": ["digits"],
    "label": ["digits", "canary", "420"],
    "unlabel": ["digits", "stable"],
}
CHANGING = ["sync", "pin", "unpin", "rollback", "label", "unlabel"]


def test_help_names_every_command_and_gives_an_example(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--help"])
    text = capsys.readouterr().out
    assert ended.value.code == 0
    assert all(f"\n    {command} " in text for command in (*WORDS, "up", "predict", "graph"))
    assert "paramsync sync digits" in text


def test_help_of_every_command_fits_in_80_columns() -> None:
    below = [parser()]
    for each in below:
        wide = [line for line in each.format_help().splitlines() if len(line) > 80]
        assert wide == [], each.prog
        below += [sub for action in each._actions for sub in _subparsers(action)]
    assert len(below) > len(WORDS)


def _subparsers(action: argparse.Action) -> list[argparse.ArgumentParser]:
    return list(action.choices.values()) if isinstance(action, argparse._SubParsersAction) else []


@pytest.mark.parametrize(
    "arguments",
    [
        "",
        "nosuch",
        "status --colour",
        "sync digits --version newest",
        "sync digits --timeout 0",
        "sync digits --timeout nan",
        "pin digits",
        "pin digits -1",
        "up --port 70000",
        "pin digits 9999999999999999999",
        "pin digits \u0663",
        "up --seconds -1",
        "predict digits",
        "predict digits --input image",
        "predict digits --input =1",
        "graph",
        "graph show",
        "graph tensorboard /store",
    ],
)
def test_wrong_arguments_get_one_line_with_where_to_read_on_and_exit_code_2(
    arguments: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(arguments.split())
    assert ended.value.code == 2
    line = only_line(capsys.readouterr().err)
    assert line.startswith("paramsync")
    assert line.endswith("--help`")


@pytest.mark.parametrize(("typed", "meant"), [("statsu", "status"), ("role back", ""), ("rolback digits", "rollback")])
def test_a_command_that_is_mistyped_is_told_which_was_meant(
    typed: str, meant: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        main(typed.split())
    line = only_line(capsys.readouterr().err)
    assert line.startswith(f"paramsync: expected a command, found '{typed.split()[0]}'")
    assert (f"did you mean {meant}?" in line) == bool(meant)


def test_an_address_without_a_port_is_a_wrong_argument(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["sync", "--inferencer", "localhost"]) == 2
    assert only_line(capsys.readouterr().err).startswith("paramsync sync: address 'localhost': expected HOST:PORT")


@pytest.mark.parametrize("command", CHANGING)
def test_nobody_there_is_one_line_with_the_address(
    command: str, nobody: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([command, *WORDS[command], "--inferencer", nobody]) == 1
    line = only_line(capsys.readouterr().err)
    assert line.startswith(f"paramsync {command}: inferencer not reachable at {nobody} (Connection refused): start it")


@pytest.mark.parametrize("command", CHANGING)
def test_an_unknown_model_is_one_line_with_the_known_ones(
    command: str, inferencer: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([command, "cats", *WORDS[command][1:], "--inferencer", inferencer]) == 1
    assert only_line(capsys.readouterr().err).endswith("model 'cats' is not served here; served: 'digits'")


def test_sync_says_which_version_serves(inferencer: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["sync", "digits", "--inferencer", inferencer]) == 0
    assert only_line(capsys.readouterr().out).startswith("digits: version 420 (step 420) serves, ")


def test_sync_as_json_is_one_object(inferencer: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["sync", "--inferencer", inferencer, "--json"]) == 0
    found = json.loads(only_line(capsys.readouterr().out))
    assert (found["model"], found["status"]["serving"]["number"]) == ("digits", 420)


@pytest.mark.parametrize(
    ("version", "timeout", "why"),
    [(CORRUPT, "60", "version 2 was refused: not finite"), (NEVER, "0.2", "did not answer within 0.2 s")],
)
def test_sync_says_why_not(
    version: int, timeout: str, why: str, inferencer: str, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["--version", str(version), "--timeout", timeout, "--inferencer", inferencer]
    assert main(["sync", "digits", *arguments]) == 1
    assert f"{why}; " in only_line(capsys.readouterr().err)  # what to do follows


def test_pin_and_unpin_say_what_holds_now(inferencer: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["pin", "digits", "420", "--inferencer", inferencer]) == 0
    assert main(["unpin", "digits", "--inferencer", inferencer]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "digits: pinned to version 420; version 420 serves",
        "digits: follows the newest version; version 420 serves",
    ]


def test_a_fresh_sync_says_which_version_serves(inferencer: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["sync", "digits", "--fresh", "--inferencer", inferencer]) == 0
    assert only_line(capsys.readouterr().out).startswith("digits: version 420 (step 420) serves, ")


def test_rollback_says_where_it_goes_and_goes_there(inferencer: str, capsys: pytest.CaptureFixture[str]) -> None:
    where = "digits: back from version 420 to version 419, which served before"
    assert main(["rollback", "digits", "--dry-run", "--inferencer", inferencer]) == 0
    assert only_line(capsys.readouterr().out) == where
    assert main(["rollback", "digits", "--inferencer", inferencer]) == 0
    assert capsys.readouterr().out.splitlines() == [where, "digits: pinned to version 419; version 419 serves"]


@pytest.mark.parametrize(
    ("status", "said"),
    [
        ({"rollback_to": 7}, "back from version 9 to version 7, the next lower one, which has not served here"),
        ({}, "version 9 serves, and there is no version to go back to"),
    ],
)
def test_rollback_names_what_never_served_and_what_is_not_there(
    status: Any, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    model = pb.ModelStatus(model="m", serving=pb.Version(number=9), **status)
    with serving(add_models(model)) as address:
        assert main(["rollback", "m", "--dry-run", "--inferencer", address]) == 0
    assert only_line(capsys.readouterr().out) == f"m: {said}"


def test_label_and_unlabel_say_what_holds_now(inferencer: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["label", "digits", "canary", "420", "--inferencer", inferencer]) == 0
    assert main(["unlabel", "digits", "stable", "--inferencer", inferencer]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "digits: canary is version 420, stable is version 419",
        "digits: no labels",
    ]


@pytest.mark.parametrize(
    ("seconds", "said"),
    [(0, "0 ms"), (0.0123, "12 ms"), (0.9994, "999 ms"), (1, "1.0 s"), (9.96, "10.0 s"), (90, "90 s"), (600, "10 min")],
)
def test_durations_are_short(seconds: float, said: str) -> None:
    assert duration(seconds) == said


def test_json_has_a_string_where_it_has_no_number() -> None:
    status = pb.PublisherStatus(loss=float("nan"), published=pb.Version(metrics={"loss": float("inf")}))
    found = json.loads(to_json(plain(status)))
    assert (found["loss"], found["published"]["metrics"], found["total_steps"]) == ("nan", {"loss": "inf"}, None)


@pytest.mark.parametrize("command", CHANGING)
def test_arguments_that_are_no_text_are_wrong(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([command, "\udcff", *WORDS[command][1:]]) == 2
    assert only_line(capsys.readouterr().err) == r"paramsync: expected arguments in UTF-8, found '\udcff'"


def test_the_status_shown_is_the_status_sent() -> None:
    assert pb.ModelStatus.State.Value(plain(SERVING)["state"].upper()) == SERVING.state


@pytest.mark.slow
def test_a_watch_of_a_server_that_is_stopped_is_given_up(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as stopped:  # the kernel takes the connection, and nobody answers
        assert main(["watch", "--server", f"127.0.0.1:{stopped.getsockname()[1]}"]) == 1
    assert "within 5 s" in only_line(capsys.readouterr().err)
