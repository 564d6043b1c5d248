"""A failure that comes with every publication does not fill the log."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from paramsync.errors import PublishError
from paramsync.publishing.publisher import Publisher
from tests.support.training import Counters


def test_a_store_that_cannot_be_written_is_logged_once_and_then_counted(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store = tmp_path / "store"
    with Publisher(store, Counters()) as publisher:
        shutil.rmtree(store)
        store.touch()
        for step in range(1, 31):
            with pytest.raises(PublishError):
                publisher.publish(step, wait=True)
        store.unlink()
        publisher.publish(31, wait=True)
    first, tenth, last = [record.getMessage() for record in caplog.records if record.name == "paramsync.trainer"]
    assert first.startswith(f"a publication failed, training goes on: store {store}: ")
    assert tenth == f"{first} (failure 10 of this kind in a row)"
    assert last == "version 31 is published, after 30 failures in a row"
