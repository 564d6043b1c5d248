"""What was verified of a file that versions have in common is not verified again, as long as it is held and there."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from paramsync.checkpoint.reader import Bundle, Loan
from paramsync.errors import CorruptCheckpointError
from paramsync.following.follower import Follower
from paramsync.following.replica import Replica
from paramsync.sources.checkpoints import Checkpoints
from paramsync.sources.source import Progress, Verification
from paramsync.store import store as stores
from paramsync.store.store import record_file
from paramsync.version import Version
from tests.support.checkpoints import present
from tests.support.disks import dropped
from tests.support.followers import serving
from tests.support.wide import SIZE, Halves, More, Store, answers, frozen


@pytest.fixture
def store(disk: Path) -> Iterator[Store]:
    """Not in memory."""
    found = Store(disk / "halves", Halves)
    yield found
    found.close()


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
    assert serving(follower) is None  # versions 2 and 3 have the same file
    reasons = {one.number: one.reason for one in follower.status().quarantined}
    assert set(reasons) == {2, 3, 4}
    assert f"{frozen(halves, 4)}: expected checksum" in reasons[4]


@dataclass(eq=False)
class InMemory:
    loan: Loan


@pytest.mark.parametrize(("lent", "expected"), [(True, 0), (False, 2 * SIZE)])
def test_what_others_answer_from_is_examined_without_mapped_pages(halves: Store, lent: bool, expected: int) -> None:
    """A file that is cut meanwhile would end a process that reads these."""
    version = halves.publish(1)
    halves.close()  # it has the files in its page table
    reader = stores.Store(halves.path)
    names = sorted(reader.open(version).entries)
    graph: Any = SimpleNamespace(parameters=[SimpleNamespace(name=name) for name in names], embeddings=())
    found: Checkpoints[Any] = Checkpoints(reader, lambda *_, **__: tuple(names), answers_here=False)

    def build(bundle: Bundle, keys: Sequence[str]) -> InMemory:
        return InMemory(bundle.lend(keys, ()))

    resident = found.restore(version, graph, build, lambda _: None)
    descriptors = resident.loan.descriptors
    assert found.damage(resident, descriptors if lent else ()) is None
    assert present(halves.data(1)) == expected
    with halves.data(1).open("r+b") as file:
        file.write(b"\x01")
    assert isinstance(found.damage(resident, descriptors if lent else ()), CorruptCheckpointError)
    for descriptor in descriptors:
        os.close(descriptor)
