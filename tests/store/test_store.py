"""A store is read by its names alone: listed versions with files count, malformed ones are refused."""

from __future__ import annotations

import json
import os
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from paramsync.errors import CorruptCheckpointError, StoreError, UnknownVersionError
from paramsync.inference.resident import Resident
from paramsync.sources.opening import open_source
from paramsync.sources.source import Source
from paramsync.store.store import Store, record_file
from paramsync.version import Version
from tests.support import rewritten
from tests.support.opened import LISTENERS, opened, opening
from tests.support.published import Publisher
from tests.support.whole import assert_serves
from tests.support.written import changing, publish_changing


def test_nothing_is_published_in_an_empty_or_missing_store(tmp_path: Path) -> None:
    (tmp_path / "checkpoint").touch()
    for path in (tmp_path, tmp_path / "empty", tmp_path / "missing"):
        assert Store(path).latest() is None
        assert Store(path).versions() == []
        with pytest.raises(UnknownVersionError, match="there are: none"):
            Store(path).find(3)


def test_latest_ignores_a_version_still_being_written(tmp_path: Path) -> None:
    publish_changing(tmp_path, 1)
    rewritten.write(tmp_path / "ckpt-2", changing(2))
    assert_serves(tmp_path, 1)
    assert [one.number for one in Store(tmp_path).versions()] == [1]


def test_a_version_whose_files_are_gone_is_not_listed(tmp_path: Path) -> None:
    publish_changing(tmp_path, 1, 2, 3)
    (tmp_path / "ckpt-2.index").unlink()
    assert [one.number for one in Store(tmp_path).versions()] == [1, 3]
    with pytest.raises(UnknownVersionError, match="there are: 1, 3"):
        Store(tmp_path).find(2)


def test_a_latest_version_whose_files_are_gone_is_a_fault(tmp_path: Path) -> None:
    publish_changing(tmp_path, 1, 2)
    (tmp_path / "ckpt-2.index").unlink()
    with pytest.raises(CorruptCheckpointError, match=r"checkpoint: expected the files of ckpt-2, found no such files"):
        Store(tmp_path).latest()
    assert [one.number for one in Store(tmp_path).versions()] == [1]


@pytest.mark.parametrize(
    "text",
    [
        "nonsense",
        "model_checkpoint_path: 7",
        'model_checkpoint_path: "../elsewhere/ckpt-1"',
        'model_checkpoint_path: ".."',
        'model_checkpoint_path: "/"',
        'model_checkpoint_path: "/.."',
        'model_checkpoint_path: "sub/ckpt-1"',
        'model_checkpoint_path: "ckpt\\0-1"',
        'model_checkpoint_path: "."',
        'model_checkpoint_path: "ckpt\\n-1"',
        f'model_checkpoint_path: "{"a" * 300}-1"',
        "x {" * 50_000,
        "x: [" * 50_000,
        'model_checkpoint_path: "ckpt-1" all_model_checkpoint_paths: "../../ckpt-1"',
    ],
)
def test_a_state_file_that_is_malformed_or_leads_elsewhere_is_refused(tmp_path: Path, text: str) -> None:
    publish_changing(tmp_path, 1)
    (tmp_path / "checkpoint").write_text(text)
    for act in (Store(tmp_path).latest, Store(tmp_path).versions):
        with pytest.raises(CorruptCheckpointError, match=r"checkpoint: expected .* found .{,300}$"):
            act()


def test_a_state_file_that_is_no_regular_file_is_refused(tmp_path: Path) -> None:
    publish_changing(tmp_path, 1)
    file = tmp_path / "checkpoint"
    file.rename(tmp_path / "other")
    for make in (
        file.mkdir,
        lambda: os.mkfifo(file),
        lambda: file.symlink_to("other"),
        lambda: file.write_bytes(b"\xff"),
    ):
        make()
        with pytest.raises(CorruptCheckpointError):
            Store(tmp_path).latest()
        file.rmdir() if file.is_dir() else file.unlink()


@pytest.mark.parametrize(
    "change",
    [
        {"prefix": "../ckpt-2"},
        {"prefix": "ckpt-1"},
        {"number": 3},
        {"step": -1},
        {"step": 1 << 63},
        {"bytes": -1},
        {"graph": "../../etc/passwd"},
        {"graph": "A" * 10},
        {"graph": "A" * 10_000},
        {"metrics": {"a": "b" * 10_000}},
        {"metrics": {"a": 10**400}},
        {"metrics": {"\ud800": 1}},
        {"number": None},
    ],
)
def test_a_record_that_is_not_believable_is_refused(tmp_path: Path, change: dict[str, object]) -> None:
    publish_changing(tmp_path, 1, 2)
    record = tmp_path / "ckpt-2.json"
    record.write_text(json.dumps(json.loads(record.read_text()) | change))
    with pytest.raises(CorruptCheckpointError, match=r"ckpt-2\.json: expected .* found .{,300}$"):
        Store(tmp_path).latest()
    assert [one.number for one in Store(tmp_path).versions()] == [1]
    assert publish_changing(tmp_path, 3, keep=1)[0] == Store(tmp_path).latest()


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"\xff", b"[" * 100_000, b" " * (2 << 20)])
def test_a_record_that_is_no_record_is_refused(tmp_path: Path, content: bytes) -> None:
    publish_changing(tmp_path, 2)
    (tmp_path / "ckpt-2.json").write_bytes(content)
    with pytest.raises(CorruptCheckpointError, match=r"ckpt-2\.json: expected .* found"):
        Store(tmp_path).latest()


