"""Whatever a store holds, it ends no follower and changes nothing about what serves."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np

from paramsync.following.follower import Follower
from paramsync.status import EventKind, State
from tests.support.followers import milestones, quarantined, serving
from tests.support.published import Publisher, ask, captured, proven, values


def test_a_corrupt_newest_version_is_quarantined_and_the_next_good_one_is_served(
    follower: Follower, publisher: Publisher
) -> None:
    publisher.publish(1)
    follower.run_once()
    publisher.publish_corrupt(2)
    assert follower.run_once() is None
    status = follower.status()
    assert (serving(follower), quarantined(follower), status.reason) == (1, [2], "")
    assert "ckpt-2" in status.quarantined[0].reason
    assert status.lag_steps == 1
    publisher.publish(3)
    assert follower.run_once() is not None
    assert proven(*ask(follower))
    assert serving(follower) == 3


def test_a_start_with_a_corrupt_newest_version_serves_the_newest_good_one(
    follower: Follower, publisher: Publisher
) -> None:
    publisher.publish(1)
    publisher.publish(2)
    publisher.publish_corrupt(3)
    publisher.publish_corrupt(4)
    swapped = follower.run_once()
    assert swapped is not None
    assert swapped.number == 2
    assert quarantined(follower) == [3, 4]


def test_a_quarantined_version_is_not_tried_again_until_it_is_mended(follower: Follower, publisher: Publisher) -> None:
    version = publisher.publish_corrupt(1)
    events = follower.subscribe(lambda: None)
    follower.run_once()
    follower.run_once()
    assert [event.kind for event in milestones(events)] == [EventKind.FOUND, EventKind.RESTORING, EventKind.QUARANTINED]
    publisher.flip(version)  # back again
    follower.run_once()
    assert (serving(follower), quarantined(follower)) == (1, [])


def test_a_version_with_values_that_are_not_finite_is_quarantined(follower: Follower, publisher: Publisher) -> None:
    publisher.publish(1, tensors=values(np.nan, captured()))
    follower.run_once()
    assert "NaN or infinity" in follower.status().quarantined[0].reason


def test_a_quarantined_version_that_was_pruned_is_forgotten(follower: Follower, publisher: Publisher) -> None:
    publisher.publish_corrupt(1)
    follower.run_once()
    for step in range(2, 8):
        publisher.publish(step)
    follower.run_once()
    assert quarantined(follower) == []


def test_a_version_whose_graph_is_lost_is_served_once_it_is_back(follower: Follower, publisher: Publisher) -> None:
    version = publisher.publish(1)
    (publisher.path / f"graph-{version.graph}.pb").unlink()
    follower.run_once()
    assert quarantined(follower) == [1]
    (publisher.path / f"graph-{version.graph}.pb").write_bytes(captured().graph.to_bytes())
    follower.run_once()
    assert serving(follower) == 1


def test_a_broken_checkpoint_file_is_an_error_that_changes_nothing_else(
    follower: Follower, publisher: Publisher
) -> None:
    publisher.publish(1)
    follower.run_once()
    good = (publisher.path / "checkpoint").read_text()
    (publisher.path / "checkpoint").write_text("garbage {{{")
    assert follower.run_once() is None
    status = follower.status()
    assert status.reason
    assert "checkpoint" in status.reason
    assert (status.state, serving(follower)) == (State.SERVING, 1)
    assert proven(*ask(follower))
    (publisher.path / "checkpoint").write_text(good)
    follower.run_once()
    assert follower.status().reason == ""


def test_a_newest_version_without_its_index_does_not_hide_older_ones(follower: Follower, publisher: Publisher) -> None:
    publisher.publish(1)
    publisher.publish(2)
    (publisher.path / "ckpt-2.index").unlink()
    follower.run_once()
    assert serving(follower) == 1
    assert follower.status().reason


def test_a_store_that_becomes_a_file_is_an_error_and_can_come_back(follower: Follower, tmp_path: Path) -> None:
    path = tmp_path / "m"

    path.write_text("not a store")
    follower.run_once()
    assert "expected a directory" in str(follower.status().reason)
    path.unlink()
    publisher = Publisher(path)
    publisher.publish(1)
    follower.run_once()
    assert (serving(follower), follower.status().reason) == (1, "")
    publisher.close()


def test_a_store_that_vanishes_leaves_what_serves_and_is_followed_when_it_starts_over(
    follower: Follower, tmp_path: Path
) -> None:
    path = tmp_path / "m"
    first = Publisher(path)
    first.publish(900)
    follower.run_once()
    first.close()
    shutil.rmtree(path)
    follower.run_once()
    assert (serving(follower), follower.status().published) == (900, None)
    assert proven(*ask(follower))
    second = Publisher(path)
    second.publish(1)
    follower.run_once()
    assert serving(follower) == 1
    assert proven(*ask(follower))
    second.close()


def test_a_data_file_that_became_a_link_to_itself_is_a_fault_of_its_version_alone(
    follower: Follower, publisher: Publisher, tmp_path: Path
) -> None:
    path = tmp_path / "m"
    for step in (1, 2):
        publisher.publish(step)
    data = path / "ckpt-2.data-00000-of-00001"
    data.unlink()
    data.symlink_to(data)
    follower.run_once()
    assert (serving(follower), quarantined(follower), follower.status().reason) == (1, [2], "")
    publisher.publish(3)
    follower.run_once()
    assert (serving(follower), follower.status().reason) == (3, "")


def test_a_rewritten_serving_version_is_restored_again(follower: Follower, tmp_path: Path) -> None:
    path = tmp_path / "m"
    for total in (1.0, 2.0):  # two lives of a store, with the same number
        publisher = Publisher(path)
        publisher.publish(5, tensors=values(total, captured()))
        follower.run_once()
        publisher.close()
        shutil.rmtree(path)
    assert ask(follower) == ([2.0] * 6, 5)
