"""What a publisher to a bucket does when another one runs, when it was killed, or when it may not delete."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from paramsync.errors import RemoteError
from paramsync.remote import child, protocol, state, upload
from paramsync.remote.bucket import Bucket
from paramsync.remote.outgoing import Outgoing
from paramsync.remote.protocol import Answer, Delete
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
