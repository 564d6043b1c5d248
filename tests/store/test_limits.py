"""What our own reader would refuse is not published: the publisher says so, and the version before stays the latest."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from paramsync.errors import ParameterError, StoreError
from paramsync.store.commit import StoreWriter
from paramsync.store.store import CheckpointState, Store, state_text
from paramsync.tensorbundle import sstable
from paramsync.version import Version
from tests.support.written import tensors, version

SURROGATE = "\ud800"


def assert_refused(path: Path, refused: Version, found: dict[Any, Any], message: str) -> None:
    """Nothing of it is left, the version before is the latest, and the next one is published."""
    with StoreWriter(path) as writer:
        writer.commit(version(1), tensors(1))
        before = {file.name for file in path.iterdir()}
        with pytest.raises((ParameterError, StoreError), match=message):
            writer.commit(refused, found)
        left = {file.name for file in path.iterdir() if not file.name.startswith(".spare-")}
        assert left == before
        latest = Store(path).latest()
        assert latest is not None
        assert latest.number == 1
        writer.commit(version(3), tensors(3))
    store = Store(path)
    opened = store.open(store.find(3))
    opened.verify(opened.entries)


@pytest.mark.parametrize(
    ("name", "shown"),
    [(5, "found 5"), (None, "found None"), (b"a", "found b'a'"), (SURROGATE, r"found '\\ud800'"), ("", "found ''")],
)
def test_a_name_that_no_index_can_hold_is_refused_by_name(tmp_path: Path, name: Any, shown: str) -> None:
    assert_refused(tmp_path, version(2), {**tensors(2), name: np.zeros(3)}, rf"expected names in UTF-8 .*{shown}")


@pytest.mark.parametrize(
    "text", [np.array(["a", SURROGATE]), np.array(["a", SURROGATE], object)], ids=["text", "objects"]
)
def test_a_string_that_utf8_cannot_hold_is_refused_by_name(tmp_path: Path, text: Any) -> None:
    assert_refused(
        tmp_path, version(2), {"a/word": text}, r"'a/word': expected text that UTF-8 can hold, found '\\ud800'"
    )


@pytest.mark.parametrize("metrics", [{"loss" * 300_000: 1.0}, {f"{at:0100d}": 1.0 for at in range(10_000)}])
def test_a_record_larger_than_a_reader_takes_is_refused(tmp_path: Path, metrics: dict[str, float]) -> None:
    refused = replace(version(2), metrics=metrics)
    assert_refused(tmp_path, refused, tensors(2), r"ckpt-2\.json: expected at most 1048576 bytes, found 1\d{6}")


def test_a_list_of_versions_longer_than_a_reader_takes_is_refused(tmp_path: Path) -> None:
    names = ["a", *(f"{at:0190d}" for at in range(4743))]
    text = state_text(CheckpointState("a", tuple(names)))
    assert 0 <= (1 << 20) - len(text) < 320
    (tmp_path / "checkpoint").write_text(text)
    for name in names:  # of what is gone, nothing would be listed any more
        (tmp_path / f"{name}.index").touch()
    with StoreWriter(tmp_path, keep=9) as writer:
        with pytest.raises(StoreError, match="checkpoint: expected at most 1048576 bytes"):
            [writer.commit(version(number), tensors(1)) for number in range(1, 10)]
        latest = Store(tmp_path).latest()
        assert latest is not None
        assert not list(tmp_path.glob(f"ckpt-{latest.number + 1}*"))


def test_more_strings_than_a_reader_takes_are_refused(tmp_path: Path) -> None:
    words = np.broadcast_to(np.array([b"a"]), (1 << 12, (1 << 12) + 1))
    assert_refused(tmp_path, version(2), {"words": words}, "'words': expected at most 16777216 strings, found 16781312")


@pytest.mark.slow
@pytest.mark.parametrize("more", [0, 1])
def test_as_many_tensors_as_a_reader_takes_are_published_and_one_more_is_refused(tmp_path: Path, more: int) -> None:
    one = np.zeros(1, np.uint8)
    many = {f"{at:x}": one for at in range((1 << 18) + more)}
    if more:
        assert_refused(tmp_path, version(2), many, "expected at most 262144 tensors, found 262145")
        return
    with StoreWriter(tmp_path) as writer:
        writer.commit(version(2), many)
    assert len(Store(tmp_path).open(Store(tmp_path).find(2)).entries) == 1 << 18


@pytest.mark.promise
@pytest.mark.slow
@pytest.mark.parametrize("more", [0, 1])
def test_names_as_long_as_a_reader_takes_are_published_and_longer_ones_are_refused(tmp_path: Path, more: int) -> None:
    room = sstable.KEYS // 2
    one = np.zeros(1)
    found = {f"{at:05}" + "a" * ((1 << 11) - 5): one for at in range(room >> 11)}
    if more:
        message = f"expected names of at most {room} bytes together, found {room + 1}"
        assert_refused(tmp_path, version(2), {**found, "b": one}, message)
        return
    with StoreWriter(tmp_path) as writer:
        writer.commit(version(2), found)
    assert set(Store(tmp_path).open(Store(tmp_path).find(2)).entries) == set(found)


@pytest.mark.slow
def test_an_index_larger_than_a_reader_takes_is_refused(tmp_path: Path) -> None:
    one = np.zeros((1,) * 64, np.uint8)
    many = {f"{at:x}": one for at in range(1 << 18)}
    assert_refused(tmp_path, version(2), many, r"expected an index of at most 67108864 bytes, found \d{8}")
