"""Choices of operators for all followers of a bucket."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from paramsync.errors import (
    RemoteError,
    UnknownLabelError,
    UnknownVersionError,
)
from paramsync.following.follower import Follower
from paramsync.following.operator_requests import Action
from paramsync.following.replica import Replica
from paramsync.moments import Move
from paramsync.remote import copy_note, fleet, protocol
from paramsync.remote.bucket_status import BucketStatus
from paramsync.remote.copy_note import CopyNote, read
from paramsync.remote.state import State
from paramsync.sources.diagnosis import absence
from paramsync.store.store import Store
from tests.support.mirrors import Pair, current_state, same
from tests.support.programs import eventually
from tests.support.published import Publisher

LONG = 60.0


def choose(pair: Pair, choice: fleet.Choice) -> State:
    return pair.bucket.perform(protocol.choose(choice, "c" * 32), pair.stop)


def test_a_version_that_operators_pinned_or_labelled_stays_and_new_followers_fetch_the_pinned_one(pair: Pair) -> None:
    for step in range(1, 4):
        pair.publish(step)
        pair.upload.run_once()
    choose(pair, fleet.pin("s3://bucket/m", 2))
    choose(pair, fleet.label("s3://bucket/m", "stable", 1))
    for step in range(4, 9):
        pair.publish(step)
        pair.upload.run_once()
    new = pair.follower("new")
    assert new.run_once() is not None
    assert new.state is not None
    assert [version.number for version in new.state.versions] == [1, 2, 6, 7, 8]
    assert new.state.live <= pair.names()
    found = Store(pair.folder / "new").latest()
    assert found is not None
    assert found.number == 2
    assert new.run_once() is not None
    assert [version.number for version in Store(pair.folder / "new").versions()] == [1, 2]
    assert new.run_once() is None
    assert new.waiting == ()
    choose(pair, fleet.label("s3://bucket/m", "stable", None))
    state = choose(pair, fleet.pin("s3://bucket/m", None))
    assert (state.pinned, dict(state.labels)) == (None, {})
    pair.publish(9)
    pair.upload.run_once()
    assert new.run_once() is not None
    assert [version.number for version in new.state.versions] == [7, 8, 9]
    same(pair.source, Store(pair.folder / "new"))
    new.close()


def local(pair: Pair) -> list[int]:
    return [version.number for version in pair.target.versions()]


def test_a_follower_fetches_chosen_versions_below_its_newest_and_keeps_them(pair: Pair) -> None:
    for step in range(1, 4):
        pair.publish(step)
        pair.upload.run_once()
    pair.download.run_once()
    choose(pair, fleet.label("s3://bucket/m", "stable", 1))
    pair.publish(4)
    pair.upload.run_once()
    pair.download.run_once()  # the newest comes first
    assert [listed.number for listed in pair.download.waiting] == [1]
    assert local(pair) == [3, 4]
    pair.download.run_once()
    assert local(pair) == [1, 3, 4]
    for step in range(5, 9):
        pair.publish(step)
        pair.upload.run_once()
        pair.download.run_once()
        assert local(pair)[0] == 1
    same(pair.source, pair.target)
    choose(pair, fleet.label("s3://bucket/m", "stable", None))
    for step in range(9, 12):
        pair.publish(step)
        pair.upload.run_once()
        pair.download.run_once()
    assert local(pair) == [9, 10, 11]


def test_a_rollback_to_a_version_that_a_follower_lacks_fetches_the_version(pair: Pair) -> None:
    for step in range(1, 4):
        pair.publish(step)
        pair.upload.run_once()
    pair.download.run_once()
    choose(pair, fleet.roll_back("s3://bucket/m"))
    done = pair.download.run_once()
    assert done is not None
    assert done.version.number == 2
    bundle = pair.target.open(done.version)
    bundle.verify(bundle.entries)
    same(pair.source, pair.target)  # the newest is still the latest
    assert local(pair) == [2, 3]
    assert pair.download.run_once() is None


def test_a_choice_of_what_is_not_there_is_refused_and_nothing_changes(pair: Pair) -> None:
    for step in (1, 2):
        pair.publish(step)
        pair.upload.run_once()
    before = pair.bucket.read()
    with pytest.raises(UnknownVersionError, match="there are: 1, 2"):
        choose(pair, fleet.pin("s3://bucket/m", 3))
    with pytest.raises(UnknownLabelError):
        choose(pair, fleet.label("s3://bucket/m", "stable", None))
    assert choose(pair, fleet.roll_back("s3://bucket/m")).pinned == 1
    with pytest.raises(RemoteError, match="no version to go back to"):
        choose(pair, fleet.roll_back("s3://bucket/m"))
    choose(pair, fleet.pin("s3://bucket/m", None))
    assert before != pair.bucket.read()


def test_a_follower_obeys_the_choices_for_all_unless_it_has_its_own(tmp_path: Path) -> None:
    publisher = Publisher(tmp_path)
    for step in (1, 2, 3):
        publisher.publish(step)
    with Follower(Replica("m", tmp_path), poll_seconds=3600) as follower:
        follower.sync(timeout=LONG)
        assert follower.status().publisher is not None
        CopyNote("s3://bucket/m", pinned=2, labels={"stable": 1}).write(tmp_path)
        eventually(lambda: serving(follower) == 2, lambda: f"{follower.status()}")
        eventually(lambda: follower.status().labels == {"stable": 1}, lambda: f"{follower.status()}")
        assert follower.status().pinned == 2
        assert follower.status().publisher is None  # the lock of a copy is the mirror's
        (tmp_path / copy_note.NAME).write_text("damaged")
        publisher.publish(4)
        eventually(lambda: published(follower) == 4, lambda: f"{follower.status()}")
        assert serving(follower) == 2
        follower.pin(1, timeout=LONG)
        assert serving(follower) == 1
        follower.unpin(timeout=LONG)
        eventually(lambda: serving(follower) == 2, lambda: f"{follower.status()}")
        CopyNote("s3://bucket/m", ended="died", ended_at=5.0).write(tmp_path)
        eventually(lambda: serving(follower) == 4, lambda: f"{follower.status()}")
        assert follower.status().publisher is not None  # as the bucket's state says
        eventually(lambda: not follower.status().labels, lambda: f"{follower.status()}")
    publisher.close()


def published(follower: Follower) -> int | None:
    version = follower.status().published
    return None if version is None else version.number


def serving(follower: Follower) -> int | None:
    version = follower.status().serving
    return None if version is None else version.number


def test_a_local_copy_says_what_it_copies_and_why_no_version_comes(tmp_path: Path) -> None:
    CopyNote("s3://bucket/m", "no credentials").write(tmp_path)
    assert absence(tmp_path) == f"{tmp_path}: copies s3://bucket/m: no credentials"
    CopyNote("s3://bucket/m").write(tmp_path)
    assert absence(tmp_path) == f"{tmp_path}: copies s3://bucket/m: nothing is published there yet"
    (tmp_path / "mirror.json").write_text('{"other": 1}')
    assert "copies" not in absence(tmp_path)


class Ordered:
    """A follower of a local copy of a bucket that serves version 2 of two, with a clock that stands still."""

    def __init__(self, path: Path) -> None:
        self.publisher = Publisher(path)
        for step in (1, 2):
            self.publisher.publish(step)
        self.now = time.time()
        self.follower = self.started()

    def order(self, pinned: int | None, **move: Any) -> float:
        """Write operators' choices for a moment in ten minutes, and look. Returns the moment."""
        at = self.now + 600
        CopyNote("s3://bucket/m", pinned=pinned, move=Move(at=at, newest=2, **move)).write(self.publisher.path)
        self.follower.run_once()
        return at

    def started(self) -> Follower:
        follower = Follower(Replica("m", self.publisher.path), poll_seconds=60.0, clock=lambda: self.now)
        follower.run_once()
        return follower

    def serving_at(self, moment: float | None) -> int | None:
        """Set the clock, and return which version serves then."""
        assert moment is not None
        self.now = moment
        self.follower.run_once()
        return serving(self.follower)


