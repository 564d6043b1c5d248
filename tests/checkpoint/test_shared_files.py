"""A file that versions have in common is mapped once, and verified once, for as long as one of them is in memory."""

from __future__ import annotations

import numpy as np

from paramsync.following.replica import Replica
from tests.support.checkpoints import resident
from tests.support.locks import is_held
from tests.support.wide import SIZE, Store, answers, follow, frozen, places


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
