"""What a store lists is read once, and again where its files changed."""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import replace

from paramsync.sources.identity import VersionRecords
from paramsync.store.store import Store, record_file
from tests.support.opened_files import LISTENERS, opened, opening
from tests.support.published import Publisher


def test_a_look_reads_what_is_new_and_nothing_else(publisher: Publisher) -> None:
    records = VersionRecords(Store(publisher.path))
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
    records = VersionRecords(Store(publisher.path))
    versions = [publisher.publish(1), publisher.publish(2)]
    before = records.look()
    record = record_file(publisher.path, versions[0].prefix)
    changed = replace(versions[0], step=77)
    record.write_text(changed.to_json())
    after = records.look()
    assert after.versions == [changed, versions[1]]
    assert (after.files[1] != before.files[1], after.files[2]) == (True, before.files[2])
    assert records.files(changed) == after.files[1]


def test_a_version_that_was_taken_away_is_gone(publisher: Publisher) -> None:
    records = VersionRecords(Store(publisher.path))
    first, second = publisher.publish(1), publisher.publish(2)
    assert records.look().versions == [first, second]
    (publisher.path / f"{first.prefix}.index").unlink()
    assert records.look().versions == [second]
    (publisher.path / f"{second.prefix}.index").unlink()
    found = records.look()
    assert (found.latest, found.versions) == (None, [])
    assert "such files" in str(found.problem)


def test_a_record_that_is_replaced_once_it_was_read_is_told_at_the_next_look(publisher: Publisher) -> None:
    records = VersionRecords(Store(publisher.path))
    version = publisher.publish(1)
    record = record_file(publisher.path, version.prefix)
    changed = replace(version, step=77)

    def take_its_place(name: str) -> None:
        if name.endswith(".index"):  # which is opened after the record
            LISTENERS.clear()
            other = record.with_suffix(".other")
            other.write_text(changed.to_json())
            other.replace(record)

    with suppress(ValueError), opening(take_its_place):
        assert records.look().versions == [version]
    assert records.look().versions == [changed]


def test_a_record_that_is_written_again_in_its_place_is_told_whatever_its_time_says(publisher: Publisher) -> None:
    records = VersionRecords(Store(publisher.path))
    version = publisher.publish(1)
    assert records.look().versions == [version]
    record = record_file(publisher.path, version.prefix)
    before, text = record.stat(), record.read_text()
    changed = text.replace('"step": 1,', '"step": 2,')
    with record.open("r+") as file:
        file.write(changed)
    os.utime(record, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert (changed != text, len(changed)) == (True, len(text))
    assert [one.step for one in records.look().versions] == [2]