@pytest.fixture
def ordered(tmp_path: Path) -> Iterator[Ordered]:
    made = Ordered(tmp_path)
    yield made
    made.publisher.close()


def test_all_followers_go_to_a_pin_at_one_moment_and_back(ordered: Ordered) -> None:
    moment = ordered.order(1, before=None)
    status = ordered.follower.status()
    assert (serving(ordered.follower), status.pinned, status.next, status.next_at) == (2, None, 1, moment)
    again = ordered.started()
    assert (serving(again), again.status().next) == (2, 1)
    assert ordered.serving_at(moment + 0.5) == 1
    assert ordered.follower.status().pinned == 1
    assert ordered.follower.status().swap_skew_seconds == pytest.approx(0.5)
    again.run_once()
    assert serving(again) == 1
    moment = ordered.order(None, before=1)
    assert (serving(ordered.follower), ordered.follower.status().next) == (1, 2)
    assert ordered.serving_at(moment) == 2
    assert (ordered.follower.status().pinned, ordered.follower.status().swap_skew_seconds) == (None, 0.0)


def test_a_pin_of_a_follower_comes_before_an_order_to_all(ordered: Ordered) -> None:
    moment = ordered.order(1, before=None)
    pinned = ordered.follower.ask(Action.PIN, 2)
    ordered.follower.run_once()
    assert pinned.result(0).next is None
    assert ordered.serving_at(moment) == 2


