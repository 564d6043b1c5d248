"""A follower keeps its replica at the right version, says how it is, and never dies of what it finds."""

from __future__ import annotations

import shutil
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future
from pathlib import Path

import numpy as np
import pytest

from inferencer.events import MOST_UNREAD, EventKind
from inferencer.follower import Follower
from inferencer.patience import Patience
from inferencer.policy import Candidate
from inferencer.replica import Replica
from inferencer.status import State, Status
from inferencer.watch import Watch
from inferencer.wishes import Action, Wishes
from paramsync.errors import NotServingError, SyncError, UnknownVersionError
from paramsync.store import Store
from paramsync.version import Version
from tests.programs import eventually
from tests.published import Doubled, Publisher, ask, captured, follower_of, proven, saver_store, values

LONG = 30.0  # seconds; a test that waits this long has failed


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "parent" / "store"


@pytest.fixture
def publisher(path: Path) -> Iterator[Publisher]:
    publisher = Publisher(path)
    yield publisher
    publisher.close()


@pytest.fixture
def follower(path: Path) -> Iterator[Follower]:
    follower = follower_of(path)
    yield follower
    follower.close()


def serving(follower: Follower) -> int | None:
    version = follower.status().serving
    return None if version is None else version.number


def quarantined(follower: Follower) -> list[int]:
    return [one.number for one in follower.status().quarantined]


# One look -------------------------------------------------------------------------------------------------------------


def test_a_missing_store_is_waited_for(follower: Follower) -> None:
    assert follower.run_once() is None
    status = follower.status()
    assert (status.state, status.last_error, status.published) == (State.WAITING, None, None)


def test_an_empty_store_is_waited_for(follower: Follower, publisher: Publisher) -> None:
    assert follower.run_once() is None
    assert follower.status().state is State.WAITING


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


def test_a_second_look_changes_nothing(follower: Follower, publisher: Publisher) -> None:
    publisher.publish(1)
    follower.run_once()
    assert follower.run_once() is None
    assert follower.status().swaps == 1


def test_a_corrupt_newest_version_is_quarantined_and_the_next_good_one_is_served(
    follower: Follower, publisher: Publisher
) -> None:
    publisher.publish(1)
    follower.run_once()
    publisher.publish_corrupt(2)
    assert follower.run_once() is None
    status = follower.status()
    assert (serving(follower), quarantined(follower), status.last_error) == (1, [2], None)
    assert "ckpt-2" in status.quarantined[0].reason
    assert status.lag_steps == 1
    publisher.publish(3)
    assert follower.run_once() is not None
    assert proven(*ask(follower))
    assert serving(follower) == 3


def test_a_start_with_a_corrupt_newest_version_serves_the_newest_good_one(
    follower: Follower, publisher: Publisher
) -> None:
    publisher.publish(1)
    publisher.publish(2)
    publisher.publish_corrupt(3)
    publisher.publish_corrupt(4)
    swapped = follower.run_once()
    assert swapped is not None
    assert swapped.number == 2
    assert quarantined(follower) == [3, 4]


def test_a_quarantined_version_is_not_tried_again_until_it_is_mended(follower: Follower, publisher: Publisher) -> None:
    version = publisher.publish_corrupt(1)
    events = follower.subscribe(lambda: None)
    follower.run_once()
    follower.run_once()
    assert [one.kind for one in events.take()] == [EventKind.FOUND, EventKind.RESTORING, EventKind.QUARANTINED]
    publisher.flip(version)  # back again
    follower.run_once()
    assert (serving(follower), quarantined(follower)) == (1, [])


def test_a_version_with_values_that_are_not_finite_is_quarantined(follower: Follower, publisher: Publisher) -> None:
    publisher.publish(1, tensors=values(np.nan, captured()))
    follower.run_once()
    assert "NaN or infinity" in follower.status().quarantined[0].reason


def test_a_quarantined_version_that_was_pruned_is_forgotten(follower: Follower, publisher: Publisher) -> None:
    publisher.publish_corrupt(1)
    follower.run_once()
    for step in range(2, 8):
        publisher.publish(step)
    follower.run_once()
    assert quarantined(follower) == []


def test_a_new_graph_is_swapped_together_with_its_parameters(follower: Follower, publisher: Publisher) -> None:
    publisher.publish(1)
    follower.run_once()
    publisher.publish(2, kind=Doubled)
    follower.run_once()
    outputs, version = follower.replica.predict({"x": np.ones([1, 2], np.float32)})
    assert set(outputs) == {"seen", "doubled"}
    assert version.number == 2


