"""`paramsync versions` and `paramsync verify`, on real stores, held and broken in real ways."""

from __future__ import annotations

import json
import os
import pty
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from rich.cells import cell_len

from paramsync import index
from paramsync.bundle import Bundle
from paramsync.cli import holders
from paramsync.cli.__main__ import main
from paramsync.cli.wording import size
from paramsync.index import Entry, Index, data_file, index_file
from paramsync.store import Store
from paramsync.version import Version
from paramsync.writer import StoreWriter
from tests import checkpoints

FLOAT32 = 1  # as TensorFlow counts dtypes
NAMES = ("dense/bias", "dense/kernel", "words")


@pytest.fixture(autouse=True)
def _columns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """Three versions, the last of step 30."""
    path = tmp_path / "store"
    with StoreWriter(path) as writer:
        for step in (10, 20, 30):
            _publish(writer, step)
    return path


def test_versions_shows_what_is_there_in_80_columns(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["versions", str(store)]) == 0
    head, columns, *rows = capsys.readouterr().out.splitlines()
    assert head.startswith(f"{store}: 3 versions, ")
    assert columns.split() == ["version", "step", "age", "size", "written", "shared", "held", "by"]
    assert [row.split()[:2] for row in rows] == [["30", "30"], ["20", "20"], ["10", "10"]]
    assert ["latest" in row for row in rows] == [True, False, False]
    assert max(map(len, rows)) <= 80


