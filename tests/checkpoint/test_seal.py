"""Files in memory that nobody touched are not read again; a version copied in slowly serves once it is whole."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from paramsync.checkpoint import data_file
from paramsync.checkpoint.file_pool import FilePool
from paramsync.errors import CorruptCheckpointError, ParameterError
from paramsync.following.follower import Follower
from paramsync.following.replica import Replica
from paramsync.graphs.capturing import capture
from paramsync.host.memory import is_memory
from paramsync.sources.source import Progress, Verification
from paramsync.store.commit import StoreWriter
from paramsync.store.store import CheckpointState, Store, read_state, state_file, state_text
from paramsync.version import Version
from tests.support.followers import serving
from tests.support.published import Publisher, saver_store
from tests.support.stores import Scaled, saved_by_v2

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


Write = Callable[[Path], dict[str, Any]]
"""Writes versions 1 and 2; returns what a replica has to be told."""


def ours(path: Path) -> dict[str, Any]:
    publisher = Publisher(path)
    for step in (1, 2):
        publisher.publish(step)
    publisher.close()
    return {}


def savers(path: Path) -> dict[str, Any]:
    saver_store(path, 2)
    return {"inputs": ["x:0"], "outputs": ["y:0"]}


def managers(path: Path) -> dict[str, Any]:
    scaled = Scaled()
    manager = tf.train.CheckpointManager(tf.train.Checkpoint(net=scaled), str(path), None)
    for step in (1, 2):
        scaled.fill(step)
        manager.save(step)
    tf.saved_model.save(scaled, str(path.with_name("graph")), signatures=scaled.__call__)
    return {"graph": path.with_name("graph")}


def numbered(path: Path) -> dict[str, Any]:
    for number in (1, 2):
        saved_by_v2(path / str(number), number)
    return {}


BY_NAME = ""
CASES: list[tuple[Write, str]] = [
    (ours, BY_NAME),
    (ours, ".json"),
    (ours, ".data-"),
    (ours, ".index"),
    (savers, BY_NAME),
    (savers, ".meta"),
    (savers, ".data-"),
    (managers, ".data-"),
    (managers, ".index"),
    (numbered, ".data-"),
    (numbered, ".index"),
    (numbered, "saved_model.pb"),
]


@pytest.mark.parametrize(("write", "last"), CASES, ids=[f"{write.__name__}, {last}" for write, last in CASES])
def test_it_serves_as_soon_as_its_last_file_is_whole(tmp_path: Path, write: Write, last: str) -> None:
    whole, base = tmp_path / "whole", tmp_path / "base"
    told = write(whole)
    shutil.copytree(whole, base)
    take_away_the_second(base)
    follower = Follower(Replica("m", base, **told))
    follower.run_once()
    files = [one.relative_to(whole) for one in sorted(whole.rglob("*")) if one.is_file()]
    missing = [one for one in files if one.name == "checkpoint" or not (base / one).exists()]
    missing.sort(key=lambda one: (one.name != "fingerprint.pb", bool(last) and last in one.name))
    assert len(missing) > 2
    for one in missing:
        content = (whole / one).read_bytes()
        (base / one).parent.mkdir(parents=True, exist_ok=True)
        for part in (content[:0], content[: len(content) // 2], content):
            assert serving(follower) == 1
            (base / one).write_bytes(part)
            follower.run_once()
    assert (serving(follower), follower.status().quarantined, follower.status().reason) == (2, (), "")


def take_away_the_second(base: Path) -> None:
    state = read_state(base)
    if state is None:
        shutil.rmtree(base / "2")
        return
    state_file(base).write_text(state_text(CheckpointState(state.names[0], state.names[:1])))
    for one in base.glob(f"{state.latest}.*"):
        one.unlink()
