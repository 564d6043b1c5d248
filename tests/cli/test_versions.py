"""`paramsync versions`: what is in a store, what of it is shared, held by whom, or broken."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from paramsync.cli import versions
from paramsync.cli.__main__ import main
from paramsync.store.commit import StoreWriter
from paramsync.store.store import Store
from tests.support.commands import cut, json_of, only_line, three_versions
from tests.support.written import version

pytestmark = pytest.mark.usefixtures("eighty_columns")


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return three_versions(tmp_path / "store")


def test_versions_shows_what_is_there_in_80_columns(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["versions", str(store)]) == 0
    head, columns, *rows = capsys.readouterr().out.splitlines()
    assert head.startswith(f"{store}: 3 versions, ")
    assert columns.split() == ["version", "step", "age", "size", "written", "shared", "held", "by"]
    assert [row.split()[:2] for row in rows] == [["30", "30"], ["20", "20"], ["10", "10"]]
    assert ["latest" in row for row in rows] == [True, False, False]
    assert max(map(len, rows)) <= 80


def test_versions_as_json_is_one_object_with_every_figure(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = json_of(["versions", str(store)], capsys)
    assert [row["number"] for row in found["versions"]] == [10, 20, 30]
    assert found["broken"] == []
    (last,) = (row for row in found["versions"] if row["latest"])
    recorded = Store(store).find(30)
    assert (last["number"], last["step"], last["committed_at"]) == (30, 30, recorded.committed_at)
    assert (last["bytes"], last["bytes_written"]) == (recorded.bytes, recorded.bytes_written)
    assert last["finite"] is recorded.finite is False
    assert last["file_bytes"] >= last["bytes"] > 0
    assert found["bytes_on_disk"] > 0


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


def test_versions_names_the_processes_that_hold_one(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code = f"""
import sys
from pathlib import Path
from paramsync.store.store import Store
store = Store(Path({str(store)!r}))
bundle = store.open(store.find(20))
print("held", flush=True)
sys.stdin.read()
"""
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as follower:
        assert follower.stdout is not None
        assert follower.stdout.readline() == b"held\n"
        held = _held(store, capsys)
        assert main(["versions", str(store)]) == 0
        shown = capsys.readouterr().out
        follower.kill()
        follower.wait()
    assert held == {10: [], 20: [follower.pid], 30: []}
    assert f" {follower.pid}" in shown
    assert _held(store, capsys) == {10: [], 20: [], 30: []}  # the dead hold nothing


def test_versions_leaves_holders_out_where_the_kernel_does_not_say(tmp_path: Path) -> None:
    assert versions.shared_locks(tmp_path / "locks") is None


def test_only_shared_locks_that_were_got_count_as_holding(tmp_path: Path) -> None:
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
def test_a_directory_that_is_no_store_is_told_with_what_is_in_it(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("notes.txt", "a", "b", "c"):
        (tmp_path / name).touch()
    assert main([command, str(tmp_path)]) == 1
    assert only_line(capsys.readouterr().err) == (
        f"paramsync {command}: store {tmp_path}: is no store: expected a file 'checkpoint' in it, found 'a', 'b', 'c'"
        " and 1 more"
    )


def test_versions_of_an_empty_store_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["versions", str(tmp_path)]) == 0
    assert only_line(capsys.readouterr().out).startswith(f"{tmp_path}: nothing published yet")


def test_versions_names_what_is_listed_and_broken_and_says_so_with_its_exit_code(
    store: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (store / "ckpt-20.json").write_text("{")
    (store / "ckpt-10.index").unlink()
    found = json_of(["versions", str(store)], capsys, code=1)
    assert ([row["number"] for row in found["versions"]], found["broken"]) == ([30], ["ckpt-10", "ckpt-20"])
    assert main(["versions", str(store)]) == 1
    assert "'ckpt-20' is listed, but its files are broken or gone" in capsys.readouterr().out


@pytest.mark.parametrize("file", ["ckpt-20.index", "ckpt-20.data-00000-of-00001"])
@pytest.mark.parametrize("harm", ["cut", "gone"])
def test_versions_names_a_version_whose_files_were_cut_or_taken_away(
    store: Path, capsys: pytest.CaptureFixture[str], file: str, harm: str
) -> None:
    assert (store / file).exists()
    cut(store / file) if harm == "cut" else (store / file).unlink()
    assert json_of(["versions", str(store)], capsys, code=1)["broken"] == ["ckpt-20"]


def _held(store: Path, capsys: pytest.CaptureFixture[str]) -> dict[int, list[int]]:
    found = json_of(["versions", str(store)], capsys)["versions"]
    return {row["number"]: row["held_by"] for row in found}
