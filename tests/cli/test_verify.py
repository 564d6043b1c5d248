"""`paramsync verify` and `paramsync keys`: every tensor is looked at, faults are named, signatures are checked."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from paramsync.checkpoint.reader import Bundle
from paramsync.cli.__main__ import main
from paramsync.store.commit import StoreWriter
from paramsync.store.store import Store, add_checksum
from paramsync.tensorbundle import index
from paramsync.tensorbundle.index import Entry, Index, data_file, index_file
from paramsync.v1 import graph_pb2
from tests.support.commands import NAMES, cut, json_of, only_line, three_versions
from tests.support.keys import Keys, keys, rewritten
from tests.support.written import tensors, version

FLOAT32 = 1  # as TensorFlow counts dtypes
GRAPH = "ab" * 16


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return three_versions(tmp_path / "store")


def test_verify_shows_every_tensor_of_the_version_asked_for(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["verify", str(store)]) == 0
    head, columns, *rows = capsys.readouterr().out.splitlines()
    assert head == "version 30, step 30: 3 tensors, 33 kB: ok"
    assert columns.split() == ["tensor", "dtype", "shape", "shard", "size"]
    assert [(row.split()[0], row.split()[-1]) for row in rows] == [(name, "ok") for name in NAMES]
    assert all(fact in rows[1] for fact in ("float32", "[64, 128]", "33 kB"))
    for words, numbers in (["10"], [10]), (["--all"], [10, 20, 30]):
        told = json_of(["verify", str(store), *words], capsys)
        assert [verdict["number"] for verdict in told["versions"]] == numbers


def test_verify_looks_at_bytes_that_several_names_share_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Twenty gigabytes of names for a few bytes would take minutes."""
    entry = Entry(FLOAT32, (1 << 22,), 0, 0, 1 << 24, 1)
    index_file(tmp_path / "ckpt-1").write_bytes(index.encode(Index(1, {str(at): entry for at in range(5000)})))
    (tmp_path / "checkpoint").write_text('model_checkpoint_path: "ckpt-1"')
    data_file(tmp_path / "ckpt-1", 0, 1).write_bytes(bytes(1 << 24))
    told = json_of(["verify", str(tmp_path)], capsys, code=1)
    assert len([tensor for tensor in told["versions"][0]["tensors"] if tensor["problem"]]) == 5000


