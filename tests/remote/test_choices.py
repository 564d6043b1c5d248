"""Choices of operators for all followers of a bucket."""

from __future__ import annotations

from pathlib import Path

import pytest

from paramsync.errors import (
    RemoteError,
    UnknownLabelError,
    UnknownVersionError,
)
from paramsync.following.follower import Follower
from paramsync.following.replica import Replica
from paramsync.remote import fleet, protocol
from paramsync.remote.copy_note import CopyNote
from paramsync.remote.state import State
from paramsync.sources.diagnosis import absence
from paramsync.store.store import Store
from tests.support.mirrors import Pair, same
from tests.support.programs import eventually
from tests.support.published import Publisher

LONG = 60.0


def choose(pair: Pair, choice: fleet.Choice) -> State:
    return pair.bucket.perform(protocol.choose(choice, "c" * 32), pair.stop)


def test_a_version_that_operators_pinned_or_labelled_stays_and_new_followers_fetch_the_pinned_one(pair: Pair) -> None:
    for step in range(1, 4):
        pair.publish(step)
        pair.upload.run_once()
    pair.download.run_once()
    choose(pair, fleet.pin("s3://bucket/m", 2))
    choose(pair, fleet.label("s3://bucket/m", "stable", 1))
    for step in range(4, 9):
        pair.publish(step)
        pair.upload.run_once()
    assert pair.download.run_once() is None  # it waits at what it has
    new = pair.follower("new")
    assert new.run_once() is not None
    assert new.state is not None
    assert [version.number for version in new.state.versions] == [1, 2, 6, 7, 8]
    assert new.state.live <= pair.names()
    found = Store(pair.folder / "new").latest()
    assert found is not None
    assert found.number == 2
    choose(pair, fleet.label("s3://bucket/m", "stable", None))
    state = choose(pair, fleet.pin("s3://bucket/m", None))
    assert (state.pinned, dict(state.labels)) == (None, {})
    pair.publish(9)
    pair.upload.run_once()
    assert new.run_once() is not None
    assert [version.number for version in new.state.versions] == [7, 8, 9]
    same(pair.source, Store(pair.folder / "new"))
    new.close()


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
        follower.pin(1, timeout=LONG)
        assert serving(follower) == 1
        follower.unpin(timeout=LONG)
        eventually(lambda: serving(follower) == 2, lambda: f"{follower.status()}")
        CopyNote("s3://bucket/m").write(tmp_path)
        eventually(lambda: serving(follower) == 3, lambda: f"{follower.status()}")
        eventually(lambda: not follower.status().labels, lambda: f"{follower.status()}")
    publisher.close()


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
