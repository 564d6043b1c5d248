"""What a publisher to a bucket does when another one runs, when it was killed, or when it may not delete."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from paramsync.errors import RemoteError
from paramsync.remote import child, protocol, state, upload
from paramsync.remote.bucket import Bucket
from paramsync.remote.collect import list_orphans
from paramsync.remote.outgoing import Outgoing
from paramsync.remote.protocol import Answer, Delete
from paramsync.store.store import Store
from tests.support.mirrors import Pair, current_state, same
from tests.support.programs import ROOT, bounded

ADDRESS = "s3://bucket/models/m"


@pytest.fixture
def memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(child, "_MEMORY", tmp_path)
    return tmp_path


def test_the_store_of_a_publisher_that_was_killed_with_its_mirror_is_removed_at_the_next_start(memory: Path) -> None:
    code = f"""
import os, signal
from pathlib import Path
from paramsync.remote import child
from paramsync.remote.outgoing import Outgoing
child._MEMORY = Path({str(memory)!r})
print(Outgoing({ADDRESS!r}, keep=5).path, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""
    killed = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert killed.returncode == -signal.SIGKILL
    left = Path(killed.stdout.strip())
    assert left.is_dir()
    living = Outgoing(ADDRESS, keep=5)
    assert not left.exists()
    kept = memory / "paramsync-kept-1"
    kept.mkdir()
    other = Outgoing(ADDRESS, keep=5)
    assert sorted(memory.iterdir()) == sorted([living.path, other.path, kept])
    for publisher in (living, other):
        publisher.close()
    assert [*memory.iterdir()] == [kept]


def test_the_store_of_a_publisher_stays_while_its_mirror_runs(memory: Path) -> None:
    first = Outgoing(ADDRESS, keep=5)
    command = [sys.executable, "-c", "input()"]
    with bounded(subprocess.Popen(command, stdin=subprocess.PIPE, pass_fds=[first._lock])):
        os.close(first._lock)
        second = Outgoing(ADDRESS, keep=5)
        assert first.path.exists()
    third = Outgoing(ADDRESS, keep=5)
    assert not first.path.exists()
    for publisher in (second, third):
        publisher.close()


def test_versions_come_though_the_publisher_may_not_delete(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(upload, "MOST_CONDEMNED", 4)
    now, answer = [0.0], pair.bucket.answer
    pair.upload = pair.publisher(clock=lambda: now[0])

    def refuse(operation: protocol.Operation) -> protocol.Answered:
        if isinstance(operation, Delete):
            raise RemoteError("access is denied")
        return answer(operation)

    monkeypatch.setattr(pair.bucket, "answer", refuse)
    refusals = 0
    for step in range(1, 12):
        now[0] += upload.GRACE
        pair.publish(step, changed=50_000)
        for _ in range(3):
            try:
                pair.upload.run_once()
            except RemoteError:
                refusals += 1
        assert len(current_state(pair).condemned) <= 4 + 6
        pair.download.run_once()
        same(pair.source, pair.target)
    assert refusals > 5


def test_a_bucket_that_goes_away_between_two_steps_is_told(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("paramsync.remote.bucket._FIRST_WAIT", 0.0)
    pair.publish(1)
    pair.upload.run_once()
    pair.publish(2)
    with monkeypatch.context() as patch:
        patch.setattr(pair.bucket, "answer", lambda operation: Answer.UNKNOWN)
        with pytest.raises(ConnectionError):
            pair.upload.run_once()
    pair.upload.run_once()
    pair.download.run_once()
    same(pair.source, pair.target)


def test_many_unknown_answers_between_good_ones_are_waited_for_ever_longer(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As when a server allows one write of an object a second, and says 429 to the others."""
    pair.upload.start()
    answer = pair.bucket.answer
    waits: list[float] = []
    monkeypatch.setattr(
        pair.bucket, "answer", lambda operation: answer(operation) if operation == protocol.Read() else Answer.UNKNOWN
    )
    monkeypatch.setattr(pair.stop, "wait", waits.append)
    with pytest.raises(ConnectionError):
        pair.bucket.perform(protocol.choose(lambda state: {"pinned": 1}, "a" * 32), pair.stop)
    assert len(waits) == 8
    assert waits[-1] > 8 * waits[0]


def test_the_store_of_a_publisher_whose_bucket_is_older_is_committed_again(pair: Pair) -> None:
    for step in (1, 2):
        pair.publish(step)
        pair.upload.run_once()
    old = pair.bucket.get(state.NAME, 1 << 20)
    pair.publish(3)
    pair.upload.run_once()
    pair.download.run_once()
    pair.bucket.put(state.NAME, old)
    with pytest.raises(RemoteError, match="brought an older state back"):
        pair.download.run_once()
    pair.publish(4)
    pair.upload.run_once()
    assert [version.number for version in current_state(pair).versions] == [2, 3, 4]
    pair.download.run_once()
    same(pair.source, pair.target)


def test_the_address_of_a_publisher_is_read_before_anything_is_made(memory: Path) -> None:
    with pytest.raises(Exception, match="without another query"):
        Outgoing("s3://bucket/m?key=secret", keep=5)
    assert [*memory.iterdir()] == []
    assert Bucket(ADDRESS).address == ADDRESS


class Killed(BaseException):
    """Ends a publisher as SIGKILL does: all its later requests end so, too."""


class Kill:
    """Kills a publisher at its request number `at`, before or after the bucket has done the request."""

    def __init__(self, bucket: Bucket, at: int, *, is_done: bool) -> None:
        self.requests = 0
        self.killed = ""  # the kind and number of the object in the request that killed, if it was an object of data
        self._at, self._is_done = at, is_done
        self._lock = threading.Lock()
        for name in ("put", "answer"):  # what a publisher writes, and each step of the protocol
            setattr(bucket, name, partial(self._request, getattr(bucket, name)))

    def _request(self, request: Callable[..., Any], *arguments: Any) -> Any:
        with self._lock:
            self.requests += 1
            if self.requests < self._at:
                return request(*arguments)
            if self.requests == self._at:
                if isinstance(arguments[0], str):
                    self.killed = f"{arguments[0].partition('/')[0]} {arguments[0].rpartition('-')[2]}"
                if self._is_done:
                    request(*arguments)
            raise Killed


@pytest.mark.parametrize("is_done", [False, True])
def test_a_publisher_that_is_killed_at_any_request_loses_nothing_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_done: bool
) -> None:
    monkeypatch.setattr(upload, "_KEPT", 1)  # each delta is followed by a whole version, which nobody waits for
    monkeypatch.setattr(upload, "GRACE", 0.0)
    killed = set()
    for at in count(1):
        pair = Pair(tmp_path / str(at), size=10_000)
        bucket = Bucket(pair.bucket.address, store=pair.objects)
        kill = Kill(bucket, at, is_done=is_done)
        pair.upload = pair.publisher(bucket)
        with suppress(Killed):
            for step in (1, 2, 3):
                pair.publish(step)
                pair.upload.run_once()
                assert pair.upload.run_once() is None
                pair.download.run_once()
        killed.add(kill.killed)
        pair.upload = pair.publisher()
        for step in (4, 5, 6):
            pair.publish(step)
            pair.upload.run_once()
            pair.upload.run_once()
        for follower in (pair.download, pair.follower("new")):
            follower.run_once()
            follower.close()
        same(pair.source, pair.target)
        same(pair.source, Store(pair.folder / "new"))
        current = current_state(pair)
        assert current.live <= pair.names()
        assert list_orphans(pair.bucket, current) == frozenset()
        pair.close()
        if kill.requests < at:
            break
    assert killed >= {"deltas 2", "data 2"}  # the whole version 2 is sent after version 2 was committed as a delta
