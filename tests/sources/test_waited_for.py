"""A store that has nothing to serve: which path is waited for, and why, is said at once and in the status."""

from __future__ import annotations

import json
import logging
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from paramsync.cli.__main__ import main
from paramsync.following.follower import Follower
from tests.support.programs import eventually
from tests.support.published import Publisher
from tests.support.running import Running


def missing(path: Path) -> None:
    pass


def empty(path: Path) -> None:
    path.mkdir()


def of_others(path: Path) -> None:
    path.mkdir()
    (path / "notes.txt").touch()


def unpublished(path: Path) -> None:
    path.mkdir()
    (path / "publisher.lock").touch()


def emptied(path: Path) -> None:
    path.mkdir()
    (path / "checkpoint").touch()


CASES = pytest.mark.parametrize(
    ("make", "why"),
    [
        (missing, "no such directory, {parent} is there"),
        (empty, "the directory is empty"),
        (of_others, "no `checkpoint` in it, nor a SavedModel in a directory whose name is a number"),
        (unpublished, "its publisher has published nothing yet"),
        (emptied, "its `checkpoint` names no version"),
    ],
)


@CASES
def test_a_follower_says_what_it_waits_for_and_why(
    make: Callable[[Path], None], why: str, follower: Follower, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    make(tmp_path / "m")
    expected = f"{tmp_path / 'm'}: {why.format(parent=tmp_path)}"
    with caplog.at_level(logging.WARNING, "paramsync"):
        for _ in range(3):
            follower.run_once()
    assert follower.status().reason == expected
    assert [record.getMessage() for record in caplog.records] == [f"m: waits for a version: {expected}"]


def test_nothing_is_waited_for_once_a_version_is_there_and_again_when_it_is_gone(
    follower: Follower, publisher: Publisher, tmp_path: Path
) -> None:
    publisher.publish(7)
    follower.run_once()
    assert follower.status().reason == ""
    publisher.close()
    shutil.rmtree(tmp_path / "m")
    follower.run_once()
    assert follower.status().reason == f"{tmp_path / 'm'}: no such directory, {tmp_path} is there"
    assert follower.status().serving is not None


def test_status_says_what_is_waited_for(
    running: Running, nobody: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    expected = f"{tmp_path / 'm'}: no such directory, {tmp_path} is there"
    eventually(lambda: running.server.models.find("m").status().reason, lambda: "a first look")
    arguments = ["status", "--inferencer", f"127.0.0.1:{running.control_port}", "--trainer", nobody]
    assert main([*arguments, "--json"]) == 0
    (model,) = json.loads(capsys.readouterr().out)["servers"][0]["models"]
    assert model["reason"] == expected
    assert main(arguments) == 0
    assert f"m: waits for a version: {expected}" in " ".join(capsys.readouterr().out.split())
