"""A store has one publisher at a time: a second one is told who the first is, and no lock outlives its holder."""

from __future__ import annotations

import os
import re
import socket
import subprocess
from pathlib import Path

import pytest

from paramsync.errors import SettingsError, StoreError, StoreLockedError
from paramsync.store.commit import StoreWriter
from paramsync.store.store import Store


def test_a_second_publisher_is_told_who_the_first_is(tmp_path: Path) -> None:
    with (
        StoreWriter(tmp_path),
        pytest.raises(StoreLockedError, match=rf"process {os.getpid()} on {re.escape(socket.gethostname())}"),
    ):
        StoreWriter(tmp_path)
    StoreWriter(tmp_path).close()


def test_a_lock_that_says_nothing_holds_all_the_same(tmp_path: Path) -> None:
    with StoreWriter(tmp_path):
        for content in ("", "nonsense", "[1]", "{}", "[" * 5000):
            (tmp_path / "publisher.lock").write_text(content)
            with pytest.raises(StoreLockedError, match="did not say who"):
                StoreWriter(tmp_path)


def test_a_writer_that_could_not_open_holds_no_lock(tmp_path: Path) -> None:
    (tmp_path / "checkpoint").write_text('model_checkpoint_path: "model-999999999999999999"')
    with pytest.raises(StoreError, match="no number"):
        StoreWriter(tmp_path)
    (tmp_path / "checkpoint").unlink()
    StoreWriter(tmp_path).close()


def test_a_child_that_outlives_its_publisher_does_not_keep_the_lock(tmp_path: Path) -> None:
    reading, writing = os.pipe()
    with StoreWriter(tmp_path):
        child = subprocess.Popen(["cat"], stdin=reading, close_fds=False)
    StoreWriter(tmp_path).close()
    os.close(writing)
    os.close(reading)
    child.wait()


@pytest.mark.parametrize("keep", [0, -1])
def test_a_store_keeps_at_least_one_version(tmp_path: Path, keep: int) -> None:
    with pytest.raises(SettingsError, match=f"expected at least 1 version, found {keep}"):
        StoreWriter(tmp_path, keep=keep)


def test_a_path_that_is_a_file_is_no_store(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.touch()
    for act in (StoreWriter, lambda path: Store(path).latest(), lambda path: Store(path).versions()):
        for where in (path, path / "below"):
            with pytest.raises(StoreError, match=r"[Nn]ot a directory|expected a directory, found a file"):
                act(where)
