"""What a store lists is read once, and again where its files changed."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from inferencer.sources.records import Records
from paramsync import layout
from paramsync.store import Store
from tests.published import Publisher

_LISTENERS: list[list[str]] = []


def _hear(event: str, arguments: tuple[Any, ...]) -> None:
    if event == "open":
        for one in _LISTENERS:
            one.append(Path(str(arguments[0])).name)


sys.addaudithook(_hear)  # for good: there is no way to take it away


@contextmanager
def opened() -> Iterator[list[str]]:
    """The names of files that this process opens meanwhile."""
    names: list[str] = []
    _LISTENERS.append(names)
    try:
        yield names
    finally:
        _LISTENERS.remove(names)


def test_a_look_reads_what_is_new_and_nothing_else(publisher: Publisher) -> None:
    records = Records(Store(publisher.path))
    first, second = publisher.publish(1), publisher.publish(2)
    assert records.look().versions == [first, second]
    third = publisher.publish(3)
    with opened() as names:
        found = records.look()
    assert (found.latest, found.versions) == (third, [first, second, third])
    assert sorted(one for one in names if one.startswith("ckpt")) == ["ckpt-3.index", "ckpt-3.json"]
    with opened() as names:
        assert records.look() == found
    assert [one for one in names if one.startswith("ckpt")] == []


def test_a_version_whose_files_were_replaced_is_told_anew(publisher: Publisher) -> None:
    records = Records(Store(publisher.path))
    versions = [publisher.publish(1), publisher.publish(2)]
    before = records.look()
    record = layout.record_file(publisher.path, versions[0].prefix)
    changed = replace(versions[0], step=77)
    record.write_text(changed.to_json())
    after = records.look()
    assert after.versions == [changed, versions[1]]
    assert (after.files[1] != before.files[1], after.files[2]) == (True, before.files[2])
    assert records.files(changed) == after.files[1]


def test_a_version_that_was_taken_away_is_gone(publisher: Publisher) -> None:
    records = Records(Store(publisher.path))
    first, second = publisher.publish(1), publisher.publish(2)
    assert records.look().versions == [first, second]
    (publisher.path / f"{first.prefix}.index").unlink()
    assert records.look().versions == [second]
    (publisher.path / f"{second.prefix}.index").unlink()
    found = records.look()
    assert (found.latest, found.versions) == (None, [])
    assert "such files" in str(found.problem)
