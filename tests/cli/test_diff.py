"""`paramsync diff`: what changed between two versions of a store, in 80 columns and as JSON."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from paramsync.cli.__main__ import main
from paramsync.cli.formatting import NOTHING
from paramsync.store.commit import StoreWriter
from tests.support.commands import json_of, only_line, three_versions
from tests.support.written import version

pytestmark = pytest.mark.usefixtures("eighty_columns")


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return three_versions(tmp_path / "store")


def test_diff_shows_what_the_newest_version_changed_in_80_columns(
    store: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["diff", str(store)]) == 0
    head, columns, *rows = capsys.readouterr().out.splitlines()
    assert head == "version 20 to 30, +10 steps: 2 of 3 parameters changed"
    assert columns.split() == ["tensor", "shape", "change", "relative", "largest", "elements"]
    assert [row.split()[0] for row in rows] == ["dense/kernel", "dense/bias"]
    assert all(row.endswith("100.0%") for row in rows)
    assert max(map(len, rows)) <= 80


def test_diff_as_json_has_every_figure_by_relative_change(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = json_of(["diff", str(store), "10", "30"], capsys)
    assert (found["store"], found["old"], found["new"]) == (
        str(store),
        {"number": 10, "step": 10},
        {"number": 30, "step": 30},
    )
    kernel, bias, words = found["parameters"]
    assert [kernel["name"], bias["name"], words["name"]] == ["dense/kernel", "dense/bias", "words"]
    assert kernel["relative"] > bias["relative"] > 0
    assert kernel["relative"] == pytest.approx(kernel["norm"] / kernel["norm_before"])
    assert (kernel["shape"], kernel["dtype"], kernel["changed"]) == ([64, 128], "float32", 64 * 128)
    assert sum(kernel["histogram"]) == kernel["changed"]
    assert len(found["histogram_edges"]) == len(kernel["histogram"]) + 1
    assert (words["kind"], words["norm"]) == ("unchanged", None)


def test_diff_takes_one_version_to_compare_the_newest_with(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = json_of(["diff", str(store), "10"], capsys)
    assert (found["old"]["number"], found["new"]["number"]) == (10, 30)


def test_diff_of_the_top_says_how_many_more_changed(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["diff", str(store), "--top", "1"]) == 0
    *_, row, more = capsys.readouterr().out.splitlines()
    assert row.startswith("dense/kernel")
    assert more == "1 more changed, by less"
    assert len(json_of(["diff", str(store), "--top", "1"], capsys)["parameters"]) == 1


def test_diff_names_what_is_only_in_one_version_and_what_is_nan(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with StoreWriter(tmp_path) as writer:
        writer.commit(version(1), {"a": np.zeros(4), "b": np.ones(2), "gone": np.ones(1)})
        writer.commit(version(2), {"a": np.array([1.0, math.nan, 0, 0]), "b": np.ones(3), "\x1b[31m": np.ones(1)})
    assert main(["diff", str(tmp_path)]) == 0
    head, _, row, *lines = capsys.readouterr().out.splitlines()
    assert head.endswith("1 of 4 parameters changed, 1 reshaped, 1 added, 1 removed")
    assert row.split() == ["a", "[4]", "1", "from", "zero", "1", "50.0%"]
    assert lines == [
        "reshaped: b, float64 [2] to float64 [3]",
        "added: '\\x1b[31m', float64 [1]",
        "removed: gone, float64 [1]",
        "a: NaN or infinity in 1 of 4 elements, which no other figure counts",
    ]
    relative = json_of(["diff", str(tmp_path)], capsys)["parameters"][0]["relative"]
    assert relative == "inf"


def test_diff_of_long_names_stays_within_80_columns(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with StoreWriter(tmp_path) as writer:
        for number in (1, 2):
            writer.commit(version(number), {"layer/" * 40 + "w": np.full((1,) * 40, float(number))})
    assert main(["diff", str(tmp_path)]) == 0
    assert max(map(len, capsys.readouterr().out.splitlines())) <= 80


def test_diff_looks_at_what_a_saver_wrote(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    variable = tf.Variable(tf.ones([4]))
    manager = tf.train.CheckpointManager(tf.train.Checkpoint(w=variable), str(tmp_path), max_to_keep=3)
    manager.save()
    variable.assign_add([0.0, 0.0, 2.0, 0.0])
    manager.save()
    found = {each["name"]: each for each in json_of(["diff", str(tmp_path)], capsys)["parameters"]}
    weights = found["w/.ATTRIBUTES/VARIABLE_VALUE"]
    assert (weights["norm"], weights["relative"], weights["changed"]) == (2.0, 1.0, 1)


@pytest.mark.parametrize(
    ("versions", "problem"),
    [
        (["7"], "version 7 of STORE is not there; there are: 10, 20, 30"),
        (["10", "7"], "version 7 of STORE is not there; there are: 10, 20, 30"),
    ],
)
def test_diff_says_in_one_line_which_version_is_not_there(
    store: Path, capsys: pytest.CaptureFixture[str], versions: list[str], problem: str
) -> None:
    assert main(["diff", str(store), *versions]) == 1
    assert only_line(capsys.readouterr().err) == f"paramsync diff: {problem.replace('STORE', str(store))}"


def test_diff_of_a_single_version_says_that_there_is_no_other(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with StoreWriter(tmp_path) as writer:
        writer.commit(version(5), {"a": np.ones(1)})
    assert main(["diff", str(tmp_path)]) == 1
    problem = "expected a version before 5 to compare with, found none"
    assert only_line(capsys.readouterr().err) == f"paramsync diff: store {tmp_path}: {problem}"


def test_diff_of_a_version_that_is_nan_alone_says_so_first(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with StoreWriter(tmp_path) as writer:
        for number, values in ((1, np.ones(4)), (2, np.full(4, math.nan)), (3, np.full(4, math.nan))):
            writer.commit(version(number), {"a": np.full(3, number, np.float32), "z": values})
    assert main(["diff", str(tmp_path), "1", "2"]) == 0
    _, _, *rows, note = capsys.readouterr().out.splitlines()
    assert [row.split() for row in rows] == [
        ["z", "[4]", "NaN", NOTHING, NOTHING, "100.0%"],
        ["a", "[3]", "1.73", "1", "1", "100.0%"],
    ]
    assert note == "z: NaN or infinity in 4 of 4 elements, which no other figure counts"
    (z, _) = json_of(["diff", str(tmp_path), "1", "2"], capsys)["parameters"]
    assert (z["name"], z["changed"], z["not_finite"], z["norm"], z["relative"]) == ("z", 4, 4, None, None)
