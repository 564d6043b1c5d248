"""Files in memory that are as their publisher left them are not read again; all others are."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from paramsync.checkpoint import data_file
from paramsync.checkpoint.file_pool import FilePool
from paramsync.errors import CorruptCheckpointError, ParameterError
from paramsync.following.replica import Replica
from paramsync.graphs.capturing import capture
from paramsync.host.memory import is_memory
from paramsync.sources.source import Progress, Verification
from paramsync.store.commit import StoreWriter
from paramsync.store.store import Store
from paramsync.version import Version
from tests.support.published import Publisher

X = {"x": np.ones([3, 2], np.float32)}


@pytest.fixture
def publisher(memory: Path) -> Iterator[Publisher]:
    publisher = Publisher(memory / "store", keep=1)
    yield publisher
    publisher.close()


def restored(path: Path, version: Version, verification: Verification = "auto") -> set[str]:
    """The phases of bringing a version in that then answers."""
    told: list[Progress] = []
    replica = Replica("m", path, verification=verification)
    replica.swap(replica.restore(version, told.append))
    assert replica.predict(X)[0]["seen"].numpy()[0] == version.number
    return {one.phase for one in told if one.bytes_total}


def data(publisher: Publisher, version: Version) -> Path:
    return publisher.path / f"{version.prefix}.data-00000-of-00001"


def test_what_nobody_wrote_to_is_not_read_again(publisher: Publisher) -> None:
    version = publisher.publish(1, finite=True)
    assert version.seal
    assert Store(publisher.path).latest() == version
    assert restored(publisher.path, version) == {"mapping"}


def test_told_to_it_reads_all_in_any_case(publisher: Publisher) -> None:
    assert restored(publisher.path, publisher.publish(1, finite=True), "checksums") == {"verifying"}


def test_files_on_a_disk_have_no_seal(tmp_path: Path) -> None:
    if is_memory(tmp_path.stat()):
        pytest.skip("temporary files are in memory here")
    publisher = Publisher(tmp_path / "store")
    version = publisher.publish(1, finite=True)
    assert not version.seal
    assert restored(publisher.path, version) == {"verifying"}
    publisher.close()


def overwritten(path: Path) -> None:
    with path.open("r+b") as file:
        file.seek(-1, os.SEEK_END)
        last = file.read(1)
        file.seek(-1, os.SEEK_END)
        file.write(bytes([last[0] ^ 0xFF]))


def cut_and_filled(path: Path) -> None:
    size = path.stat().st_size
    os.truncate(path, size - 4096)
    os.truncate(path, size)


def replaced(path: Path) -> None:
    aside = path.with_name("aside")
    shutil.copy2(path, aside)  # with its times
    overwritten(aside)
    os.utime(aside, ns=(path.stat().st_atime_ns, path.stat().st_mtime_ns))
    aside.replace(path)


@pytest.mark.parametrize("harm", [overwritten, cut_and_filled, replaced])
def test_damage_is_found(publisher: Publisher, harm: Callable[[Path], None]) -> None:
    version = publisher.publish(1, finite=True)
    harm(data(publisher, version))
    with pytest.raises(CorruptCheckpointError, match="expected checksum"):
        restored(publisher.path, version)


def test_a_copy_of_the_store_is_read(publisher: Publisher, memory: Path) -> None:
    version = publisher.publish(1, finite=True)
    shutil.copytree(publisher.path, memory / "copy")
    assert restored(memory / "copy", version) == {"verifying"}


def test_no_seal_is_that_of_another_boot(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    trace = data_file.FileStamp.of(tmp_path.stat())
    boot = tmp_path / "boot"
    monkeypatch.setattr(data_file, "_BOOT", boot)
    found = []
    for text in (None, "one", "another"):
        if text:
            boot.write_text(text)
        found.append(data_file.seal_of([trace], tmp_path))
    assert found[0] == ""
    assert len(set(found)) == 3


def test_bools_are_looked_at_all_the_same(memory: Path) -> None:
    class Flagged(tf.Module):
        def __init__(self) -> None:
            super().__init__()
            self.flags = tf.Variable([True, False])

        @tf.function(input_signature=[tf.TensorSpec([], tf.float32, name="x")])
        def __call__(self, x: tf.Tensor) -> tf.Tensor:
            return x + tf.cast(self.flags, tf.float32)

    found = capture(Flagged())
    writer = StoreWriter(memory / "flags")
    writer.add_graph(found.graph.digest, found.graph.to_bytes())
    made = Version(number=1, step=1, prefix="ckpt-1", graph=found.graph.digest, step_done_at=1.0, snapshot_at=1.0)
    wrong = {found.graph.parameters[0].name: np.array([2, 0], np.uint8).view(np.bool_)}
    version = writer.commit(made, wrong, finite=True)
    writer.close()
    assert version.seal
    with pytest.raises(ParameterError, match="bytes other than 0 and 1"):
        Replica("m", memory / "flags").restore(version)


def test_the_seal_is_of_the_file_that_was_written_whatever_has_its_name(memory: Path) -> None:
    spares = FilePool(memory)
    with spares.writing(memory / "data", 4096) as file:
        file.allocate(0, 4096)
        file.put(0, np.zeros(4096, np.uint8))
    (memory / "other").write_bytes(b"\1" * 4096)
    (memory / "other").replace(memory / "data")
    assert file.stamp != data_file.FileStamp.of((memory / "data").stat())
    spares.close()
