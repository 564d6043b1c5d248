"""A file that versions have in common is mapped once, and verified once, for as long as one of them is in memory."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from inferencer.follower import Follower
from inferencer.following.progress import Progress
from inferencer.replica import Replica
from inferencer.sources.source import Verification
from paramsync import index
from paramsync.bundle import Bundle
from paramsync.errors import CorruptCheckpointError
from paramsync.held import Held, Mapped, hold
from paramsync.index import data_file, index_file
from paramsync.layout import record_file
from paramsync.mounts import is_memory
from paramsync.version import Version
from tests.checkpoints import resident, write
from tests.followers import serving
from tests.locks import is_held
from tests.wide import SIZE, Halves, Store, answers, follow, places


@pytest.fixture
def halves(memory: Path) -> Iterator[Store]:
    store = Store(memory / "halves", Halves)
    yield store
    store.close()


def frozen(store: Store, number: int) -> Path:
    return store.data(number, 0, 2)


_libc = ctypes.CDLL(None)
_PAGEOUT = 21  # MADV_PAGEOUT


class More(Halves):
    """And one more that changes."""

    def __init__(self) -> None:
        super().__init__()
        self.another = tf.Variable(tf.zeros([SIZE // 4096, 1024]))

    @tf.function(input_signature=[tf.TensorSpec([], tf.float32, name="x")])
    def __call__(self, x: tf.Tensor) -> dict[str, tf.Tensor]:
        found: dict[str, tf.Tensor] = super().__call__(x + tf.reduce_max(self.another) - tf.reduce_max(self.all))
        return found


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


def test_it_stays_in_the_page_table_when_the_pages_of_a_version_go(halves: Store) -> None:
    replica = Replica("m", halves.path)
    begin(halves, replica)
    for used in (replica.take(3), replica.take(2)):
        replica.source.tend([used])
        other = 5 - used.version.number
        assert present(halves.path, places(frozen(halves, 3))) >= SIZE
        assert present(halves.path, places(halves.data(used.version.number, 1, 2))) >= SIZE
        assert present(halves.path, places(halves.data(other, 1, 2))) == 0
        replica.source.let_pages_go([replica.take(other)])
        assert present(halves.path, places(frozen(halves, 3))) >= SIZE
    assert answers(replica, 3)
    assert answers(replica, 2)
    replica.source.let_pages_go(replica.residents)
    assert present(halves.path, places(frozen(halves, 3))) == 0
    replica.source.tend(replica.residents)
    assert present(halves.path, places(frozen(halves, 3))) >= SIZE


def test_a_version_is_restored_without_a_page_more_than_its_own(halves: Store) -> None:
    replica = Replica("m", halves.path)
    begin(halves, replica)
    version = halves.publish(4)
    before = resident(halves.path)
    restored = replica.restore(version)
    assert resident(halves.path) <= before + SIZE
    replica.swap(restored)
    assert answers(replica, 4)


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


def test_one_that_somebody_wrote_to_is_not_the_same(halves: Store) -> None:
    replica = Replica("m", halves.path)
    begin(halves, replica)
    before = places(frozen(halves, 3))
    version = halves.publish(4)
    frozen(halves, 4).touch()
    replica.swap(replica.restore(version))
    assert len(places(frozen(halves, 4)) - before) == 1
    assert answers(replica, 4)


# Where files are verified ---------------------------------------------------------------------------------------------


def unsealed(store: Store, number: int, *, finite: bool = True) -> Version:
    """Publishes a version of which somebody changed the time of the file that is new.

    With `finite` its record says that the publisher looked at all values.
    """
    version = store.publish(number)
    store.data(number, 1, 2).touch()
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


def test_what_nobody_has_held_since_is_verified_again(halves: Store) -> None:
    replica = Replica("m", halves.path)
    halves.publish(1)
    assert [verified(replica, unsealed(halves, one)) for one in (2, 3)] == [2 * SIZE, SIZE]
    replica.release()
    while replica.leaving:
        replica.tend()
    assert verified(replica, unsealed(halves, 4)) == 2 * SIZE


def test_what_is_not_in_the_page_table_is_verified_again(halves: Store) -> None:
    replica = Replica("m", halves.path)
    halves.publish(1)
    assert [verified(replica, unsealed(halves, one)) for one in (2, 3)] == [2 * SIZE, SIZE]
    replica.source.let_pages_go(replica.residents)
    assert verified(replica, unsealed(halves, 4)) == 2 * SIZE
    assert present(halves.path, places(frozen(halves, 4))) >= SIZE


@pytest.fixture
def disk(tmp_path: Path) -> Path:
    if is_memory(tmp_path.stat()):
        pytest.skip("temporary files are in memory here")
    return tmp_path


@pytest.fixture
def store(disk: Path) -> Iterator[Store]:
    """Not in memory."""
    found = Store(disk / "halves", Halves)
    yield found
    found.close()


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
    assert present(store.path, places(frozen(store, 3))) >= SIZE
    assert answers(replica, 3)


def dropped(path: Path, size: int = -1) -> bool:
    """Has the kernel drop the begin of a file that this process has mapped, or all of it; whether it did."""
    before = present(path.parent, places(path))
    with path.open("rb") as file:
        os.fsync(file.fileno())
        for line in Path("/proc/self/maps").read_text().splitlines():
            begin, end = (int(one, 16) for one in line.split()[0].split("-"))
            if line.split()[4] == str(path.stat().st_ino):
                length = end - begin if size < 0 else size
                _libc.madvise(ctypes.c_void_p(begin), ctypes.c_size_t(length), _PAGEOUT)
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    return present(path.parent, places(path)) < before


def test_values_that_nobody_has_looked_at_here_are_looked_at(halves: Store) -> None:
    """Of a version whose publisher says that it looked, checksums alone were computed."""
    replica = Replica("m", halves.path)
    halves.publish(1)
    assert [verified(replica, unsealed(halves, one)) for one in (2, 3)] == [2 * SIZE, SIZE]
    assert [verified(replica, unsealed(halves, one, finite=False)) for one in (4, 5)] == [2 * SIZE, SIZE]


def test_a_version_without_a_record_is_copied_and_verified(halves: Store) -> None:
    """Although another one has the same file, which was verified."""
    replica = Replica("m", halves.path, graph=next(halves.path.glob("graph-*")))
    halves.publish(1)
    verified(replica, unsealed(halves, 2, finite=False))
    halves.publish(3)
    record_file(halves.path, "ckpt-3").unlink()
    version = replica.source.look().latest
    assert version is not None
    assert (version.number, version.checksum) == (3, "")
    assert verified(replica, version) == 2 * SIZE


def test_another_graph_may_have_the_file_too(halves: Store) -> None:
    replica = Replica("m", halves.path)
    halves.publish(1)
    assert verified(replica, unsealed(halves, 2)) == 2 * SIZE
    halves.turn_into(More)
    assert verified(replica, unsealed(halves, 3)) == 2 * SIZE  # both that are not frozen
    assert answers(replica, 3)


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
    assert serving(follower) == 3
    reasons = {one.number: one.reason for one in follower.status().quarantined}
    assert f"{frozen(halves, 4)}: expected checksum" in reasons[4]


# Of files alone -------------------------------------------------------------------------------------------------------


@pytest.fixture
def pair(memory: Path) -> tuple[Held, Held]:
    """A file that is held by two names, in the same memory."""
    one, other = memory / "one", memory / "other"
    one.write_bytes(bytes(8 * SIZE))
    other.hardlink_to(one)
    first = hold(one, mapped=True)
    assert isinstance(first, Mapped)
    second = hold(other, mapped=True, find=lambda _: first)
    assert second is not None
    return first, second


def test_what_one_lets_go_of_the_other_brings_in_again(memory: Path, pair: tuple[Held, Held]) -> None:
    for one, other in (pair, pair[::-1]):
        one.prefault(0, 8 * SIZE)
        other.let_pages_go()
        assert resident(memory) == 0
        one.prefault(0, 8 * SIZE)
        assert resident(memory) == 8 * SIZE


def test_what_one_has_brought_in_the_other_need_not(pair: tuple[Held, Held], monkeypatch: pytest.MonkeyPatch) -> None:
    """Not even by a look at each page, which takes half as long."""
    asked: list[tuple[int, int]] = []
    populate = Mapped._populate

    def counted(self: Mapped, offset: int, size: int) -> bool:
        asked.append((offset, size))
        return populate(self, offset, size)

    monkeypatch.setattr(Mapped, "_populate", counted)
    pair[0].prefault(0, 8 * SIZE)
    assert sum(size for _, size in asked) == 8 * SIZE
    for _ in range(2):
        pair[1].prefault(SIZE, SIZE)
        pair[0].prefault(0, 8 * SIZE)
    assert sum(size for _, size in asked) == 8 * SIZE


def test_what_the_kernel_dropped_is_brought_in_again(disk: Path) -> None:
    file = disk / "file"
    file.write_bytes(bytes(2 * SIZE))
    held = hold(file, mapped=True)
    assert held is not None
    held.prefault(0, 2 * SIZE)
    if not dropped(file, SIZE):
        pytest.skip("this kernel drops nothing")
    assert resident(disk) == SIZE
    held.prefault(0, 2 * SIZE)
    assert resident(disk) == 2 * SIZE


def test_a_page_of_no_tensor_is_not_missed(tmp_path: Path) -> None:
    """As of a bias between two matrices, which is in another file by now."""
    matrix, bias = np.ones(4096, np.float32), np.ones(1000, np.float32)
    write(tmp_path / "ckpt-1", {"a": matrix, "b": bias, "c": matrix})
    bundle = Bundle.open(tmp_path / "ckpt-1")
    (outline,) = bundle.outlines(["a", "c"])
    assert outline.stretches == [(0, 4 * 4096), (5 * 4096, 9 * 4096)]


def test_of_an_empty_file_nothing_is_missing(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    held = hold(tmp_path / "file", mapped=True)
    assert held is not None
    assert held.is_present(0, 0)


def test_tensors_are_the_same_where_file_place_and_checksum_are(tmp_path: Path) -> None:
    values = np.arange(1000, dtype=np.float32)
    write(tmp_path / "ckpt-1", {"a": values, "b": values})
    found = index.decode(index_file(tmp_path / "ckpt-1").read_bytes(), path=tmp_path)
    data_file(tmp_path / "ckpt-2", 0, 1).hardlink_to(data_file(tmp_path / "ckpt-1", 0, 1))
    other_shape = replace(found.entries["a"], shape=(10, 100))
    entries = {**found.entries, "b": replace(found.entries["b"], crc32c=1), "c": other_shape}
    index_file(tmp_path / "ckpt-2").write_bytes(index.encode(replace(found, entries=entries)))
    one, other = Bundle.open(tmp_path / "ckpt-1"), Bundle.open(tmp_path / "ckpt-2")
    assert one.marks("a") == other.marks("a") != other.marks("c")
    assert one.marks("a") != one.marks("b") != other.marks("b")
    os.utime(data_file(tmp_path / "ckpt-1", 0, 1), ns=(1, 1))
    assert Bundle.open(tmp_path / "ckpt-1").marks("a") != one.marks("a")


def present(directory: Path, addresses: set[str]) -> int:
    """Bytes in the page table of what is mapped there."""
    found = 0
    of_it = False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        first, *rest = line.split()
        if not first.endswith(":"):
            of_it = first in addresses and str(directory) in line
        elif of_it and first == "Rss:":
            found += int(rest[0]) << 10
    return found