def test_a_version_whose_graph_is_lost_is_served_once_it_is_back(follower: Follower, publisher: Publisher) -> None:
    version = publisher.publish(1)
    (publisher.path / f"graph-{version.graph}.pb").unlink()
    follower.run_once()
    assert quarantined(follower) == [1]
    (publisher.path / f"graph-{version.graph}.pb").write_bytes(captured().graph.to_bytes())
    follower.run_once()
    assert serving(follower) == 1


def test_a_broken_checkpoint_file_is_an_error_that_changes_nothing_else(
    follower: Follower, publisher: Publisher
) -> None:
    publisher.publish(1)
    follower.run_once()
    good = (publisher.path / "checkpoint").read_text()
    (publisher.path / "checkpoint").write_text("garbage {{{")
    assert follower.run_once() is None
    status = follower.status()
    assert status.last_error is not None
    assert "checkpoint" in status.last_error
    assert (status.state, serving(follower)) == (State.SERVING, 1)
    assert proven(*ask(follower))
    (publisher.path / "checkpoint").write_text(good)
    follower.run_once()
    assert follower.status().last_error is None


def test_a_newest_version_without_its_index_does_not_hide_older_ones(follower: Follower, publisher: Publisher) -> None:
    publisher.publish(1)
    publisher.publish(2)
    (publisher.path / "ckpt-2.index").unlink()
    follower.run_once()
    assert serving(follower) == 1
    assert follower.status().last_error is not None


def test_a_store_that_becomes_a_file_is_an_error_and_can_come_back(follower: Follower, path: Path) -> None:
    path.parent.mkdir()
    path.write_text("not a store")
    follower.run_once()
    assert "expected a directory" in str(follower.status().last_error)
    path.unlink()
    publisher = Publisher(path)
    publisher.publish(1)
    follower.run_once()
    assert (serving(follower), follower.status().last_error) == (1, None)
    publisher.close()


def test_a_store_that_vanishes_leaves_what_serves_and_is_followed_when_it_starts_over(
    follower: Follower, path: Path
) -> None:
    first = Publisher(path)
    first.publish(900)
    follower.run_once()
    first.close()
    shutil.rmtree(path)
    follower.run_once()
    assert (serving(follower), follower.status().published) == (900, None)
    assert proven(*ask(follower))
    second = Publisher(path)
    second.publish(1)
    follower.run_once()
    assert serving(follower) == 1
    assert proven(*ask(follower))
    second.close()


def test_a_data_file_that_became_a_link_to_itself_is_a_fault_of_its_version_alone(
    follower: Follower, publisher: Publisher, path: Path
) -> None:
    for step in (1, 2):
        publisher.publish(step)
    data = path / "ckpt-2.data-00000-of-00001"
    data.unlink()
    data.symlink_to(data)
    follower.run_once()
    assert (serving(follower), quarantined(follower), follower.status().last_error) == (1, [2], None)
    publisher.publish(3)
    follower.run_once()
    assert (serving(follower), follower.status().last_error) == (3, None)


def test_a_rewritten_serving_version_is_restored_again(follower: Follower, path: Path) -> None:
    for total in (1.0, 2.0):  # two lives of a store, with the same number
        publisher = Publisher(path)
        publisher.publish(5, tensors=values(total, captured()))
        follower.run_once()
        publisher.close()
        shutil.rmtree(path)
    assert ask(follower) == ([2.0] * 6, 5)


