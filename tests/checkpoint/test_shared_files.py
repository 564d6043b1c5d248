"""A file that versions share is mapped once, and verified once, for as long as one of them is in memory."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from paramsync.errors import CorruptCheckpointError
from paramsync.following.follower import Follower
from paramsync.following.replica import Replica
from paramsync.graphs.capturing import capture
from paramsync.sources.source import Progress, Verification
from paramsync.store.commit import StoreWriter
from paramsync.store.store import record_file
from paramsync.version import Version
from tests.support.checkpoints import present
from tests.support.followers import serving
from tests.support.troubles import dropped, is_held

SIZE = 8 << 20  # bytes of a parameter


class Halves(tf.Module):
    """Every answer reads all parameters. Half of them never change, and the others are the version's number."""

    def __init__(self) -> None:
        super().__init__()
        self.all = tf.Variable(tf.zeros([SIZE // 4096, 1024]))
        self.frozen = tf.Variable(tf.zeros([SIZE // 4096, 1024]))

    @tf.function(input_signature=[tf.TensorSpec([], tf.float32, name="x")])
    def __call__(self, x: tf.Tensor) -> dict[str, tf.Tensor]:
        zero = x + tf.reduce_max(tf.abs(self.frozen))
        return {"lowest": zero + tf.reduce_min(self.all), "highest": zero + tf.reduce_max(self.all)}


class Store:
    """A store of Halves, whose publisher keeps two versions."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._writer = StoreWriter(path, keep=2)
        self._graph = capture(Halves()).graph
        self._writer.add_graph(self._graph.digest, self._graph.to_bytes())

    def publish(self, number: int) -> Version:
        version = Version(
            number=number,
            step=number,
            prefix=f"ckpt-{number}",
            graph=self._graph.digest,
            step_done_at=1.0,
            snapshot_at=1.0,
        )
        values = {spec.name: 0 if spec.name.startswith("frozen") else number for spec in self._graph.parameters}
        shape = [SIZE // 4096, 1024]
        tensors = {name: np.full(shape, value, np.float32) for name, value in values.items()}
        return self._writer.commit(version, tensors, finite=True)

    def close(self) -> None:
        self._writer.close()


@pytest.fixture
def halves(memory: Path) -> Iterator[Store]:
    """A store in this machine's memory."""
    with closing(Store(memory / "halves")) as store:
        yield store


def follow(replica: Replica, version: Version) -> None:
    """Restore a new version and swap to it, as a follower does."""
    replica.swap(replica.restore(version))
    replica.tend()


def answers(replica: Replica, number: int) -> bool:
    outputs, version = replica.predict({"x": np.float32(0)}, version=number)
    return version.number == number and (outputs["lowest"], outputs["highest"]) == (number, number)


def places(path: Path) -> set[str]:
    """The addresses where this process has mapped a file as readers do, whatever the file's name is now."""
    inode = str(path.stat().st_ino)
    lines = [line.split(maxsplit=5) for line in Path("/proc/self/maps").read_text().splitlines()]
    return {line[0] for line in lines if line[4] == inode and line[1].endswith("p")}


def frozen(store: Store, number: int) -> Path:
    """The file of the parameters that never change, which versions share."""
    return store.path / f"ckpt-{number}.data-00000-of-00002"


def begin(store: Store, replica: Replica) -> None:
    """Two versions that serve, of which the second has the frozen half of the first."""
    for number in (1, 2, 3):  # the first one is in one file
        follow(replica, store.publish(number))
    assert frozen(store, 2).samefile(frozen(store, 3))


def test_it_is_mapped_once_for_all_versions(halves: Store) -> None:
    replica = Replica("m", halves.path, resident=3)
    begin(halves, replica)
    (mapped,) = places(frozen(halves, 3))
    for number in (4, 5):
        follow(replica, halves.publish(number))
        assert places(frozen(halves, number)) == {mapped}
    assert all(answers(replica, number) for number in (5, 4, 3))


def test_it_is_held_as_long_as_one_of_the_versions_is_in_memory(halves: Store) -> None:
    replica = Replica("m", halves.path)
    begin(halves, replica)
    kept = replica.take(2)
    replica.release()
    while 3 in replica.leaving:
        replica.tend()
    assert is_held(frozen(halves, 3))
    outputs = kept.predict({"x": np.float32(0)})
    assert (outputs["lowest"], outputs["highest"]) == (2, 2)
    del kept
    while replica.leaving:
        replica.tend()
    assert not is_held(frozen(halves, 3))


@pytest.fixture
def store(disk: Path) -> Iterator[Store]:
    """Not in memory."""
    with closing(Store(disk / "halves")) as store:
        yield store


def unsealed(store: Store, number: int, *, finite: bool = True) -> Version:
    """Publishes a version of which somebody changed the time of the file that is new.

    With `finite` its record says that the publisher looked at all values.
    """
    version = store.publish(number)
    (store.path / f"ckpt-{number}.data-00001-of-00002").touch()
    record = record_file(store.path, version.prefix)
    record.write_text(replace(version, finite=finite).to_json())
    return replace(version, finite=finite)


def verified(replica: Replica, version: Version) -> int:
    """Follows a version; how many bytes were verified for that."""
    seen = [0]

    def tell(progress: Progress) -> None:
        if progress.phase == "verifying":
            seen.append(progress.bytes_total)

    replica.swap(replica.restore(version, tell))
    replica.tend()
    return seen[-1]


@pytest.mark.parametrize(("verification", "expected"), [("auto", [0, 2, 1, 1]), ("checksums", [2, 2, 2, 2])])
def test_what_was_verified_and_is_held_is_not_verified_again(
    halves: Store, verification: Verification, expected: list[int]
) -> None:
    replica = Replica("m", halves.path, verification=verification)
    found = [verified(replica, halves.publish(1)), *(verified(replica, unsealed(halves, one)) for one in (2, 3, 4))]
    assert found == [one * SIZE for one in expected]
    assert answers(replica, 4)


def test_what_the_kernel_dropped_is_verified_again(store: Store) -> None:
    """It would be read from the disk again."""
    replica = Replica("m", store.path)
    assert verified(replica, store.publish(1)) == 2 * SIZE
    assert verified(replica, unsealed(store, 2)) == SIZE
    version = unsealed(store, 3)
    store.close()  # it has the file in its page table
    if not dropped(frozen(store, 3)):
        pytest.skip("this kernel drops nothing")
    assert verified(replica, version) == 2 * SIZE
    assert present(frozen(store, 3)) >= SIZE
    assert answers(replica, 3)


def test_values_that_nobody_has_looked_at_here_are_looked_at(halves: Store) -> None:
    """Of a version whose publisher says that it looked, checksums alone were computed."""
    replica = Replica("m", halves.path)
    halves.publish(1)
    assert [verified(replica, unsealed(halves, one)) for one in (2, 3)] == [2 * SIZE, SIZE]
    assert [verified(replica, unsealed(halves, one, finite=False)) for one in (4, 5)] == [2 * SIZE, SIZE]


def test_a_file_that_is_cut_while_others_are_verified_is_found(halves: Store) -> None:
    replica = Replica("m", halves.path)
    halves.publish(1)
    verified(replica, unsealed(halves, 2))
    version = unsealed(halves, 3)

    def cut(progress: Progress) -> None:
        if progress.phase == "verifying":
            os.truncate(frozen(halves, 3), 2 * SIZE - 4096)

    with pytest.raises(CorruptCheckpointError, match=r"ckpt-3\.data-00000.* a file that was cut"):
        replica.restore(version, cut)


def test_a_byte_that_somebody_changed_is_found_in_the_next_version_with_that_file(halves: Store) -> None:
    follower = Follower(Replica("m", halves.path))
    halves.publish(1)
    for number in (2, 3):
        unsealed(halves, number)
        follower.run_once()
    halves.publish(4)
    with frozen(halves, 4).open("r+b") as file:
        file.seek(-1, os.SEEK_END)  # before it are bytes that belong to no tensor any more
        file.write(b"\x01")
    follower.run_once()
    assert serving(follower) is None  # versions 2 and 3 have the same file
    reasons = {one.number: one.reason for one in follower.status().quarantined}
    assert set(reasons) == {2, 3, 4}
    assert f"{frozen(halves, 4)}: expected checksum" in reasons[4]
