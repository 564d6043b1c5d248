"""`paramsync versions` and `paramsync diff`: what is in a store, who holds it, and what changed."""

from __future__ import annotations

import math
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from paramsync.cli import versions
from paramsync.cli.__main__ import main
from paramsync.cli.formatting import NOTHING
from paramsync.store.commit import StoreWriter
from tests.support.commands import cut, json_of, on_terminal, only_line, three_versions
from tests.support.programs import bounded
from tests.support.written import version


@pytest.fixture(scope="module")
def intact(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return three_versions(tmp_path_factory.mktemp("stores") / "store")


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """To be damaged."""
    return three_versions(tmp_path / "store")


def test_versions_lists_the_newest_first(intact: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["versions", str(intact)]) == 0
    head, columns, *rows = capsys.readouterr().out.splitlines()
    assert head.startswith(f"{intact}: 3 versions, ")
    assert columns.split() == ["version", "step", "age", "size", "written", "shared", "held", "by"]
    assert [row.split()[:2] for row in rows] == [["30", "30"], ["20", "20"], ["10", "10"]]
    assert ["latest" in row for row in rows] == [True, False, False]


def test_versions_counts_the_bytes_of_files_with_several_names_as_shared(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    frozen, trained = np.ones((64, 64), np.float32), np.zeros(8, np.float32)
    with StoreWriter(tmp_path / "s") as writer:
        for step in range(4):
            writer.commit(version(step), {"frozen": frozen, "trained": trained + step}, unchanged=["frozen"])
    last = json_of(["versions", str(tmp_path / "s")], capsys)["versions"][-1]
    assert last["bytes_written"] == trained.nbytes
    assert last["shared_bytes"] >= frozen.nbytes


def test_versions_names_the_processes_that_hold_a_version(intact: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def held() -> dict[int, list[int]]:
        return {row["number"]: row["held_by"] for row in json_of(["versions", str(intact)], capsys)["versions"]}

    code = f"""
import sys
from pathlib import Path
from paramsync.store.store import Store
store = Store(Path({str(intact)!r}))
bundle = store.open(store.find(20))
print("held", flush=True)
sys.stdin.read()
"""
    pipe = subprocess.PIPE
    with bounded(subprocess.Popen([sys.executable, "-c", code], stdin=pipe, stdout=pipe)) as follower:
        assert follower.stdout is not None
        assert follower.stdout.readline() == b"held\n"
        assert held() == {10: [], 20: [follower.pid], 30: []}
        assert main(["versions", str(intact)]) == 0
        assert f" {follower.pid}" in capsys.readouterr().out
    assert held() == {10: [], 20: [], 30: []}  # the dead hold nothing


def test_only_shared_locks_that_were_got_count_as_holding(tmp_path: Path) -> None:
    assert versions.shared_locks(tmp_path / "locks") is None  # as on a system that does not say
    (tmp_path / "locks").write_text(
        "1: FLOCK  ADVISORY  READ 12 00:1b:11203 0 EOF\n"
        "1: -> FLOCK  ADVISORY  READ 13 00:1b:11203 0 EOF\n"
        "2: FLOCK  ADVISORY  WRITE 14 00:1b:11204 0 EOF\n"
        "3: POSIX  ADVISORY  READ 15 00:1b:11203 0 EOF\n"
        "4: FLOCK  ADVISORY  READ 11 00:1b:11203 0 EOF\n"
        "5: OFDLCK ADVISORY  READ -1 00:1b:11203 0 EOF\n"
    )
    assert versions.shared_locks(tmp_path / "locks") == {(0, 0x1B, 11203): frozenset({11, 12})}


@pytest.mark.parametrize("command", ["versions", "verify"])
def test_what_is_no_store_is_one_line(command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    some = tmp_path / "some"
    some.mkdir()
    for name in ("notes.txt", "a", "b", "c"):
        (some / name).touch()
    for path, why in (
        (tmp_path / "nosuch", "cannot be read: No such file or directory"),
        (some / "a", "expected a directory, found a file"),
        (some, "is no store: expected a file 'checkpoint' in it, found 'a', 'b', 'c' and 1 more"),
    ):
        assert main([command, str(path)]) == 1
        assert only_line(capsys.readouterr().err) == f"paramsync {command}: store {path}: {why}"


def test_an_empty_store_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["versions", str(tmp_path)]) == 0
    assert only_line(capsys.readouterr().out).startswith(f"{tmp_path}: nothing published yet")
    assert main(["verify", str(tmp_path)]) == 1
    assert only_line(capsys.readouterr().err).endswith("nothing is published there yet")


@pytest.mark.parametrize(
    "harm",
    [
        lambda store: (store / "ckpt-20.json").write_text("{"),
        lambda store: (store / "ckpt-20.index").unlink(),
        lambda store: cut(store / "ckpt-20.index"),
        lambda store: cut(store / "ckpt-20.data-00000-of-00001"),
        lambda store: (store / "ckpt-20.data-00000-of-00001").unlink(),
    ],
    ids=["record", "no index", "cut index", "cut data", "no data"],
)
def test_versions_names_a_broken_version(
    store: Path, harm: Callable[[Path], object], capsys: pytest.CaptureFixture[str]
) -> None:
    harm(store)
    assert json_of(["versions", str(store)], capsys, code=1)["broken"] == ["ckpt-20"]
    assert main(["versions", str(store)]) == 1
    assert "'ckpt-20' is listed, but its files are broken or gone" in capsys.readouterr().out


def test_diff_lists_what_changed_most_first(intact: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["diff", str(intact)]) == 0
    head, columns, *rows = capsys.readouterr().out.splitlines()
    assert head == "version 20 to 30, +10 steps: 2 of 3 parameters changed"
    assert columns.split() == ["tensor", "shape", "change", "relative", "largest", "elements"]
    assert [row.split()[0] for row in rows] == ["dense/kernel", "dense/bias"]
    assert all(row.endswith("100.0%") for row in rows)
    assert main(["diff", str(intact), "--top", "1"]) == 0
    *_, row, more = capsys.readouterr().out.splitlines()
    assert (row.split()[0], more) == ("dense/kernel", "1 more changed, by less")
    assert len(json_of(["diff", str(intact), "--top", "1"], capsys)["parameters"]) == 1


def test_diff_names_what_is_only_in_one_version_and_what_is_nan(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with StoreWriter(tmp_path) as writer:
        writer.commit(version(1), {"a": np.zeros(4), "b": np.ones(2), "gone": np.ones(1), "z": np.ones(4)})
        changed = {"a": np.array([1.0, math.nan, 0, 0]), "b": np.ones(3), "\x1b[31m": np.ones(1)}
        writer.commit(version(2), changed | {"z": np.full(4, math.nan)})
    assert main(["diff", str(tmp_path)]) == 0
    head, _, *rows = capsys.readouterr().out.splitlines()
    assert head.endswith("2 of 5 parameters changed, 1 reshaped, 1 added, 1 removed")
    assert sorted(row.split() for row in rows[:2]) == [
        ["a", "[4]", "1", "from", "zero", "1", "50.0%"],
        ["z", "[4]", "NaN", NOTHING, NOTHING, "100.0%"],
    ]
    assert sorted(rows[2:]) == [
        "a: NaN or infinity in 1 of 4 elements, which no other figure counts",
        "added: '\\x1b[31m', float64 [1]",
        "removed: gone, float64 [1]",
        "reshaped: b, float64 [2] to float64 [3]",
        "z: NaN or infinity in 4 of 4 elements, which no other figure counts",
    ]
    told = {each["name"]: each for each in json_of(["diff", str(tmp_path)], capsys)["parameters"]}
    assert (told["a"]["relative"], told["z"]["relative"], told["z"]["not_finite"]) == ("inf", None, 4)


def test_tables_of_long_names_stay_within_80_columns(tmp_path: Path) -> None:
    with StoreWriter(tmp_path) as writer:
        for number in (1, 2):
            writer.commit(version(number), {"layer/" * 40 + "w": np.full((1,) * 40, float(number))})
    for command in ("versions", "diff", "verify"):
        code, text = on_terminal(command, str(tmp_path), columns=80, TERM="dumb")
        _, *rows = text.splitlines()
        assert (code, max(map(len, rows)) <= 80) == (0, True), text


def test_checkpoints_of_tensorflow_are_known(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    variable = tf.Variable(tf.ones([4]))
    manager = tf.train.CheckpointManager(tf.train.Checkpoint(w=variable), str(tmp_path), max_to_keep=2)
    for _ in range(3):
        manager.save()
        variable.assign_add([0.0, 0.0, 2.0, 0.0])
    rows = json_of(["versions", str(tmp_path)], capsys)["versions"]
    assert [(row["number"], row["latest"], row["bytes"]) for row in rows] == [(2, False, None), (3, True, None)]
    assert json_of(["verify", str(tmp_path), "--all"], capsys)["ok"]
    told = {each["name"]: each for each in json_of(["diff", str(tmp_path)], capsys)["parameters"]}
    weights = told["w/.ATTRIBUTES/VARIABLE_VALUE"]
    assert (weights["norm"], weights["changed"]) == (2.0, 1)


def test_versions_that_are_not_there_are_one_line(
    intact: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for words in (["diff", str(intact), "7"], ["diff", str(intact), "10", "7"], ["verify", str(intact), "7"]):
        assert main(words) == 1
        why = f"version 7 of {intact} is not there; there are: 10, 20, 30"
        assert only_line(capsys.readouterr().err) == f"paramsync {words[0]}: {why}"
    with StoreWriter(tmp_path) as writer:
        writer.commit(version(5), {"a": np.ones(1)})
    assert main(["diff", str(tmp_path)]) == 1
    why = "expected a version before 5 to compare with, found none"
    assert only_line(capsys.readouterr().err) == f"paramsync diff: store {tmp_path}: {why}"
