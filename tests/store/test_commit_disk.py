"""The disk under a publisher: full, without links, with files that cannot be removed."""

from __future__ import annotations

from pathlib import Path

import pytest

from paramsync.store.commit import StoreWriter
from tests.support.disks import run_on_small_disk
from tests.support.whole import assert_whole
from tests.support.written import tensors, version

FULL = """
import os, sys
from pathlib import Path
import numpy as np
from paramsync.errors import StoreError
from paramsync.store.commit import StoreWriter
from tests.support.whole import assert_whole
from tests.support.written import names, tensors, version
path = Path(sys.argv[1])
large = {"large": np.ones(9 << 20, np.uint8)}
with StoreWriter(path, keep=2) as writer:
    for number in (1, 2, 3):
        writer.commit(version(number), tensors(number))
    for number in (4, 5):
        try:
            writer.commit(version(number), {**tensors(number), **large})
        except StoreError as error:
            assert str(error).endswith(f"version {number} was not published: No space left on device"), error
        else:
            raise AssertionError("there was room")
        assert assert_whole(path) == 3
        assert not any(f"ckpt-{number}" in name for name in names(path)), names(path)
    free = os.statvfs(path)
    (path / "other").write_bytes(bytes(free.f_bavail * free.f_frsize - 200_000))
    writer.commit(version(6), tensors(6))
    assert assert_whole(path) == 6
    rest = (path / "rest").open("wb", buffering=0)
    try:
        while rest.write(bytes(4096)):
            pass
    except OSError:
        pass
    try:
        writer.commit(version(7), tensors(7))
    except StoreError as error:
        assert "version 7 was not published: No space left" in str(error), error
    else:
        raise AssertionError("there was room")
    assert assert_whole(path) == 6
    rest.truncate(0)
    writer.commit(version(8), tensors(8))
    assert assert_whole(path) == 8
"""


@pytest.mark.promise
@pytest.mark.slow
def test_a_full_disk_is_an_error_that_leaves_the_version_before_until_there_is_room(tmp_path: Path) -> None:
    run_on_small_disk(FULL, tmp_path)


def test_a_file_system_without_links_gets_everything_written_again(tmp_path: Path) -> None:
    """What a link cannot do is done by a copy: here the name for the link is taken by what cannot be replaced."""
    with StoreWriter(tmp_path) as writer:
        writer.commit(version(1), tensors(1))
        for file in tmp_path.glob("ckpt-1.data-*"):
            file.rename(tmp_path / "moved")  # a link to it would not be found
        committed = writer.commit(version(2), tensors(2), unchanged=["frozen"])
        assert committed.bytes_written == committed.bytes
    (tmp_path / "ckpt-1.index").unlink()
    assert assert_whole(tmp_path) == 2
