"""`paramsync keys new` and `paramsync verify --trust`: from a pair of keys to whether a version is trusted."""

from __future__ import annotations

from pathlib import Path

import pytest

from paramsync.cli.__main__ import main
from paramsync.store.commit import StoreWriter
from paramsync.store.store import Store, sealed
from paramsync.v1 import graph_pb2
from tests.support.commands import json_of, only_line
from tests.support.keys import Keys, keys, rewritten
from tests.support.written import tensors, version

pytestmark = pytest.mark.usefixtures("eighty_columns")
GRAPH = "ab" * 16


@pytest.fixture
def pair(tmp_path: Path) -> Keys:
    return keys(tmp_path)


@pytest.fixture
def store(tmp_path: Path, pair: Keys) -> Path:
    """With a version that is signed, and one that is not."""
    for number, key in ((1, pair.private), (2, None)):
        with StoreWriter(tmp_path / "store", signing_key=key) as writer:
            writer.add_graph(GRAPH, sealed(graph_pb2.Graph(digest=GRAPH).SerializeToString()))
            writer.commit(version(number, graph=GRAPH), tensors(number))
    return tmp_path / "store"


def test_keys_new_says_which_file_is_whose(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["keys", "new", str(tmp_path / "digits")]) == 0
    head, private, public = capsys.readouterr().out.splitlines()
    assert head.startswith("key ")
    assert private == f"{tmp_path}/digits.key: for the publisher alone, --signing-key {tmp_path}/digits.key"
    assert public == f"{tmp_path}/digits.pub: for every inferencer, --trust {tmp_path}/digits.pub"


def test_keys_new_as_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made = json_of(["keys", "new", str(tmp_path / "digits")], capsys)
    assert (made["private"], made["public"]) == (f"{tmp_path}/digits.key", f"{tmp_path}/digits.pub")
    assert len(made["id"]) == 16


def test_keys_new_overwrites_nothing(tmp_path: Path, pair: Keys, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["keys", "new", str(tmp_path / "signs")]) == 2
    problem = "expected no such file, found one: keys are never overwritten"
    assert only_line(capsys.readouterr().err) == f"paramsync keys: {pair.private}: {problem}"


def test_keys_new_where_nothing_can_be_written_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["keys", "new", str(tmp_path / "none" / "digits")]) == 2
    assert only_line(capsys.readouterr().err).endswith("cannot be written: No such file or directory")


def test_verify_with_a_trusted_key_tells_which_versions_it_signed(
    store: Path, pair: Keys, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["verify", str(store), "1", "--trust", str(pair.public)]) == 0
    assert f", signed by key {pair.id}: ok" in capsys.readouterr().out.splitlines()[0]
    found = json_of(["verify", str(store), "--all", "--trust", str(pair.public)], capsys, code=1)
    good, bad = found["versions"]
    assert (good["number"], good["problems"], good["signed_by"], bad["signed_by"]) == (1, [], pair.id, None)
    expected = "expected a signature, by the publisher's signing_key= or --signing-key FILE"
    assert (bad["number"], bad["problems"]) == (2, [f"version 2 is not trusted: {expected}, found none"])
    assert json_of(["verify", str(store), "1"], capsys)["versions"][0]["signed_by"] is None  # nobody was asked to check


def test_versions_names_the_key_of_each_record(store: Path, pair: Keys, capsys: pytest.CaptureFixture[str]) -> None:
    assert [row["signed_by"] for row in json_of(["versions", str(store)], capsys)["versions"]] == [pair.id, None]
    assert main(["versions", str(store)]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == f"signed by key {pair.id}: 1"
    rewritten(store, Store(store).find(1), signed_by="\x1b[31mforged")
    assert main(["versions", str(store)]) == 0
    said = capsys.readouterr().out
    assert "forged" in said
    assert "\x1b" not in said


def test_verify_tells_of_a_record_that_was_changed_and_of_other_bytes(
    store: Path, pair: Keys, capsys: pytest.CaptureFixture[str]
) -> None:
    found = Store(store).find(1)
    rewritten(store, found, step=7)
    told = json_of(["verify", str(store), "1", "--trust", str(pair.public)], capsys, code=1)
    assert "it was changed, or forged" in told["versions"][0]["problems"][0]
    rewritten(store, found)
    for data in store.glob("ckpt-1.data-*"):
        content = bytearray(data.read_bytes())
        content[0] ^= 1
        data.write_bytes(content)
    told = json_of(["verify", str(store), "1", "--trust", str(pair.public)], capsys, code=1)
    assert told["versions"][0]["problems"] == [
        f"version 1 is not trusted: expected the tensors that key {pair.id} signed, found others"
    ]
    assert [tensor["name"] for tensor in told["versions"][0]["tensors"] if tensor["problem"]]


def test_verify_without_any_key_in_the_file_reads_nothing(
    store: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["verify", str(store), "--trust", str(tmp_path / "none.pub")]) == 2
    assert "cannot be read: No such file or directory" in only_line(capsys.readouterr().err)