@pytest.mark.parametrize("prefix", ["", ".", "..", "../x", "/etc/passwd", "a/b", "a\0b"])
def test_no_prefix_leads_out_of_the_store(tmp_path: Path, prefix: str) -> None:
    hostile = Version(number=1, step=1, prefix=prefix, step_done_at=0, snapshot_at=0)
    for act in (Store(tmp_path).prefix, Store(tmp_path).open):
        with pytest.raises(StoreError, match="expected a prefix in this directory"):
            act(hostile)


@pytest.mark.parametrize("digest", ["", "..", "../ab", "AB", "ab.pb", "ab\n", "a" * 129])
def test_a_digest_is_hexadecimal(tmp_path: Path, digest: str) -> None:
    with pytest.raises(StoreError, match="expected the hexadecimal digest of a graph"):
        Store(tmp_path).graph_file(digest)


VERSION = Version(
    number=420,
    step=419,
    prefix="ckpt-420",
    graph="ab12",
    step_done_at=1.5,
    snapshot_at=1.6,
    committed_at=1.7,
    bytes=10,
    bytes_written=5,
    checksum="cd34",
    finite=True,
    metrics={"loss": 0.25},
)


def test_a_record_of_a_newer_publisher_is_read_without_what_is_new() -> None:
    assert Version.from_json(json.dumps({**json.loads(VERSION.to_json()), "colour": "blue"})) == VERSION


def test_a_record_of_an_older_publisher_is_read_without_what_it_did_not_know() -> None:
    values = json.loads(VERSION.to_json())
    del values["bytes_written"], values["checksum"], values["finite"]
    read = Version.from_json(json.dumps(values))
    assert (read.bytes_written, read.checksum, read.finite) == (0, "", False)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"number": "420"}, "number: expected a whole number of 64 bits"),
        ({"step": 2**63}, "step: expected a whole number of 64 bits"),
        ({"step": True}, "step: expected a whole number"),
        ({"committed_at": 10**400}, "committed_at: int too large to convert"),
        ({"committed_at": float("nan")}, "committed_at: expected seconds since the epoch"),
        ({"snapshot_at": "now"}, "snapshot_at: expected a number, found str"),
        ({"metrics": [1]}, "metrics: "),
        ({"metrics": {"loss": "low"}}, "metrics: expected a number, found str"),
        ({"prefix": None}, "prefix: expected text, found NoneType"),
        ({"finite": 1}, "finite: expected true or false, found int"),
    ],
)
def test_a_value_that_no_publisher_wrote_is_refused_by_name(change: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Version.from_json(json.dumps({**json.loads(VERSION.to_json()), **change}))


def versions(source: Source[Resident]) -> list[Version]:
    return [candidate.version for candidate in source.look().published or []]


def test_a_look_reads_what_is_new_and_nothing_else(publisher: Publisher) -> None:
    source = open_source(publisher.path)
    first, second = publisher.publish(1), publisher.publish(2)
    assert versions(source) == [first, second]
    third = publisher.publish(3)
    with opened() as names:
        look = source.look()
    assert (look.latest, look.numbers) == (third, [1, 2, 3])
    assert sorted(name for name in names if name.startswith("ckpt")) == ["ckpt-3.index", "ckpt-3.json"]
    with opened() as names:
        assert source.look() == look
    assert [name for name in names if name.startswith("ckpt")] == []


def test_a_record_that_is_replaced_once_it_was_read_is_read_at_the_next_look(publisher: Publisher) -> None:
    source = open_source(publisher.path)
    version, other = publisher.publish(1), publisher.publish(2)
    record = record_file(publisher.path, version.prefix)
    changed = replace(version, step=77)

    def replace_record(name: str) -> None:
        if name.endswith("ckpt-1.index"):  # which is opened after the record
            LISTENERS.clear()
            aside = record.with_suffix(".other")
            aside.write_text(changed.to_json())
            aside.replace(record)

    with suppress(ValueError), opening(replace_record):
        before = source.look().published or []
    after = source.look().published or []
    assert [candidate.version for candidate in before] == [version, other]
    assert [candidate.version for candidate in after] == [changed, other]
    assert source.identity(changed) == after[0].files


def test_a_record_that_is_written_in_its_place_is_read_whatever_its_time_says(publisher: Publisher) -> None:
    source = open_source(publisher.path)
    version = publisher.publish(1)
    before = source.look().published or []
    record = record_file(publisher.path, version.prefix)
    status, text = record.stat(), record.read_text()
    changed = text.replace('"step": 1,', '"step": 2,')
    with record.open("r+") as file:
        file.write(changed)
    os.utime(record, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert (changed != text, len(changed)) == (True, len(text))
    after = source.look().published or []
    assert [candidate.version.step for candidate in after] == [2]
    assert before[0].files != after[0].files