def test_events_tell_what_happened_in_order(follower: Follower, publisher: Publisher) -> None:
    events = follower.subscribe(lambda: None)
    publisher.publish(1)
    follower.run_once()
    publisher.publish_corrupt(2)
    follower.run_once()
    found = [(one.kind, one.version.number) for one in events.take()]
    assert found == [
        (EventKind.FOUND, 1),
        (EventKind.RESTORING, 1),
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
    events = follower.subscribe(lambda: None)
    for step in range(1, 102):
        assert events.fell_behind == (3 * (step - 1) > MOST_UNREAD)
        publisher.publish(step)
        follower.run_once()
    taken = events.take()
    assert len(taken) == MOST_UNREAD
    assert [one.version.number for one in taken] == [1 + at // 3 for at in range(MOST_UNREAD)]
    publisher.publish(102)
    follower.run_once()
    assert events.take() == []


# What operators ask ---------------------------------------------------------------------------------------------------


@pytest.fixture
def working(follower: Follower) -> Follower:
    """With its worker, and no watch: it looks when it is asked to."""
    follower.start()
    return follower


def test_sync_returns_once_the_newest_version_serves(working: Follower, publisher: Publisher) -> None:
    publisher.publish(1)
    publisher.publish(2)
    status = working.sync(timeout=LONG)
    assert status.serving is not None
    assert status.serving.number == 2
    assert working.sync(timeout=LONG).swaps == status.swaps


def test_sync_with_nothing_published_says_so_when_time_is_up(working: Follower, path: Path) -> None:
    with pytest.raises(TimeoutError, match=f"nothing is published in {path} yet"):
        working.sync(timeout=0.2)


def test_sync_to_a_version_still_to_come_says_what_is_there_when_time_is_up(
    working: Follower, publisher: Publisher
) -> None:
    publisher.publish(3)
    with pytest.raises(TimeoutError, match=r"version 9 of model 'm' did not come to serve within 0.5 s: .* is 3"):
        working.sync(9, timeout=0.5)


def test_sync_waits_for_a_version_still_to_come(working: Follower, publisher: Publisher) -> None:
    publisher.publish(3)
    answer = working.ask(Action.SYNC, 4)
    working.sync(timeout=LONG)
    assert not answer.done()
    publisher.publish(5)
    working.notify()
    status = answer.result(LONG)
    assert status.serving is not None
    assert status.serving.number == 5  # it overtook the one asked for


def test_each_sync_to_a_bad_version_tries_it_once_more_and_says_why_not(
    working: Follower, publisher: Publisher
) -> None:
    publisher.publish(1)
    publisher.publish_bad(2)
    events = working.subscribe(lambda: None)
    for _ in range(2):
        with pytest.raises(SyncError, match=r"version 2 of model 'm' is quarantined: .*finite values"):
            working.sync(timeout=LONG)
        assert EventKind.QUARANTINED in [one.kind for one in events.take()]
    assert serving(working) == 1


def test_sync_to_an_older_version_says_to_pin(working: Follower, publisher: Publisher) -> None:
    publisher.publish(1)
    publisher.publish(2)
    working.sync(timeout=LONG)
    with pytest.raises(SyncError, match="older than version 2, which serves; pin it to go back"):
        working.sync(1, timeout=LONG)


def test_sync_to_a_version_that_never_was_lists_what_there_is(working: Follower, publisher: Publisher) -> None:
    publisher.publish(1)
    working.sync(timeout=LONG)
    publisher.publish_bad(5)  # so that what serves is still below the one asked for
    with pytest.raises(UnknownVersionError, match=r"version 3 .* there are: 1, 5"):
        working.sync(3, timeout=LONG)
    publisher.publish(6)
    working.sync(timeout=LONG)
    with pytest.raises(UnknownVersionError, match=r"version 3 .* there are: 1, 5, 6"):
        working.sync(3, timeout=LONG)


def test_sync_with_a_store_that_cannot_be_read_says_so_when_time_is_up(working: Follower, publisher: Publisher) -> None:
    publisher.publish(1)
    working.sync(timeout=LONG)
    (publisher.path / "checkpoint").write_text("garbage {{{")
    with pytest.raises(TimeoutError, match=r"did not come to serve within 0.2 s: .*checkpoint"):
        working.sync(timeout=0.2)


def test_pin_goes_back_and_stays_until_unpin(working: Follower, publisher: Publisher) -> None:
    for step in (1, 2, 3):
        publisher.publish(step)
    working.sync(timeout=LONG)
    assert working.pin(1, timeout=LONG).pinned == 1
    assert proven(*ask(working))
    assert serving(working) == 1
    publisher.publish(4)
    with pytest.raises(SyncError, match="pinned to version 1; unpin"):
        working.sync(timeout=LONG)
    assert serving(working) == 1
    status = working.unpin(timeout=LONG)
    assert (status.pinned, serving(working)) == (None, 4)


def test_pin_to_a_resident_version_works_after_it_was_pruned(follower: Follower, publisher: Publisher) -> None:
    publisher.publish(1)
    follower.run_once()
    for step in range(2, 9):
        publisher.publish(step)
    follower.run_once()
    assert not (publisher.path / "ckpt-1.index").exists()
    answer = follower.ask(Action.PIN, 1)
    follower.run_once()
    assert answer.result(0).resident == (1, 8)
    assert ask(follower)[1] == 1
    assert proven(*ask(follower))


def test_a_look_that_began_before_a_sync_does_not_answer_it(follower: Follower, publisher: Publisher) -> None:
    publisher.publish(1)
    asked: list[Future[Status]] = []

    def publish_and_ask() -> None:
        if not asked:
            publisher.publish(2)
            asked.append(follower.ask(Action.SYNC))

    follower.subscribe(publish_and_ask)  # called in the middle of the look that finds version 1
    follower.run_once()
    assert not asked[0].done()
    follower.run_once()
    status = asked[0].result(0)
    assert status.serving is not None
    assert status.serving.number == 2


def test_a_pin_that_fails_changes_nothing(working: Follower, publisher: Publisher) -> None:
    publisher.publish_bad(1)
    publisher.publish(2)
    working.sync(timeout=LONG)
    with pytest.raises(SyncError, match=r"version 1 .* is quarantined"):
        working.pin(1, timeout=LONG)
    with pytest.raises(UnknownVersionError, match="there are: 1, 2"):
        working.pin(7, timeout=LONG)
    publisher.publish(3)
    working.sync(timeout=LONG)
    assert (working.status().pinned, serving(working)) == (None, 3)


def test_what_needs_no_store_is_done_while_it_cannot_be_read(working: Follower, publisher: Publisher) -> None:
    for step in (1, 2):
        publisher.publish(step)
        working.sync(timeout=LONG)
    (publisher.path / "checkpoint").write_text("garbage {{{")
    assert working.pin(1, timeout=LONG).pinned == 1
    assert (serving(working), proven(*ask(working))) == (1, True)
    assert working.unpin(timeout=LONG).pinned is None
    with pytest.raises(TimeoutError, match="checkpoint"):
        working.pin(7, timeout=0.2)
    assert working.unpin(timeout=LONG).pinned is None


def test_of_two_pins_in_one_look_the_later_counts_and_none_that_failed_changed_anything(
    follower: Follower, publisher: Publisher
) -> None:
    for step in (1, 2):
        publisher.publish(step)
        follower.run_once()
    publisher.publish_bad(3)
    overtaken, failed = follower.ask(Action.PIN, 1), follower.ask(Action.PIN, 3)
    follower.run_once()
    with pytest.raises(SyncError, match="was pinned to version 3 while it was being pinned to version 1"):
        overtaken.result(0)
    with pytest.raises(SyncError, match=r"version 3 .* is quarantined"):
        failed.result(0)
    assert (follower.status().pinned, serving(follower)) == (None, 2)
    overtaken, done = follower.ask(Action.PIN, 2), follower.ask(Action.PIN, 1)
    follower.run_once()
    assert done.result(0).pinned == 1
    with pytest.raises(SyncError, match="pinned to version 1"):
        overtaken.result(0)
    failed = follower.ask(Action.PIN, 3)
    follower.run_once()
    assert isinstance(failed.exception(0), SyncError)
    assert (follower.status().pinned, serving(follower)) == (1, 1)


def test_a_pin_overtaken_by_an_unpin_is_told_so(follower: Follower, publisher: Publisher) -> None:
    for step in (1, 2):
        publisher.publish(step)
        follower.run_once()
    overtaken, done = follower.ask(Action.PIN, 1), follower.ask(Action.UNPIN)
    follower.run_once()
    assert done.result(0).pinned is None
    with pytest.raises(SyncError, match="was unpinned while"):
        overtaken.result(0)


def test_a_pin_whose_caller_left_before_it_came_true_is_given_up(path: Path) -> None:
    saver_store(path, 2)
    follower = saver_follower(path)
    follower.run_once()
    (path / "model-1.meta").unlink()
    pin = follower.ask(Action.PIN, 1)
    follower.run_once()
    assert (pin.done(), follower.status().pinned) == (False, 1)
    pin.cancel()
    follower.run_once()
    assert (follower.status().pinned, serving(follower)) == (None, 2)


def test_what_nobody_waits_for_any_more_is_forgotten() -> None:
    wishes = Wishes()
    answers = [wishes.ask(Action.SYNC, None), wishes.ask(Action.PIN, 7)]
    assert len(wishes.fresh()) == 2
    for one in answers:
        one.cancel()
    assert wishes.fresh() == []


def test_draining_refuses_what_is_asked_and_goes_on_serving(working: Follower, publisher: Publisher) -> None:
    publisher.publish(1)
    working.sync(timeout=LONG)
    waiting = working.ask(Action.SYNC, 99)
    working.drain()
    for answer in (waiting, working.ask(Action.SYNC)):
        with pytest.raises(NotServingError, match="stopping"):
            answer.result(LONG)
    assert working.status().state is State.DRAINING
    assert proven(*ask(working))


# With the watch -------------------------------------------------------------------------------------------------------


def test_a_store_that_appears_later_is_served_without_waiting_for_the_poll(follower: Follower, path: Path) -> None:
    path.parent.mkdir()
    rung = threading.Event()
    events = follower.subscribe(rung.set)
    follower.start(Watch(path, follower.notify))
    with pytest.raises(TimeoutError):
        follower.sync(timeout=0.2)  # it has looked, and armed the watch
    publisher = Publisher(path)
    publisher.publish(1)
    while serving(follower) is None:
        assert rung.wait(LONG)
        rung.clear()
    events.close()
    publisher.close()


def test_versions_are_never_mixed_while_they_are_committed_all_the_time(
    follower: Follower, publisher: Publisher, path: Path
) -> None:
    follower.start(Watch(path, follower.notify))
    publisher.publish(1)
    follower.sync(timeout=LONG)
    stop = threading.Event()
    wrong: list[tuple[list[float], int]] = []
    answered: list[set[int]] = [set(), set(), set()]

    def request(mine: set[int]) -> None:
        while not stop.is_set():
            seen, number = ask(follower)
            mine.add(number)
            if not proven(seen, number):
                wrong.append((seen, number))

    threads = [threading.Thread(target=request, args=(mine,)) for mine in answered]
    for one in threads:
        one.start()
    for step in range(2, 52):
        publisher.publish(step)
        if step % 5 == 0:
            follower.sync(timeout=LONG)
    follower.sync(timeout=LONG)
    stop.set()
    for one in threads:
        one.join(LONG)
    assert wrong == []
    assert follower.status().swaps >= 10
    assert all(len(mine) > 2 for mine in answered)
    assert serving(follower) == 51


# What TensorFlow's Saver writes ---------------------------------------------------------------------------------------


def saver_follower(path: Path) -> Follower:
    store = Store(path)
    return Follower(Replica("m", store, inputs=["x:0"], outputs=["y:0"]), store, poll_seconds=60.0)


def test_each_checkpoint_of_a_saver_is_served_soon_and_none_is_quarantined(path: Path) -> None:
    path.mkdir(parents=True)
    follower = saver_follower(path)
    events = follower.subscribe(lambda: None)
    follower.start(Watch(path, follower.notify))

    def served(step: int) -> None:
        eventually(lambda: serving(follower) == step, lambda: f"version {step}")

    began = time.monotonic()
    saver_store(path, 5, served)
    assert time.monotonic() - began < 20.0  # far below one poll
    follower.close()
    assert EventKind.QUARANTINED not in [one.kind for one in events.take()]


def test_a_graph_still_being_written_is_waited_for_and_then_a_fault(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path.mkdir(parents=True)
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
    monkeypatch.setattr("inferencer.patience.LONGEST", 0.0)
    follower.run_once()
    assert "not a readable meta graph" in follower.status().quarantined[0].reason
    meta.write_bytes(content)
    follower.run_once()
    assert (serving(follower), quarantined(follower)) == (1, [])


def test_a_graph_that_comes_unnoticed_is_found_long_before_the_next_poll(path: Path) -> None:
    path.mkdir(parents=True)
    saver_store(path, 1)
    content = (path / "model-1.meta").read_bytes()
    (path / "model-1.meta").unlink()
    follower = saver_follower(path)
    looked = threading.Event()
    follower.subscribe(looked.set)
    follower.start()  # without a watch
    assert looked.wait(LONG)
    (path / "model-1.meta").write_bytes(content)
    eventually(lambda: serving(follower) == 1, lambda: "version 1")
    follower.close()


def test_patience_doubles_and_ends_and_begins_again_with_other_files() -> None:
    patience = Patience()
    one = Candidate(Version(number=1, step=1, prefix="model-1", step_done_at=0.0, snapshot_at=0.0), "files")
    assert [patience.left(one, now) for now in (10.0, 10.05, 10.1, 11.0, 12.0)] == pytest.approx(
        [0.05, 0.05, 0.1, 1.0, None]
    )
    assert patience.left(Candidate(one.version, "others"), 13.0) == 0.05
