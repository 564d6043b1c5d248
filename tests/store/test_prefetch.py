"""What the next version will be written into is in the page table before that, and serves from where it is then."""

from __future__ import annotations

from pathlib import Path

import pytest

from paramsync.following.follower import Follower
from paramsync.following.replica import Replica
from paramsync.inference.resident import Resident
from paramsync.sources.checkpoints import CheckpointSource
from paramsync.sources.source import Verification
from tests.support.checkpoints import resident
from tests.support.followers import LONG, SILENT, serving
from tests.support.programs import eventually
from tests.support.wide import FIRST, SIZE, Store, Table, answers, begin, follow, places, prepare


@pytest.fixture
def replica(wide: Store) -> Replica:
    return Replica("m", wide.path)


def test_the_spare_that_will_be_overwritten_is_there_and_serves_from_where_it_was_mapped(
    wide: Store, replica: Replica
) -> None:
    last = begin(wide, replica)
    for number in range(last + 1, last + 4):
        (spare,) = wide.spares
        assert resident(wide.path, ".spare-") >= SIZE
        mapped, inode = places(spare), spare.stat().st_ino
        version = wide.publish(number)
        assert wide.data(number).stat().st_ino == inode, "the publisher was kept from using it"
        assert answers(replica, number - 1)
        restored = replica.restore(version)
        assert places(wide.data(number)) == mapped
        replica.swap(restored)
        assert answers(replica, number)
        replica.tend()
        prepare(replica)
        assert all(answers(replica, one) for one in (number, number - 1))


def test_no_more_is_in_the_page_table_than_what_serves_and_what_comes(wide: Store, replica: Replica) -> None:
    last = begin(wide, replica)
    for number in range(last + 1, last + 4):
        assert 2 * SIZE <= resident(wide.path) < 2.5 * SIZE
        restored = replica.restore(wide.publish(number))
        assert resident(wide.path) < 2.5 * SIZE
        replica.swap(restored)
        replica.tend()
        prepare(replica)
    replica.swap(replica.take(number - 1))  # back to the version before
    replica.tend()
    assert 2 * SIZE <= resident(wide.path) < 2.5 * SIZE
    assert answers(replica, number - 1)


def test_nothing_is_mapped_where_nothing_serves_any_more(wide: Store, replica: Replica) -> None:
    begin(wide, replica)
    assert places(wide.spares[0])
    replica.release()
    while replica.leaving:
        replica.tend()
    assert not replica.prepare()
    assert resident(wide.path) == 0


def test_without_a_spare_there_is_nothing_to_do_until_there_is_one(wide: Store, replica: Replica) -> None:
    follow(replica, wide.publish(1))
    assert not replica.prepare()
    assert resident(wide.path, ".spare-") == 0
    for number in (2, 3):
        follow(replica, wide.publish(number))
    (spare,) = wide.spares
    assert prepare(replica) == 0  # it was done
    assert resident(wide.path, spare.name) >= SIZE


@pytest.mark.parametrize("verification", ["checksums", "sizes"])
def test_where_bytes_are_read_or_left_alone_anyway_nothing_is_mapped(wide: Store, verification: Verification) -> None:
    replica = Replica("m", wide.path, verification=verification)
    begin(wide, replica)
    assert wide.spares
    mapped = resident(wide.path, ".spare-") >= SIZE
    assert mapped == (verification == "sizes")


def test_of_a_version_that_shares_a_file_with_the_one_before_the_other_file_is_there(halves: Store) -> None:
    replica = Replica("m", halves.path)
    last = begin(halves, replica)
    shared = halves.data(last, 0, 2)
    idle = halves.path / f".spare-{halves.data(0).name}"  # as large as that, which nobody will write again
    with idle.open("wb") as file:
        file.truncate(shared.stat().st_size)
    for number in range(last + 1, last + 4):
        prepare(replica)
        (spare,) = (one for one in halves.spares if one != idle)
        mapped = places(spare)
        follow(replica, halves.publish(number))
        assert (places(idle), places(halves.data(number, 1, 2))) == (set(), mapped)
        assert mapped
        assert answers(replica, number)


def test_of_a_table_nothing_is_mapped(memory: Path) -> None:
    wide = Store(memory / "table", Table)
    replica = Replica("m", wide.path)
    begin(wide, replica)
    assert wide.spares
    assert resident(wide.path, ".spare-") == 0
    wide.close()


def test_a_follower_prepares_while_it_waits(wide: Store) -> None:
    with Follower(Replica("m", wide.path), poll_seconds=60.0) as follower:

        def bring_in(number: int) -> None:
            wide.publish(number)
            follower.sync(number, timeout=LONG)
            eventually(lambda: not follower.replica.leaving, lambda: "a version was not let go")

        for number in range(1, FIRST + 1):
            bring_in(number)
        for number in range(FIRST + 1, FIRST + 6):
            eventually(lambda: resident(wide.path, ".spare-") >= SIZE, lambda: "no spare was mapped")
            mapped = places(wide.spares[0])
            bring_in(number)
            assert places(wide.data(number)) == mapped
            assert answers(follower.replica, number)


class Endless(CheckpointSource):
    """There is always more to prepare."""

    def prepare(self, serving: Resident) -> bool:
        super().prepare(serving)
        return True


@pytest.mark.parametrize(("poll_seconds", "rung"), [(60.0, True), (0.05, False)])
def test_who_rings_is_heard_while_there_is_more_to_prepare_and_the_time_to_look_is_kept(
    wide: Store, poll_seconds: float, *, rung: bool
) -> None:
    follower = Follower(Replica("m", Endless(wide.path)), poll_seconds=poll_seconds)
    follower.start(SILENT)
    with follower:
        for number in (1, 2, 3):
            wide.publish(number)
            if rung:
                follower.sync(number, timeout=LONG)
            eventually(lambda: serving(follower) == number, lambda: "nobody looked")  # noqa: B023, called at once


def test_a_thousand_versions_leave_no_descriptor_and_no_mapping(wide: Store, replica: Replica) -> None:
    last = begin(wide, replica)

    def kept() -> tuple[int, int]:
        maps = Path("/proc/self/maps").read_text().splitlines()
        files = [one.readlink() for one in Path("/proc/self/fd").iterdir() if one.is_symlink()]
        return sum(wide.path in file.parents for file in files), sum(str(wide.path) in line for line in maps)

    before = kept()
    for number in range(last + 1, last + 1001):
        follow(replica, wide.publish(number))
    assert kept() == before
    assert answers(replica, last + 1000)
