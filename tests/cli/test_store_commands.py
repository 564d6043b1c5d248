"""`paramsync versions` and `paramsync verify` where there is no store, or one of TensorFlow's, or wrong arguments."""

from __future__ import annotations

from pathlib import Path

import pytest
import tensorflow as tf

from paramsync.cli.__main__ import main
from paramsync.cli.formatting import size
from tests.support.commands import json_of, only_line

pytestmark = pytest.mark.usefixtures("eighty_columns")


def test_versions_and_verify_know_a_store_that_tensorflow_wrote(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    checkpoint = tf.train.Checkpoint(v=tf.Variable(tf.ones([16])))
    manager = tf.train.CheckpointManager(checkpoint, str(tmp_path), max_to_keep=2)
    for step in (1, 2, 3):
        manager.save(step)
    found = json_of(["versions", str(tmp_path)], capsys)["versions"]
    assert [(row["number"], row["latest"], row["bytes"]) for row in found] == [(2, False, None), (3, True, None)]
    assert main(["versions", str(tmp_path)]) == 0
    assert max(map(len, capsys.readouterr().out.splitlines()[1:])) <= 80
    verdict = json_of(["verify", str(tmp_path), "--all"], capsys)
    assert verdict["ok"]
    assert [one["number"] for one in verdict["versions"]] == [2, 3]


@pytest.mark.parametrize("command", ["versions", "verify"])
def test_a_store_that_is_not_there_is_one_line(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([command, str(tmp_path / "nosuch")]) == 1
    said = f"paramsync {command}: store {tmp_path}/nosuch: cannot be read: No such file or directory"
    assert only_line(capsys.readouterr().err) == said


@pytest.mark.parametrize("command", ["versions", "verify"])
def test_a_file_in_place_of_a_store_is_one_line(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").touch()
    assert main([command, str(tmp_path / "file")]) == 1
    assert only_line(capsys.readouterr().err).endswith("expected a directory, found a file")


@pytest.mark.parametrize("arguments", ["versions", "verify", "verify s ten", "verify s 10 --all", "versions s 10"])
def test_wrong_arguments_get_one_line_and_exit_code_2(arguments: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(arguments.split())
    assert ended.value.code == 2
    command = arguments.partition(" ")[0]
    assert only_line(capsys.readouterr().err).endswith(f"; see `paramsync {command} --help`")


@pytest.mark.parametrize(
    ("count", "said"),
    [(0, "0 B"), (999, "999 B"), (1000, "1.0 kB"), (33_280, "33 kB"), (268_000_000, "268 MB"), (999_600, "1.0 MB")],
)
def test_sizes_are_short(count: int, said: str) -> None:
    assert size(count) == said
