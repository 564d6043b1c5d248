"""What a store lists is read once, and again when its files changed."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from paramsync.inference.resident import Resident
from paramsync.sources.opening import open_source
from paramsync.sources.source import Source
from paramsync.store.store import record_file
from paramsync.version import Version
from tests.support.published import Publisher

LISTENERS: list[Callable[[str], object]] = []


def _hear(event: str, arguments: tuple[Any, ...]) -> None:
    if event == "open":
        for one in LISTENERS:
            one(Path(str(arguments[0])).name)


sys.addaudithook(_hear)  # audit hooks cannot be removed


@contextmanager
def opening(tell: Callable[[str], object]) -> Iterator[None]:
    """Within this context, call `tell` with the name of each file that this process is about to open."""
    LISTENERS.append(tell)
    try:
        yield
    finally:
        LISTENERS.remove(tell)


@contextmanager
def opened() -> Iterator[list[str]]:
    """A list of the names of files that this process opens within this context."""
    names: list[str] = []
    with opening(names.append):
        yield names


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