def test_verify_names_the_tensor_whose_bytes_are_wrong(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    entry = Bundle.open(store / "ckpt-20").entries["dense/kernel"]
    with sorted(store.glob("ckpt-20.data-*"))[entry.shard].open("r+b") as file:  # in place, as a broken disk would
        file.seek(entry.offset + entry.size - 1)
        last = file.read(1)[0]
        file.seek(-1, os.SEEK_CUR)
        file.write(bytes([last ^ 1]))
    assert main(["verify", str(store), "20"]) == 1
    text = capsys.readouterr().out
    assert text.startswith("version 20, step 20: 1 of 3 tensors, 33 kB wrong: not ok\n")
    assert [line.split()[-1] for line in text.splitlines()[2:5]] == ["ok", "wrong", "ok"]
    assert "expected checksum 0x" in text.splitlines()[5]
    told = json_of(["verify", str(store), "--all"], capsys, code=1)
    assert [(verdict["number"], verdict["ok"]) for verdict in told["versions"]] == [(10, True), (20, False), (30, True)]
    (wrong,) = (tensor for tensor in told["versions"][1]["tensors"] if tensor["problem"])
    assert (wrong["name"], wrong["dtype"], wrong["shape"]) == ("dense/kernel", "float32", [64, 128])


@pytest.mark.parametrize("value", [np.nan, -np.inf])
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


def test_verify_lets_tensors_be_infinite_that_no_graph_needs(tmp_path: Path) -> None:
    graph = graph_pb2.Graph(digest=GRAPH, parameters=[graph_pb2.Parameter(name="kernel")])
    with StoreWriter(tmp_path) as writer:
        writer.add_graph(GRAPH, add_checksum(graph.SerializeToString()))
        writer.commit(version(1, graph=GRAPH), {"kernel": np.ones(3), "slot/of/an/optimizer": np.full(3, np.inf)})
    assert main(["verify", str(tmp_path)]) == 0


def _mix_up(store: Path) -> None:
    for old in store.glob("ckpt-20.[id]*"):
        old.replace(store / old.name.replace("20", "30", 1))


@pytest.mark.parametrize(
    ("harm", "problem"),
    [
        (lambda store: cut(store / "ckpt-30.index"), "ckpt-30.index: expected "),
        (lambda store: cut(sorted(store.glob("ckpt-30.data-*"))[-1]), "a file of "),
        (lambda store: sorted(store.glob("ckpt-30.data-*"))[-1].unlink(), "expected a data file, found No such file"),
        (lambda store: next(store.glob("graph-*.pb")).unlink(), "expected the version's graph, found no such file"),
        (_mix_up, "ckpt-30.json: expected the record of the parameters in ckpt-30"),
        (lambda store: (store / "ckpt-20.json").write_text("{"), "expected the record of a version"),
    ],
    ids=["a cut index", "cut data", "missing data", "a missing graph", "another index", "a broken record"],
)
def test_verify_says_what_is_wrong_with_the_files(
    harm: Callable[[Path], object], problem: str, store: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    harm(store)
    assert main(["verify", str(store), "--all"]) == 1
    assert problem in capsys.readouterr().out


@pytest.fixture
def pair(tmp_path: Path) -> Keys:
    return keys(tmp_path)


@pytest.fixture
def signed(tmp_path: Path, pair: Keys) -> Path:
    """A store with a version that is signed, and one that is not."""
    for number, key in ((1, pair.private), (2, None)):
        with StoreWriter(tmp_path / "store", signing_key=key) as writer:
            writer.add_graph(GRAPH, add_checksum(graph_pb2.Graph(digest=GRAPH).SerializeToString()))
            writer.commit(version(number, graph=GRAPH), tensors(number))
    return tmp_path / "store"


def test_keys_new_says_which_file_is_whose_and_overwrites_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words, private, public = ["keys", "new", str(tmp_path / "k")], f"{tmp_path}/k.key", f"{tmp_path}/k.pub"
    assert main(words) == 0
    head, *lines = capsys.readouterr().out.splitlines()
    assert head.startswith("key ")
    assert lines == [
        f"{private}: for the publisher alone, --signing-key {private}",
        f"{public}: for every inferencer, --trust {public}",
    ]
    assert main(words) == 2
    problem = "expected no such file, found one: keys are never overwritten"
    assert only_line(capsys.readouterr().err) == f"paramsync keys: {private}: {problem}"
    assert main(["keys", "new", str(tmp_path / "none" / "k")]) == 2
    assert only_line(capsys.readouterr().err).endswith("cannot be written: No such file or directory")


def test_verify_with_a_trusted_key_tells_which_versions_it_signed(
    signed: Path, pair: Keys, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["verify", str(signed), "1", "--trust", str(pair.public)]) == 0
    assert f", signed by key {pair.id}: ok" in capsys.readouterr().out.splitlines()[0]
    told = json_of(["verify", str(signed), "--all", "--trust", str(pair.public)], capsys, code=1)
    good, bad = told["versions"]
    assert (good["number"], good["problems"], good["signed_by"], bad["signed_by"]) == (1, [], pair.id, None)
    expected = "expected a signature, by the publisher's signing_key= or --signing-key FILE"
    assert (bad["number"], bad["problems"]) == (2, [f"version 2 is not trusted: {expected}, found none"])
    assert json_of(["verify", str(signed), "1"], capsys)["versions"][0]["signed_by"] is None  # no key was given
    assert main(["verify", str(signed), "--trust", str(signed / "none.pub")]) == 2
    assert "cannot be read: No such file or directory" in only_line(capsys.readouterr().err)


def test_versions_names_the_key_of_each_record(signed: Path, pair: Keys, capsys: pytest.CaptureFixture[str]) -> None:
    assert [row["signed_by"] for row in json_of(["versions", str(signed)], capsys)["versions"]] == [pair.id, None]
    assert main(["versions", str(signed)]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == f"signed by key {pair.id}: 1"
    rewritten(signed, Store(signed).find(1), signed_by="\x1b[31mforged")
    assert main(["versions", str(signed)]) == 0
    text = capsys.readouterr().out
    assert "forged" in text
    assert "\x1b" not in text


def test_verify_tells_of_a_record_that_was_changed_and_of_other_bytes(
    signed: Path, pair: Keys, capsys: pytest.CaptureFixture[str]
) -> None:
    def problems() -> list[str]:
        (verdict,) = json_of(["verify", str(signed), "1", "--trust", str(pair.public)], capsys, code=1)["versions"]
        return [*verdict["problems"], *(tensor["problem"] for tensor in verdict["tensors"] if tensor["problem"])]

    record = Store(signed).find(1)
    rewritten(signed, record, step=7)
    assert "it was changed, or forged" in problems()[0]
    rewritten(signed, record)
    for data in signed.glob("ckpt-1.data-*"):
        content = bytearray(data.read_bytes())
        content[0] ^= 1
        data.write_bytes(content)
    signature, *checksums = problems()
    assert signature == f"version 1 is not trusted: expected the tensors that key {pair.id} signed, found others"
    assert checksums
