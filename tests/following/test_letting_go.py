"""What a version leaves behind goes when no request needs it, and the follower is who pays for that."""

from __future__ import annotations

import gc
import threading
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path

import numpy as np
import pytest

from inferencer.serving.served import FollowedModel, followers_of
from inferencer.settings.settings import ModelSettings
from paramsync.following.follower import Follower
from paramsync.following.replica import Replica
from paramsync.store.store import Store
from paramsync.version import Version
from tests.support.checkpoints import resident
from tests.support.followers import LONG, freed_by, quarantined, serving
from tests.support.in_process import LocalMaker
from tests.support.programs import eventually
from tests.support.published import GATED_OPS, PARAMETERS, Publisher, follower_of
from tests.support.stores import saved_by_v1
from tests.support.troubles import descriptors

X = {"x": np.ones([3, 2], np.float32)}


@pytest.fixture
def publisher(tmp_path: Path) -> Iterator[Publisher]:
    publisher = Publisher(tmp_path / "store")
    yield publisher
    publisher.close()


@pytest.fixture
def replica(publisher: Publisher) -> Replica:
    return Replica("m", Store(publisher.path), allowed=GATED_OPS)


def is_mapped(inode: int) -> bool:
    """Whether a reader in this process has it; writers share what they map."""
    mappings = [line.split() for line in Path("/proc/self/maps").read_text().splitlines()]
    return any(access.endswith("p") and number == str(inode) for _, access, _, _, number, *_ in mappings)


def data_inode(publisher: Publisher, version: Version) -> int:
    return (publisher.path / f"{version.prefix}.data-00000-of-00001").stat().st_ino


def test_a_version_dropped_while_a_request_holds_it_is_freed_by_the_follower(publisher: Publisher) -> None:
    follower = Follower(Replica("m", publisher.path))
    first = publisher.publish(1)
    inode = data_inode(publisher, first)
    follower.run_once()
    request = [follower.replica.take()]
    threads = freed_by(request[0])
    for step in (2, 3):
        publisher.publish(step)
        follower.run_once()
    assert 1 not in follower.status().resident
    assert request[0].predict(X)["seen"].numpy().tolist() == [1.0] * PARAMETERS
    ends = threading.Thread(target=request.clear, name="request")
    ends.start()
    ends.join()
    assert threads == []
    assert is_mapped(inode)
    assert follower.run_once() is None
    assert threads == [threading.current_thread().name]
    assert not is_mapped(inode)


def test_a_version_nobody_holds_is_freed_in_the_look_that_dropped_it(publisher: Publisher) -> None:
    follower = Follower(Replica("m", publisher.path))
    inode = data_inode(publisher, publisher.publish(1))
    follower.run_once()
    threads = freed_by(follower.replica.take())
    for step in (2, 3):
        publisher.publish(step)
        follower.run_once()
    assert len(threads) == 1
    assert not is_mapped(inode)


def test_a_version_restored_again_takes_the_place_of_the_one_in_memory(publisher: Publisher, replica: Replica) -> None:
    version = publisher.publish(1)
    replica.swap(replica.restore(version))
    threads = freed_by(replica.take())
    replica.swap(replica.restore(version))
    assert threads == []
    replica.tend()
    assert len(threads) == 1
    assert [one.version.number for one in replica.residents] == [1]


@pytest.fixture
def uncollected() -> Iterator[None]:
    """Nothing is freed for being garbage that refers to itself."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def removed(models: Mapping[str, FollowedModel], others: Collection[threading.Thread]) -> None:
    """As a server removes them; returns once that is done. The other threads are not theirs."""
    LocalMaker(poll_seconds=60.0, state=None).end(models.values(), kept=())
    for thread in {*threading.enumerate()}.difference(others):
        if thread.name.startswith(("end ", "follower ")):
            thread.join(LONG)
            assert not thread.is_alive()


@pytest.mark.usefixtures("uncollected")
def test_models_that_are_removed_leave_nothing_open(memory: Path, tmp_path: Path) -> None:
    for path in (memory / "ours", tmp_path / "ours"):
        writer = Publisher(path)
        writer.publish(1)
        writer.publish(2)
        writer.close()
    for path in (memory / "theirs", tmp_path / "theirs"):
        saved_by_v1(path / "1", 1.0)
    stores = [memory / "ours", tmp_path / "ours", memory / "theirs", tmp_path / "theirs", memory]

    def come_and_go() -> None:
        others = threading.enumerate()
        settings = [ModelSettings(name=f"m{at}", store=store) for at, store in enumerate(stores)]
        models = LocalMaker(poll_seconds=60.0, state=None).make(settings, {})
        followers = followers_of(models.values())
        for follower in followers:
            follower.start()
        eventually(
            lambda: all(serving(one) for one in followers[:-1]), lambda: str([one.status() for one in followers])
        )
        removed(models, others)

    come_and_go()  # what is shared by all, such as the observer of folders, is there from now on
    before = descriptors()
    for _ in range(3):
        come_and_go()
    assert len(descriptors()) == len(before)


@pytest.mark.usefixtures("uncollected")
def test_versions_that_cannot_be_restored_leave_nothing_open(memory: Path, tmp_path: Path) -> None:
    writer = Publisher(memory / "ours")
    for number in (1, 2, 3):
        writer.publish_corrupt(number)
    writer.close()
    saved_by_v1(tmp_path / "theirs" / "1", 1.0)
    data = next((tmp_path / "theirs" / "1" / "variables").glob("*.data-*"))
    data.write_bytes(b"\xff" * data.stat().st_size)
    before = descriptors()
    ours, theirs = follower_of(memory / "ours"), follower_of(tmp_path / "theirs")
    for _ in range(3):
        ours.run_once()
        theirs.run_once()
    assert (quarantined(ours), serving(theirs)) == ([1, 2, 3], None)
    for one in (ours, theirs):
        one.close()
        one.release()
    assert len(descriptors()) == len(before)


def test_a_version_that_no_request_holds_is_kept_by_nothing_that_knows_its_pages(publisher: Publisher) -> None:
    replica = Replica("m", publisher.path, verification="checksums")
    replica.swap(replica.restore(publisher.publish(1)))
    replica.tend()
    assert resident(publisher.path) >= PARAMETERS * 64 * 32 * 4
    replica.release()
    replica.tend()
    assert (replica.leaving, resident(publisher.path)) == ((), 0)
