"""What the lock of a store says of its last publisher: training, finished or died."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from paramsync.errors import StoreLockedError
from paramsync.following.follower import Follower
from paramsync.following.replica import Replica
from paramsync.store.commit import StoreWriter
from paramsync.store.store import PublisherState, last_publisher
from tests.support.programs import ROOT
from tests.support.published import Publisher

DIES = "import sys, pathlib; from paramsync.store.commit import StoreWriter as W; w = W(pathlib.Path(sys.argv[1]))"


def state(store: Path) -> PublisherState | None:
    found = last_publisher(store)
    return None if found is None else found.state


def killed(store: Path) -> None:
    """A publisher that is killed once it has the lock."""
    script = f"{DIES}; import os, signal; os.kill(os.getpid(), signal.SIGKILL)"
    assert subprocess.run([sys.executable, "-c", script, store], cwd=ROOT, check=False).returncode == -9


def test_a_publisher_trains_until_it_closes(tmp_path: Path) -> None:
    began = time.time()
    with StoreWriter(tmp_path):
        found = last_publisher(tmp_path)
        assert found is not None
        assert (found.state, began <= found.since <= time.time()) == (PublisherState.TRAINING, True)
    ended = last_publisher(tmp_path)
    assert ended is not None
    assert (ended.state, found.since <= ended.since <= time.time()) == (PublisherState.FINISHED, True)
    with StoreWriter(tmp_path):
        assert state(tmp_path) is PublisherState.TRAINING


def test_one_that_ends_while_somebody_looks_never_died(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    writer, flock = StoreWriter(tmp_path), fcntl.flock

    def ends_first(descriptor: int, operation: int) -> None:
        if operation & fcntl.LOCK_SH:
            writer.close()
        flock(descriptor, operation)

    monkeypatch.setattr(fcntl, "flock", ends_first)
    assert state(tmp_path) is PublisherState.FINISHED


def test_one_that_is_killed_died(tmp_path: Path) -> None:
    killed(tmp_path)
    assert state(tmp_path) is PublisherState.DIED


@pytest.mark.parametrize(
    ("error", "becomes"), [(ValueError, PublisherState.DIED), (KeyboardInterrupt, PublisherState.FINISHED)]
)
def test_one_that_fails_died_and_one_that_is_stopped_finished(
    tmp_path: Path, error: type[BaseException], becomes: PublisherState
) -> None:
    with pytest.raises(error), StoreWriter(tmp_path):
        raise error
    assert state(tmp_path) is becomes


def test_a_copy_of_a_store_says_nothing(tmp_path: Path) -> None:
    with StoreWriter(tmp_path / "m"):
        shutil.copytree(tmp_path / "m", tmp_path / "copy")
    assert state(tmp_path / "copy") is None
    assert state(tmp_path / "nowhere") is None


@pytest.mark.parametrize(
    "content", ["", "[1]", "{}", '{"pid": 1, "host": "h", "inode": "x", "ended": 1e300, "since": []}']
)
def test_a_lock_of_anybody_says_nothing(tmp_path: Path, content: str) -> None:
    (tmp_path / "publisher.lock").write_text(content)
    assert state(tmp_path) is None


def test_a_reader_that_has_the_lock_for_a_moment_keeps_no_publisher_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    StoreWriter(tmp_path).close()
    reader, flock = os.open(tmp_path / "publisher.lock", os.O_RDONLY), fcntl.flock
    flock(reader, fcntl.LOCK_SH)

    def let_go_first(descriptor: int, operation: int) -> None:
        if operation & fcntl.LOCK_SH:  # the publisher found the lock taken, and asks whether a publisher has it
            flock(reader, fcntl.LOCK_UN)
        flock(descriptor, operation)

    monkeypatch.setattr(fcntl, "flock", let_go_first)
    StoreWriter(tmp_path).close()
    os.close(reader)


def test_a_reader_that_keeps_the_lock_is_not_waited_for_for_ever(tmp_path: Path) -> None:
    StoreWriter(tmp_path).close()
    reader = os.open(tmp_path / "publisher.lock", os.O_RDONLY)
    fcntl.flock(reader, fcntl.LOCK_SH)
    with pytest.raises(StoreLockedError):
        StoreWriter(tmp_path)
    os.close(reader)
    StoreWriter(tmp_path).close()


def test_a_follower_says_since_when_its_publisher_is_dead(publisher: Publisher) -> None:
    now = [1_000.0]
    follower = Follower(Replica("m", publisher.path), clock=lambda: now[0])
    version = publisher.publish(1)
    publisher.close()
    killed(publisher.path)
    follower.run_once()
    found = follower.status().publisher
    assert found is not None
    assert (found.state, found.since >= (version.committed_at or 0)) == (
        PublisherState.DIED,
        True,
    )  # nobody saw it live
    with StoreWriter(publisher.path) as writer:
        follower.run_once()
        assert (follower.status().publisher or found).state is PublisherState.TRAINING
        writer.close(finished=False)
    now[0] = 2_000.0
    for _ in range(2):
        follower.run_once()
        found = follower.status().publisher
        assert found is not None
        assert (found.state, found.since) == (PublisherState.DIED, 2_000.0)
        now[0] = 3_000.0