def test_versions_as_json_is_one_object_with_every_figure(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = _json(["versions", str(store)], capsys)
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
            writer.commit(_version(step), {"frozen": frozen, "trained": trained + step}, unchanged=["frozen"])
    last = _json(["versions", str(tmp_path / "s")], capsys)["versions"][-1]
    assert last["bytes_written"] == trained.nbytes
    assert last["shared_bytes"] >= frozen.nbytes


def test_versions_names_the_processes_that_hold_one(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code = f"""
import sys
from pathlib import Path
from paramsync.store import Store
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
    assert holders.shared_locks(tmp_path / "locks") is None


def test_only_shared_locks_that_were_got_count_as_holding(tmp_path: Path) -> None:
    (tmp_path / "locks").write_text(
        "1: FLOCK  ADVISORY  READ 12 00:1b:11203 0 EOF\n"
        "1: -> FLOCK  ADVISORY  READ 13 00:1b:11203 0 EOF\n"
        "2: FLOCK  ADVISORY  WRITE 14 00:1b:11204 0 EOF\n"
        "3: POSIX  ADVISORY  READ 15 00:1b:11203 0 EOF\n"
        "4: FLOCK  ADVISORY  READ 11 00:1b:11203 0 EOF\n"
        "5: OFDLCK ADVISORY  READ -1 00:1b:11203 0 EOF\n"
    )
    assert holders.shared_locks(tmp_path / "locks") == {(0, 0x1B, 11203): frozenset({11, 12})}


def test_versions_of_an_empty_store_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["versions", str(tmp_path)]) == 0
    assert _only_line(capsys.readouterr().out).startswith(f"{tmp_path}: nothing published yet")


def test_versions_names_what_is_listed_and_broken_and_says_so_with_its_exit_code(
    store: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (store / "ckpt-20.json").write_text("{")
    (store / "ckpt-10.index").unlink()
    found = _json(["versions", str(store)], capsys, code=1)
    assert ([row["number"] for row in found["versions"]], found["broken"]) == ([30], ["ckpt-10", "ckpt-20"])
    assert main(["versions", str(store)]) == 1
    assert "'ckpt-20' is listed, but its files are broken or gone" in capsys.readouterr().out


@pytest.mark.parametrize("file", ["ckpt-20.index", "ckpt-20.data-00000-of-00001"])
@pytest.mark.parametrize("harm", ["cut", "gone"])
def test_versions_names_a_version_whose_files_were_cut_or_taken_away(
    store: Path, capsys: pytest.CaptureFixture[str], file: str, harm: str
) -> None:
    assert (store / file).exists()
    _truncate(store / file) if harm == "cut" else (store / file).unlink()
    assert _json(["versions", str(store)], capsys, code=1)["broken"] == ["ckpt-20"]


def test_versions_and_verify_know_a_store_that_tensorflow_wrote(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    checkpoint = tf.train.Checkpoint(v=tf.Variable(tf.ones([16])))
    manager = tf.train.CheckpointManager(checkpoint, str(tmp_path), max_to_keep=2)
    for step in (1, 2, 3):
        manager.save(step)
    found = _json(["versions", str(tmp_path)], capsys)["versions"]
    assert [(row["number"], row["latest"], row["bytes"]) for row in found] == [(2, False, None), (3, True, None)]
    assert main(["versions", str(tmp_path)]) == 0
    assert max(map(len, capsys.readouterr().out.splitlines()[1:])) <= 80
    verdict = _json(["verify", str(tmp_path), "--all"], capsys)
    assert verdict["ok"]
    assert [one["number"] for one in verdict["versions"]] == [2, 3]


def test_verify_shows_every_tensor_of_the_newest_in_80_columns(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["verify", str(store)]) == 0
    head, columns, *rows = capsys.readouterr().out.splitlines()
    assert head == "version 30, step 30: 3 tensors, 33 kB: ok"
    assert columns.split() == ["tensor", "dtype", "shape", "shard", "size"]
    assert [(row.split()[0], row.split()[-1]) for row in rows] == [(name, "ok") for name in NAMES]
    assert all(fact in rows[1] for fact in ("float32", "[64, 128]", "33 kB"))
    assert max(map(len, rows)) <= 80


def test_verify_looks_at_what_is_large_piece_by_piece(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    tf.train.Checkpoint(v=[tf.Variable(tf.ones([16])) for _ in range(5)]).save(tmp_path / "ckpt")
    whole = _json(["verify", str(tmp_path)], capsys)
    monkeypatch.setattr("paramsync.bundle._CHUNK", 5)  # bytes
    assert _json(["verify", str(tmp_path)], capsys) == whole


@pytest.fixture
def sparse(tmp_path: Path) -> Path:
    """A checkpoint of nobody's that says that it is a terabyte, in a file that takes no room."""
    path = tmp_path / "sparse"
    path.mkdir()
    entry = Entry(FLOAT32, (1 << 38,), 0, 0, 1 << 40, 1)
    index_file(path / "ckpt-1").write_bytes(index.encode(Index(1, {"large": entry})))
    (path / "checkpoint").write_text('model_checkpoint_path: "ckpt-1"')
    data = data_file(path / "ckpt-1", 0, 1)
    data.touch()
    os.truncate(data, 1 << 40)
    return path


@pytest.mark.slow
def test_verify_of_a_terabyte_that_is_not_there_takes_little_memory_and_says_how_far_it_is(sparse: Path) -> None:
    screen, terminal = pty.openpty()
    command = [sys.executable, "-m", "paramsync.cli", "verify", str(sparse)]
    with subprocess.Popen(command, stderr=terminal, stdout=subprocess.PIPE, env=os.environ) as verifying:
        os.close(terminal)
        shown = ""
        while not re.search(r"/1\.1 TB.* [GM]B/s", shown):
            shown += os.read(screen, 1 << 16).decode()
        status = Path(f"/proc/{verifying.pid}/status").read_text()
        verifying.send_signal(signal.SIGINT)
        assert verifying.wait(60) == 130
    os.close(screen)
    (largest,) = re.findall(r"VmHWM:\s+(\d+) kB", status)
    assert int(largest) < 300_000


def test_verify_of_names_meant_to_harm_stays_within_80_columns(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    harm = [
        "\u6f22" * 300,
        "e\u0301" * 300,
        "a" * 1000,
        "[bold]x[/]",
        "\x1b[31mred",
        "a\nb",
        "\u202eevil",
        " " * 99 + "z",
    ]
    checkpoints.write(tmp_path / f"ckpt-{'9' * 18}", {name: np.zeros((1,) * 60) for name in harm}, shards=8)
    (tmp_path / "checkpoint").write_text(f'model_checkpoint_path: "ckpt-{"9" * 18}"')
    assert main(["verify", str(tmp_path)]) == 0
    assert max(map(cell_len, capsys.readouterr().out.splitlines())) <= 80
    for data in tmp_path.glob("*.data-*"):
        data.write_bytes(b"1" * data.stat().st_size)
    assert main(["verify", str(tmp_path)]) == 1
    text = capsys.readouterr().out
    assert max(map(cell_len, text[: text.index(str(tmp_path))].splitlines())) <= 80


def test_verify_looks_at_what_several_names_share_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Few bytes, named often, would be looked at for hours."""
    entry = Entry(FLOAT32, (1 << 22,), 0, 0, 1 << 24, 1)
    index_file(tmp_path / "ckpt-1").write_bytes(index.encode(Index(1, {str(at): entry for at in range(5000)})))
    (tmp_path / "checkpoint").write_text('model_checkpoint_path: "ckpt-1"')
    data_file(tmp_path / "ckpt-1", 0, 1).write_bytes(bytes(1 << 24))
    begin = time.process_time()
    found = _json(["verify", str(tmp_path)], capsys, code=1)
    assert time.process_time() - begin < 5
    assert len([one for one in found["versions"][0]["tensors"] if one["problem"]]) == 5000


def test_verify_takes_a_version_or_all(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert [one["number"] for one in _json(["verify", str(store), "10"], capsys)["versions"]] == [10]
    assert [one["number"] for one in _json(["verify", str(store), "--all"], capsys)["versions"]] == [10, 20, 30]


def test_verify_names_the_tensor_whose_bytes_are_wrong(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _flip(store, 30, "dense/kernel")
    assert main(["verify", str(store)]) == 1
    text = capsys.readouterr().out
    assert text.startswith("version 30, step 30: 1 of 3 tensors, 33 kB wrong: not ok\n")
    assert [line.split()[-1] for line in text.splitlines()[2:5]] == ["ok", "wrong", "ok"]
    assert "expected checksum 0x" in text.splitlines()[5]
    assert main(["verify", str(store), "20"]) == 0


def test_verify_of_all_finds_the_wrong_one(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _flip(store, 20, "dense/bias")
    found = _json(["verify", str(store), "--all"], capsys, code=1)
    assert not found["ok"]
    assert [(one["number"], one["ok"]) for one in found["versions"]] == [(10, True), (20, False), (30, True)]
    (wrong,) = (tensor for tensor in found["versions"][1]["tensors"] if tensor["problem"])
    assert (wrong["name"], wrong["dtype"], wrong["shape"], wrong["size"]) == ("dense/bias", "float32", [128], 512)


def _truncate(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


@pytest.mark.parametrize(
    ("breaks", "said"),
    [
        (lambda store: _truncate(store / "ckpt-30.index"), "ckpt-30.index: expected "),
        (lambda store: _truncate(sorted(store.glob("ckpt-30.data-*"))[-1]), "a file of "),
        (lambda store: sorted(store.glob("ckpt-30.data-*"))[-1].unlink(), "expected a data file, found No such file"),
        (lambda store: next(store.glob("graph-*.pb")).unlink(), "expected the version's graph, found no such file"),
    ],
    ids=["a cut index", "cut data", "missing data", "a missing graph"],
)
def test_verify_says_what_is_wrong_with_the_files(
    breaks: Callable[[Path], None], said: str, store: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    breaks(store)
    assert main(["verify", str(store)]) == 1
    assert said in capsys.readouterr().out


def test_verify_finds_an_index_of_other_parameters_than_the_record_says(
    store: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for old in store.glob("ckpt-20.[id]*"):
        old.replace(store / old.name.replace("20", "30", 1))
    assert main(["verify", str(store)]) == 1
    *_, last = capsys.readouterr().out.splitlines()
    assert last.startswith(f"{store}/ckpt-30.json: expected the record of the parameters in ckpt-30")


def test_verify_of_all_counts_a_broken_record_as_a_fault(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (store / "ckpt-20.json").write_text("{")
    found = _json(["verify", str(store), "--all"], capsys, code=1)
    (broken,) = (one for one in found["versions"] if not one["ok"])
    assert broken["number"] == 20
    assert "expected the record of a version" in broken["problems"][0]


@pytest.mark.parametrize("command", ["versions", "verify"])
def test_a_store_that_is_not_there_is_one_line(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([command, str(tmp_path / "nosuch")]) == 1
    said = f"paramsync {command}: store {tmp_path}/nosuch: cannot be read: No such file or directory"
    assert _only_line(capsys.readouterr().err) == said


@pytest.mark.parametrize("command", ["versions", "verify"])
def test_a_file_in_place_of_a_store_is_one_line(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").touch()
    assert main([command, str(tmp_path / "file")]) == 1
    assert _only_line(capsys.readouterr().err).endswith("expected a directory, found a file")


def test_verify_of_an_empty_store_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["verify", str(tmp_path)]) == 1
    assert _only_line(capsys.readouterr().err).endswith("nothing is published there yet")


def test_verify_of_a_version_that_is_not_there_lists_those_that_are(
    store: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["verify", str(store), "11"]) == 1
    assert _only_line(capsys.readouterr().err).endswith("is not there; there are: 10, 20, 30")


@pytest.mark.parametrize("arguments", ["versions", "verify", "verify s ten", "verify s 10 --all", "versions s 10"])
def test_wrong_arguments_get_the_usage_and_exit_code_2(arguments: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(arguments.split())
    assert ended.value.code == 2
    assert capsys.readouterr().err.startswith("usage: paramsync ")


@pytest.mark.parametrize(
    ("count", "said"),
    [(0, "0 B"), (999, "999 B"), (1000, "1.0 kB"), (33_280, "33 kB"), (268_000_000, "268 MB"), (999_600, "1.0 MB")],
)
def test_sizes_are_short(count: int, said: str) -> None:
    assert size(count) == said


def _publish(writer: StoreWriter, step: int) -> None:
    kernel = np.random.default_rng(step).standard_normal((64, 128), np.float32)
    writer.add_graph("ab" * 20, b"a graph")
    tensors = {"dense/kernel": kernel, "dense/bias": kernel[0] + 1, "words": np.array([b"yes", b"no"], object)}
    writer.commit(_version(step, graph="ab" * 20), tensors)


def _version(step: int, *, graph: str = "") -> Version:
    now = time.time()
    return Version(number=step, step=step, prefix=f"ckpt-{step}", graph=graph, step_done_at=now, snapshot_at=now)


def _flip(store: Path, number: int, name: str) -> None:
    """Change the last byte of a tensor, in place, as a broken disk would."""
    entry = Bundle.open(store / f"ckpt-{number}").entries[name]
    path = sorted(store.glob(f"ckpt-{number}.data-*"))[entry.shard]
    with path.open("r+b") as file:
        file.seek(entry.offset + entry.size - 1)
        last = file.read(1)[0]
        file.seek(-1, os.SEEK_CUR)
        file.write(bytes([last ^ 1]))


def _held(store: Path, capsys: pytest.CaptureFixture[str]) -> dict[int, list[int]]:
    found = _json(["versions", str(store)], capsys)["versions"]
    return {row["number"]: row["held_by"] for row in found}


def _json(arguments: list[str], capsys: pytest.CaptureFixture[str], *, code: int = 0) -> dict[str, Any]:
    assert main([*arguments, "--json"]) == code
    found: dict[str, Any] = json.loads(_only_line(capsys.readouterr().out))
    return found


def _only_line(text: str) -> str:
    (line,) = text.splitlines()
    return line
