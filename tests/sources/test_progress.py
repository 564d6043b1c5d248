"""Whoever waits for a restore can see how far it is."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from paramsync.following.follower import Follower
from paramsync.following.replica import Replica
from paramsync.following.report import MOST_UNREAD, Subscription
from paramsync.inference.resident import Resident
from paramsync.sources.opening import open_source
from paramsync.sources.source import Progress, ProgressCallback, Source
from paramsync.status import EVERY_KIND, Event, EventKind, Status
from paramsync.version import Version
from tests.support.followers import LONG, SILENT
from tests.support.published import PARAMETERS, Publisher

BYTES = 64 * 32 * 4


class Gated(Source[Resident]):
    """A source whose restores go on step by step, when they are told to."""

    def __init__(self, path: Path) -> None:
        super().__init__(path, open_source(path).restores)
        self.reached = threading.Semaphore(0)
        self.go_on = threading.Semaphore(0)

    def restore(self, version: Version, tell: ProgressCallback | None = None) -> Resident:
        def told(progress: Progress) -> None:
            assert tell is not None
            tell(progress)
            if progress.phase == "warming":
                return
            self.reached.release()
            assert self.go_on.acquire(timeout=LONG)

        return super().restore(version, told)


def test_the_status_says_how_far_a_restore_is(publisher: Publisher) -> None:
    publisher.publish(1)
    source = Gated(publisher.path)
    follower = Follower(Replica("m", source))
    assert follower.status().restoring_progress is None
    follower.start(SILENT)
    found: list[Progress] = []

    def at_a_gate() -> Status:
        assert source.reached.acquire(timeout=LONG)
        status = follower.status()
        source.go_on.release()
        return status

    while not found or found[-1].bytes_done < PARAMETERS * BYTES:
        status = at_a_gate()
        assert status.restoring == 1
        assert status.restoring_progress is not None
        found.append(status.restoring_progress)
    assert [one.phase for one in found] == ["mapping"] + ["verifying"] * (len(found) - 1)
    last = found[-1]
    assert (last.bytes_done, last.bytes_total) == (PARAMETERS * BYTES, PARAMETERS * BYTES)
    assert (last.variables_done, last.variables_total) == (PARAMETERS, PARAMETERS)
    follower.sync(timeout=LONG)
    assert (follower.status().restoring, follower.status().restoring_progress) == (None, None)
    follower.close()


def test_a_short_restore_tells_its_progress_once_when_it_is_done(
    follower: Follower, publisher: Publisher, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("paramsync.following.report._BETWEEN", 1e9)
    publisher.publish(1)
    follower.run_once()
    events = follower.subscribe(lambda: None)
    publisher.publish(2)
    follower.run_once()
    found = {one.kind: one for one in events.take()}
    assert list(found) == [EventKind.FOUND, EventKind.RESTORING, EventKind.RESTORED, EventKind.SWAPPED]
    assert found[EventKind.RESTORING].progress is None
    assert found[EventKind.RESTORED].progress == Progress(
        "verifying",
        bytes_done=PARAMETERS * BYTES,
        bytes_total=PARAMETERS * BYTES,
        variables_done=PARAMETERS,
        variables_total=PARAMETERS,
    )
    assert found[EventKind.RESTORED].restore_seconds > 0.0


def test_progress_is_left_out_before_a_subscriber_falls_behind() -> None:
    member = Subscription(lambda: None, lambda _: None, EVERY_KIND)
    version = Version(number=1, step=1, prefix="ckpt-1", step_done_at=0.0, snapshot_at=0.0)
    for _ in range(MOST_UNREAD * 4):
        progress = Progress("verifying")
        member.put(Event(kind=EventKind.RESTORING, model="m", version=version, at=0.0, progress=progress))
    member.put(Event(kind=EventKind.SWAPPED, model="m", version=version, at=0.0))
    assert not member.fell_behind
    assert member.take()[-1].kind is EventKind.SWAPPED