def test_a_version_published_after_an_order_does_not_come_before_it_unless_its_moment_does(ordered: Ordered) -> None:
    moment = ordered.order(None, before=None, sync=True)
    ordered.publisher.publish(3)
    ordered.follower.run_once()
    assert (serving(ordered.follower), ordered.follower.status().next_at) == (2, moment)
    sooner = ordered.publisher.publish(4, serve_after=300)
    ordered.follower.run_once()
    assert (serving(ordered.follower), ordered.follower.status().next_at) == (2, sooner.serve_at)
    assert ordered.serving_at(sooner.serve_at) == 4


def test_a_sync_brings_the_newest_version_before_its_own_moment(ordered: Ordered) -> None:
    ordered.publisher.publish(3, serve_after=1800)
    ordered.follower.run_once()
    at = ordered.now + 60
    CopyNote("s3://bucket/m", move=Move(at=at, newest=3, sync=True)).write(ordered.publisher.path)
    ordered.follower.run_once()
    assert (serving(ordered.follower), ordered.follower.status().next_at) == (2, at)
    assert ordered.serving_at(at) == 3


def test_an_order_that_is_over_an_hour_ahead_is_not_waited_for(ordered: Ordered) -> None:
    ordered.now -= 3600
    CopyNote("s3://bucket/m", pinned=1, move=Move(at=ordered.now + 4000, newest=2)).write(ordered.publisher.path)
    ordered.follower.run_once()
    assert serving(ordered.follower) == 1


def test_the_note_of_a_copy_has_the_order(pair: Pair) -> None:
    for step in (1, 2):
        pair.publish(step)
        pair.upload.run_once()
    moment = time.time() + 600
    state = choose(pair, fleet.pin("s3://bucket/m", 1, moment))
    assert (state.pinned, state.pinned_at(moment - 1), state.pinned_at(moment)) == (1, None, 1)
    pair.download.run_once()
    pair.download.note(BucketStatus(address=pair.bucket.address))
    note = read(pair.target.path)
    assert note is not None
    assert (note.pinned, note.move) == (1, Move(at=moment, before=None, newest=2))


@pytest.mark.parametrize("content", [None, "", "{"], ids=["gone", "empty", "cut"])
def test_a_note_that_is_damaged_is_written_anew(pair: Pair, content: str | None) -> None:
    pair.publish(1)
    pair.upload.run_once()
    choose(pair, fleet.pin("s3://bucket/m", 1))
    for _ in range(2):
        pair.download.run_once()
        pair.download.note(BucketStatus(address=pair.bucket.address))
        note = read(pair.target.path)
        assert note is not None
        assert note.pinned == 1
        path = pair.target.path / copy_note.NAME
        path.unlink() if content is None else path.write_text(content)


def test_a_later_order_takes_the_place_of_one_that_waits(pair: Pair) -> None:
    for step in (1, 2):
        pair.publish(step)
        pair.upload.run_once()
    moment = time.time() + 600
    choose(pair, fleet.pin("s3://bucket/m", 1, moment))
    state = choose(pair, fleet.pin("s3://bucket/m", 2, moment + 60))
    assert state.move == Move(at=moment + 60, before=None, newest=2)
    assert state.chosen == {2}
    state = choose(pair, fleet.label("s3://bucket/m", "stable", 1))
    assert state.move is not None
    assert choose(pair, fleet.roll_back("s3://bucket/m")).move is None
    with pytest.raises(RemoteError, match="pinned to version 1: unpin them instead"):
        choose(pair, fleet.sync("s3://bucket/m", moment))


def test_the_version_that_is_pinned_until_a_moment_stays_in_the_bucket(pair: Pair) -> None:
    for step in (1, 2):
        pair.publish(step)
        pair.upload.run_once()
    choose(pair, fleet.pin("s3://bucket/m", 1))
    choose(pair, fleet.pin("s3://bucket/m", None, time.time() + 600))
    for step in range(3, 8):
        pair.publish(step)
        pair.upload.run_once()
    assert [version.number for version in current_state(pair).versions] == [1, 5, 6, 7]


def test_a_note_of_a_newer_release_is_read_without_what_is_unknown(tmp_path: Path) -> None:
    note = CopyNote("s3://bucket/m", pinned=1, move=Move(at=5.0, before=None, newest=3))
    note.write(tmp_path)
    path = tmp_path / "mirror.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"of a newer release": 1}))
    assert read(tmp_path) == note
    CopyNote("s3://bucket/m").write(tmp_path)
    assert "move" not in json.loads(path.read_text())  # earlier releases refuse keys that they do not know
