"""A follower keeps its replica at the right version, and reports lag, ages, swaps and its publisher's death."""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from paramsync.following.follower import Follower
from paramsync.following.operator_requests import Action
from paramsync.following.policy import Failures, Publications
from paramsync.following.replica import Replica
from paramsync.following.report import MOST_UNREAD, Report, SwapLog
from paramsync.status import EVERY_KIND, EventKind, State, Status
from paramsync.store.store import LastPublisher, PublisherState, record_file
from paramsync.version import Candidate, Version
from tests.support.followers import milestones, quarantined, saver_follower, serving
from tests.support.published import Doubled, Publisher, saver_store


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


def listed(*numbers: int, counted: bool = False) -> list[Version]:
    base = Version(number=0, step=0, prefix="", step_done_at=0.0, snapshot_at=0.0)
    return [
        replace(base, number=number, committed_at=100.0 + number, publications=2 * number if counted else 0)
        for number in numbers
    ]


def lag(publications: Publications, serving: int | None) -> tuple[int | None, int]:
    oldest, count = publications.newer(serving)
    return None if oldest is None else oldest.number, count


def test_the_first_newer_version_is_remembered_after_the_store_dropped_it() -> None:
    publications = Publications()
    for newest in range(1, 25):
        publications.update(listed(*range(max(1, newest - 4), newest + 1)), [1], float(newest))
    assert lag(publications, 1) == (2, 23)
    assert lag(publications, 22) == (23, 2)
    assert lag(publications, 24) == (None, 0)


def test_versions_that_nobody_here_saw_are_counted_where_the_store_counts_them() -> None:
    publications = Publications()
    publications.update(listed(1, 2, counted=True), [1], 0.0)
    publications.update(listed(50, 51, counted=True), [1], 0.0)
    assert lag(publications, 1) == (2, 100)


def test_while_nothing_serves_the_first_one_found_counts() -> None:
    publications = Publications()
    for newest in range(5, 30):
        publications.update(listed(*range(newest - 4, newest + 1)), [], float(newest))
    assert lag(publications, None) == (1, 29)


def test_all_is_newer_once_the_store_started_over() -> None:
    publications = Publications()
    publications.update(listed(90, 100), [100], 0.0)
    assert lag(publications, 100) == (None, 0)
    publications.update(listed(3, 5), [100], 1.0)
    assert lag(publications, 100) == (3, 2)
    assert lag(publications, 5) == (None, 0)


def long_ago(publisher: Publisher, version: Version, *, seconds: float) -> None:
    assert version.committed_at is not None
    record = replace(version, committed_at=version.committed_at - seconds)
    record_file(publisher.path, version.prefix).write_text(record.to_json())


@pytest.mark.parametrize("why", ["pinned", "quarantined"])
def test_the_lag_goes_on_while_newer_versions_come_and_none_serves(publisher: Publisher, why: str) -> None:
    follower = Follower(Replica("m", publisher.path))
    publisher.publish(1)
    follower.run_once()
    if why == "pinned":
        follower.ask(Action.PIN, 1)
        follower.run_once()
    publish = publisher.publish if why == "pinned" else publisher.publish_bad
    long_ago(publisher, publish(2), seconds=135)
    follower.run_once()
    for step in range(3, 26):
        publish(step)
        follower.run_once()
    status = follower.status()
    assert (serving(follower), status.lag_versions, status.lag_steps) == (1, 24, 24)
    assert status.lag_seconds is not None
    assert status.since_publication_seconds is not None
    assert status.lag_seconds - status.since_publication_seconds >= 135
    assert len(status.in_store) == 5
    assert (quarantined(follower) == []) is (why == "pinned")
    follower.ask(Action.UNPIN)
    publisher.publish(26)
    follower.run_once()
    status = follower.status()
    assert (serving(follower), status.lag_seconds, status.lag_versions) == (26, 0.0, 0)


