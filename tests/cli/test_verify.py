"""`paramsync verify`: every tensor of a version is looked at, whatever its size, and what is wrong is named."""

from __future__ import annotations

import os
import pty
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf
from rich.cells import cell_len

from paramsync.checkpoint.reader import Bundle
from paramsync.cli.__main__ import main
from paramsync.store.commit import StoreWriter
from paramsync.store.store import sealed
from paramsync.tensorbundle import index
from paramsync.tensorbundle.index import Entry, Index, data_file, index_file
from paramsync.v1 import graph_pb2
from tests.support import checkpoints
from tests.support.commands import NAMES, cut, json_of, only_line, three_versions
from tests.support.written import version

FLOAT32 = 1  # as TensorFlow counts dtypes


pytestmark = pytest.mark.usefixtures("eighty_columns")


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return three_versions(tmp_path / "store")


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
    whole = json_of(["verify", str(tmp_path)], capsys)
    monkeypatch.setattr("paramsync.checkpoint.reader.PORTION", 5)  # bytes
    assert json_of(["verify", str(tmp_path)], capsys) == whole


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
        try:
            while not re.search(r"/1\.1 TB.* [GM]B/s", shown):
                shown += os.read(screen, 1 << 16).decode()
            status = Path(f"/proc/{verifying.pid}/status").read_text()
            verifying.send_signal(signal.SIGINT)
            with suppress(OSError):  # the end of what it shows, for which it would wait
                while os.read(screen, 1 << 16):
                    pass
            assert verifying.wait(60) == 130
        finally:
            verifying.kill()
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
    found = json_of(["verify", str(tmp_path)], capsys, code=1)
    assert time.process_time() - begin < 5
    assert len([one for one in found["versions"][0]["tensors"] if one["problem"]]) == 5000


def test_verify_takes_a_version_or_all(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert [one["number"] for one in json_of(["verify", str(store), "10"], capsys)["versions"]] == [10]
    assert [one["number"] for one in json_of(["verify", str(store), "--all"], capsys)["versions"]] == [10, 20, 30]


def test_verify_names_the_tensor_whose_bytes_are_wrong(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _flip(store, 30, "dense/kernel")
    assert main(["verify", str(store)]) == 1
    text = capsys.readouterr().out
    assert text.startswith("version 30, step 30: 1 of 3 tensors, 33 kB wrong: not ok\n")
    assert [line.split()[-1] for line in text.splitlines()[2:5]] == ["ok", "wrong", "ok"]
    assert "expected checksum 0x" in text.splitlines()[5]
    assert main(["verify", str(store), "20"]) == 0


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_verify_refuses_the_values_that_serving_refuses(
    tmp_path: Path, value: float, capsys: pytest.CaptureFixture[str]
) -> None:
    with StoreWriter(tmp_path) as writer:
        for number in (1, 2):
            kernel = np.full([3, 500], value if number == 2 else 1.0, np.float32)
            writer.commit(version(number), {"kernel": kernel, "steps": np.arange(5)})
    assert main(["verify", str(tmp_path), "1"]) == 0
    capsys.readouterr()
    assert main(["verify", str(tmp_path)]) == 1
    head, *_, last = capsys.readouterr().out.splitlines()
    assert head == "version 2, step 2: 1 of 2 tensors, 6.0 kB wrong: not ok"
    assert last.endswith("expected finite values in 'kernel', found NaN or infinity")


def test_verify_takes_what_no_graph_needs_as_it_is(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    graph = graph_pb2.Graph(digest="ab" * 20, parameters=[graph_pb2.Parameter(name="kernel")])
    with StoreWriter(tmp_path) as writer:
        writer.add_graph("ab" * 20, sealed(graph.SerializeToString()))
        writer.commit(version(1, graph="ab" * 20), {"kernel": np.ones(3), "slot/of/an/optimizer": np.full(3, np.inf)})
    assert main(["verify", str(tmp_path)]) == 0


def test_verify_of_all_finds_the_wrong_one(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _flip(store, 20, "dense/bias")
    found = json_of(["verify", str(store), "--all"], capsys, code=1)
    assert not found["ok"]
    assert [(one["number"], one["ok"]) for one in found["versions"]] == [(10, True), (20, False), (30, True)]
    (wrong,) = (tensor for tensor in found["versions"][1]["tensors"] if tensor["problem"])
    assert (wrong["name"], wrong["dtype"], wrong["shape"], wrong["size"]) == ("dense/bias", "float32", [128], 512)


@pytest.mark.parametrize(
    ("breaks", "said"),
    [
        (lambda store: cut(store / "ckpt-30.index"), "ckpt-30.index: expected "),
        (lambda store: cut(sorted(store.glob("ckpt-30.data-*"))[-1]), "a file of "),
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
    found = json_of(["verify", str(store), "--all"], capsys, code=1)
    (broken,) = (one for one in found["versions"] if not one["ok"])
    assert broken["number"] == 20
    assert "expected the record of a version" in broken["problems"][0]


def test_verify_of_an_empty_store_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["verify", str(tmp_path)]) == 1
    assert only_line(capsys.readouterr().err).endswith("nothing is published there yet")


def test_verify_of_a_version_that_is_not_there_lists_those_that_are(
    store: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["verify", str(store), "11"]) == 1
    assert only_line(capsys.readouterr().err).endswith("is not there; there are: 10, 20, 30")


def _flip(store: Path, number: int, name: str) -> None:
    """Change the last byte of a tensor, in place, as a broken disk would."""
    entry = Bundle.open(store / f"ckpt-{number}").entries[name]
    path = sorted(store.glob(f"ckpt-{number}.data-*"))[entry.shard]
    with path.open("r+b") as file:
        file.seek(entry.offset + entry.size - 1)
        last = file.read(1)[0]
        file.seek(-1, os.SEEK_CUR)
        file.write(bytes([last ^ 1]))
