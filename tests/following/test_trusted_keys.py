"""A follower that trusts keys serves signed versions, and reports why it refuses others."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from paramsync.following.follower import Follower
from paramsync.following.replica import Replica
from tests.support.keys import Keys, keys, listed
from tests.support.published import Publisher, ask, proven


@pytest.fixture
def pair(tmp_path: Path) -> Keys:
    return keys(tmp_path)


@pytest.fixture
def signing(tmp_path: Path, pair: Keys) -> Iterator[Publisher]:
    publisher = Publisher(tmp_path / "store", signing_key=pair.private)
    yield publisher
    publisher.close()


def following(path: Path, pair: Keys) -> Follower:
    return Follower(Replica("m", path, trust=[pair.public]), poll_seconds=60.0)


def reasons(follower: Follower) -> dict[int, str]:
    return {one.number: one.reason for one in follower.status().quarantined}


def test_signed_versions_serve_and_an_unsigned_one_is_passed_over(
    tmp_path: Path, pair: Keys, signing: Publisher
) -> None:
    follower = following(signing.path, pair)
    signing.publish(1)
    follower.run_once()
    assert proven(ask(follower)[0], 1)
    assert follower.status().signed_by == pair.id
    signing.close()
    unsigned = Publisher(signing.path)
    unsigned.publish(2)
    unsigned.close()
    follower.run_once()
    assert ask(follower)[1] == 1
    assert "expected a signature" in reasons(follower)[2]
    again = Publisher(signing.path, signing_key=pair.private)
    again.publish(3)
    again.close()
    follower.run_once()
    assert proven(ask(follower)[0], 3)


def test_a_signed_version_serves_from_a_copy_that_no_writer_of_the_store_can_change(
    pair: Keys, signing: Publisher
) -> None:
    follower = following(signing.path, pair)
    version = signing.publish(1)
    follower.run_once()
    for data in signing.path.glob(f"{version.prefix}.data-*"):
        with data.open("r+b") as file:
            file.write(b"\1" * data.stat().st_size)
    assert proven(ask(follower)[0], 1)


def test_an_old_version_is_not_taken_for_the_newest_while_a_newer_one_serves(pair: Keys, signing: Publisher) -> None:
    """An attacker who can write into the store lists only the old version, whose signature is valid."""
    follower = following(signing.path, pair)
    old = signing.publish(1)
    signing.publish(2)
    follower.run_once()
    listed(signing.path, old.prefix)
    follower.run_once()
    assert ask(follower)[1] == 2