def test_a_swap_is_logged_at_once_and_many_are_summed_up(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "paramsync.follower")
    now = [100.0]
    log = SwapLog("m", clock=lambda: now[0])
    log.add(1, 0.002)
    log.flush()
    for number in range(2, 40):
        now[0] += 0.2
        log.add(number, 0.003)
        log.flush()
    assert caplog.messages == ["m: version 1 serves, after 2.0 ms"]
    now[0] += 3.0
    log.flush()  # the last of them is told although no other swap comes
    assert caplog.messages[1:] == ["m: version 39 serves, the last of 38 swaps in 11 s, each after 3.0 ms (median)"]
    log.flush()
    now[0] += 60.0
    log.flush()
    log.add(40, 0.004)
    log.flush()
    assert caplog.messages[2:] == ["m: version 40 serves, after 4.0 ms"]
    known = [(vars(record)["model"], vars(record)["version"]) for record in caplog.records]  # fields, in JSON
    assert known == [("m", 1), ("m", 39), ("m", 40)]


def test_swaps_before_the_first_line_are_summed_up_since_the_log_was_made(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "paramsync.follower")
    now = [100.0]
    log = SwapLog("m", clock=lambda: now[0])
    for number in (1, 2):  # while the model is on trial, nothing is logged
        now[0] += 3.0
        log.add(number, 0.002)
    log.flush()
    assert caplog.messages == ["m: version 2 serves, the last of 2 swaps in 6 s, each after 2.0 ms (median)"]


def test_trouble_that_differs_by_its_version_alone_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    report = Report("m", Path("store"), pinned=None, clock=lambda: 0.0)
    for number in (1, 1, 2, 2, 3):
        report.set_error(f"version {number} is tried again: Cannot allocate memory")
    assert report.now().reason == "version 3 is tried again: Cannot allocate memory"
    report.set_error("")
    report.set_error("version 4 is tried again: Cannot allocate memory")
    assert caplog.messages == [f"m: version {number} is tried again: Cannot allocate memory" for number in (1, 4)]


@pytest.mark.parametrize(
    ("before", "expected"),
    [
        (None, 40.0),  # it was dead at the first look: since its latest version
        (LastPublisher(PublisherState.TRAINING, 10.0, 10.0), 100.0),  # it lived at the look before
        (LastPublisher(PublisherState.FINISHED, 30.0, 5.0), 40.0),
    ],
)
def test_a_publisher_died_since_its_last_sign_of_life(before: LastPublisher | None, expected: float) -> None:
    report = Report("m", Path("store"), pinned=None, clock=lambda: 100.0)
    latest = Version(number=1, step=1, prefix="ckpt-1", step_done_at=1.0, snapshot_at=1.0, committed_at=40.0)
    report.set_published(latest, [latest])
    if before is not None:
        report.set_publisher(before)
    report.set_publisher(LastPublisher(PublisherState.DIED, 10.0, 10.0))
    for _ in range(2):
        report.set_publisher(LastPublisher(PublisherState.DIED, 10.0, 10.0))
        publisher = report.now().publisher
        assert publisher is not None
        assert publisher.since == expected


PUBLISHED = Version(number=7, step=7, prefix="ckpt-7", step_done_at=100.0, snapshot_at=100.1, committed_at=101.0)
SERVING = replace(PUBLISHED, number=5, step_done_at=90.0, committed_at=91.0)


@pytest.mark.parametrize(
    ("published", "serving", "now", "served_for", "since", "age"),
    [
        (PUBLISHED, PUBLISHED, 161.0, 0.0, 60.0, 61.0),
        (PUBLISHED, SERVING, 161.0, 0.0, 60.0, 71.0),
        (PUBLISHED, None, 161.0, 0.0, 60.0, None),
        (None, SERVING, 161.0, 0.0, None, 71.0),
        (None, None, 161.0, 0.0, None, None),
        (PUBLISHED, SERVING, 3.0, 8.0, 4.0, 8.0),  # the clock was set back
    ],
)
def test_ages_go_on_while_nothing_new_is_published(
    published: Version | None, serving: Version | None, now: float, served_for: float, since: float, age: float
) -> None:
    status = Status(model="m", store=Path("m"), published=published, serving=serving, state=State.SERVING)
    found = replace(status, found_at=1000.0, served_at=1004.0 - served_for).at(now, monotonic=1004.0)
    assert (found.since_publication_seconds, found.serving_age_seconds) == (since, age)
