"""A follower keeps its replica at the right version and reports its state."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from paramsync.following.follower import Follower
from paramsync.following.policy import Failures
from paramsync.following.report import MOST_UNREAD
from paramsync.status import EVERY_KIND, EventKind, State
from paramsync.version import Candidate, Version
from tests.support.followers import milestones, quarantined, saver_follower, serving
from tests.support.published import Doubled, Publisher, ask, proven, saver_store


def test_the_newest_version_is_served_and_reported(follower: Follower, publisher: Publisher) -> None:
    for step in (1, 2, 3):
        publisher.publish(step)
    swapped = follower.run_once()
    assert swapped is not None
    assert swapped.number == 3
    status = follower.status()
    assert (status.state, status.serving, status.resident, status.swaps) == (State.SERVING, swapped, (3,), 1)
    assert (status.lag_seconds, status.lag_steps) == (0.0, 0)
    assert status.restore_seconds is not None
    assert proven(*ask(follower))


def test_a_new_graph_is_swapped_together_with_its_parameters(follower: Follower, publisher: Publisher) -> None:
    publisher.publish(1)
    follower.run_once()
    publisher.publish(2, kind=Doubled)
    follower.run_once()
    outputs, version = follower.replica.predict({"x": np.ones([1, 2], np.float32)})
    assert set(outputs) == {"seen", "doubled"}
    assert version.number == 2


def test_events_tell_what_happened_in_order(follower: Follower, publisher: Publisher) -> None:
    events = follower.subscribe(lambda: None)
    publisher.publish(1)
    follower.run_once()
    publisher.publish_corrupt(2)
    follower.run_once()
    found = [(event.kind, event.version.number) for event in milestones(events)]
    assert found == [
        (EventKind.FOUND, 1),
        (EventKind.RESTORING, 1),
        (EventKind.RESTORED, 1),
        (EventKind.SWAPPED, 1),
        (EventKind.FOUND, 2),
        (EventKind.RESTORING, 2),
        (EventKind.QUARANTINED, 2),
    ]
    events.close()
    publisher.publish(3)
    follower.run_once()
    assert events.take() == []


def test_a_subscriber_that_falls_behind_has_every_event_up_to_there(follower: Follower, publisher: Publisher) -> None:
    publisher.publish(1)
    follower.run_once()
    events = follower.subscribe(lambda: None, EVERY_KIND - {EventKind.RESTORING})  # progress comes as it likes
    for step in range(2, 103):
        assert events.fell_behind == (3 * (step - 2) > MOST_UNREAD)
        publisher.publish(step)
        follower.run_once()
    taken = events.take()
    assert len(taken) == MOST_UNREAD
    assert [event.version.number for event in taken] == [2 + at // 3 for at in range(MOST_UNREAD)]
    publisher.publish(103)
    follower.run_once()
    assert events.take() == []


def test_a_graph_still_being_written_is_waited_for_and_then_a_fault(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "m"
    path.mkdir()
    saver_store(path, 1)
    meta = path / "model-1.meta"
    content = meta.read_bytes()
    follower = saver_follower(path)
    meta.unlink()
    for part in (None, b"", content[:100]):
        if part is not None:
            meta.write_bytes(part)
        follower.run_once()
        assert (serving(follower), quarantined(follower)) == (None, [])
    monkeypatch.setattr("paramsync.following.policy.UNFINISHED_SECONDS", 0.0)
    follower.run_once()
    assert "not a readable meta graph" in follower.status().quarantined[0].reason
    meta.unlink()
    follower.run_once()
    reason = follower.status().quarantined[0].reason
    assert f"needs the graph file {meta}, which is not there: have Saver.save write it" in reason
    meta.write_bytes(content)
    follower.run_once()
    assert (serving(follower), quarantined(follower)) == (1, [])


def test_patience_doubles_and_ends_and_begins_again_with_other_files() -> None:
    patience = Failures()
    one = Candidate(Version(number=1, step=1, prefix="model-1", step_done_at=0.0, snapshot_at=0.0), "files")
    assert [patience.incomplete(one, now) for now in (10.0, 10.05, 10.1, 11.0, 12.0)] == pytest.approx(
        [0.05, 0.05, 0.1, 1.0, None]
    )
    assert patience.incomplete(Candidate(one.version, "others"), 13.0) == 0.05
