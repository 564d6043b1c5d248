"""What the operator sees and asks for, over real gRPC: status, sync, pin, watch."""

from __future__ import annotations

import time
from pathlib import Path

import grpc
import pytest

from paramsync.following.report import MOST_UNREAD
from paramsync.v1 import sync_pb2 as pb
from tests.support.programs import eventually
from tests.support.published import Publisher, proven
from tests.support.running import LONG, SERVING, Running, refused, request, seen, synced

Code = grpc.StatusCode


def test_sync_streams_its_progress_until_the_version_serves(running: Running, publisher: Publisher) -> None:
    publisher.publish(5)
    found = synced(running)
    phases = [(one.phase, one.version) for one in found]
    assert phases[0] == (pb.SyncProgress.LOOKING, 0)
    assert phases[-1] == (pb.SyncProgress.DONE, 5)
    assert set(phases[1:-1]) <= {(pb.SyncProgress.RESTORING, 5), (pb.SyncProgress.WARMING, 5)}
    assert found[-1].status.serving.number == 5
    assert found[-1].status.state == pb.ModelStatus.SERVING


def test_sync_says_just_before_the_deadline_what_it_waits_for(running: Running, tmp_path: Path) -> None:
    code, text = refused(
        lambda message, timeout: list(running.sync.Sync(message, timeout=timeout)), pb.SyncRequest(), 1
    )
    assert code is Code.DEADLINE_EXCEEDED
    assert f"{tmp_path / 'm'}: no such directory" in text


def test_a_sync_whose_caller_left_is_forgotten(running: Running) -> None:
    requests = running.server.models.follower("m")._requests
    call = running.sync.Sync(pb.SyncRequest(), timeout=LONG)
    eventually(requests.fresh, lambda: "the sync to be asked for")
    call.cancel()
    eventually(lambda: not requests.fresh(), lambda: "the sync to be forgotten")


def test_status_tells_all_there_is_to_know(served: Running, publisher: Publisher, tmp_path: Path) -> None:
    publisher.publish_bad(9)
    refused(lambda message, timeout: list(served.sync.Sync(message, timeout=timeout)), pb.SyncRequest())
    (status,) = served.sync.GetStatus(pb.GetStatusRequest(), timeout=LONG).models
    assert (status.model, status.store, status.state) == ("m", str(tmp_path / "m"), pb.ModelStatus.SERVING)
    assert (status.published.number, status.serving.number, list(status.resident)) == (9, 7, [7])
    assert [(one.number, "finite" in one.reason) for one in status.quarantined] == [(9, True)]
    assert (status.lag_steps, status.lag_versions) == (2, 1)
    assert status.lag_seconds > 0
    assert (status.HasField("pinned"), status.reason, status.swaps) == (False, "", 1)


def test_pin_and_unpin(served: Running, publisher: Publisher) -> None:
    publisher.publish(8)
    synced(served)
    status = served.sync.Pin(pb.PinRequest(model="m", version=7), timeout=LONG)
    assert (status.pinned, status.serving.number) == (7, 7)
    code, text = refused(lambda message, timeout: list(served.sync.Sync(message, timeout=timeout)), pb.SyncRequest())
    assert code is Code.FAILED_PRECONDITION
    assert "pinned to version 7" in text
    assert proven(seen(served.prediction_service.Predict(request(), timeout=LONG)), 7)
    status = served.sync.Unpin(pb.UnpinRequest(), timeout=LONG)
    assert (status.HasField("pinned"), status.serving.number) == (False, 8)
    assert refused(served.sync.Pin, pb.PinRequest(model="m", version=3))[0] is Code.NOT_FOUND
    code, text = refused(served.sync.Pin, pb.PinRequest(model="m"))
    assert (code, text) == (Code.INVALID_ARGUMENT, "version: expected the number of a version, found none")


def test_workers_answer_from_a_version_from_its_moment_on(served: Running, publisher: Publisher) -> None:
    version = publisher.publish(8, serve_after=1.0)
    assert version.serve_at is not None
    follower = served.server.models.follower("m")
    eventually(lambda: 8 in follower.status().resident, lambda: f"version 8 in memory: {follower.status()}")
    answer = served.prediction_service.Predict(request(), timeout=LONG)
    assert answer.model_spec.version.value == 7 or time.time() >= version.serve_at
    status = synced(served)[-1].status
    assert time.time() >= version.serve_at
    assert (status.serving.number, status.serving.serve_at, status.HasField("next")) == (8, version.serve_at, False)
    assert status.swap_skew_seconds >= 0.0
    assert served.prediction_service.Predict(request(), timeout=LONG).model_spec.version.value == 8


def test_a_change_with_a_moment_is_answered_once_it_is_made(served: Running, publisher: Publisher) -> None:
    publisher.publish(8)
    synced(served)
    moment = time.time() + 0.3
    status = served.sync.Pin(pb.PinRequest(version=7, serve_at=moment), timeout=LONG)
    assert time.time() >= moment
    assert (status.pinned, status.serving.number, status.HasField("next")) == (7, 7, False)
    assert status.swap_skew_seconds >= 0.0
    assert served.sync.Unpin(pb.UnpinRequest(serve_at=time.time() + 0.1), timeout=LONG).serving.number == 8
    back = served.sync.Rollback(pb.RollbackRequest(version=7, serve_at=time.time() + 0.1), timeout=LONG)
    assert (back.serving.number, back.pinned) == (7, 7)


@pytest.mark.parametrize("seconds", [4000.0, float("nan"), float("inf")])
def test_a_moment_that_is_too_far_ahead_is_refused(served: Running, seconds: float) -> None:
    code, text = refused(served.sync.Pin, pb.PinRequest(version=7, serve_at=time.time() + seconds))
    assert code is Code.INVALID_ARGUMENT
    assert "serve_at: expected a time at most an hour ahead" in text


def test_watch_tells_every_event_until_the_server_drains(served: Running, publisher: Publisher) -> None:
    call = served.sync.Watch(pb.WatchRequest(), timeout=LONG)
    call.initial_metadata()  # from here on nothing is missed
    publisher.publish(8)
    synced(served)
    publisher.publish_bad(9)
    refused(lambda message, timeout: list(served.sync.Sync(message, timeout=timeout)), pb.SyncRequest())
    served.drain()
    events = list(call)
    found = [(event.kind, event.version.number) for event in events]
    assert list(dict.fromkeys(found)) == [  # the sync may have tried the bad one once more
        (pb.Event.FOUND, 8),
        (pb.Event.RESTORED, 8),
        (pb.Event.SWAPPED, 8),
        (pb.Event.FOUND, 9),
        (pb.Event.QUARANTINED, 9),
    ]
    assert "finite" in events[-1].reason


def test_a_watch_that_falls_behind_ends_with_that_after_the_last_event_before_the_gap(
    served: Running, publisher: Publisher
) -> None:
    call = served.sync.Watch(pb.WatchRequest(), timeout=LONG)
    call.initial_metadata()
    follower = served.server.models.follower("m")

    async def hold_up() -> None:
        for step in range(8, 8 + MOST_UNREAD // 3 + 1):
            publisher.publish(step)
            follower.sync(timeout=LONG)

    served.call(hold_up)  # the loop, and with it all that is sent, while that happens
    numbers: list[int] = []
    with pytest.raises(grpc.RpcError, match="events unread") as raised:
        numbers.extend(event.version.number for event in call)
    assert raised.value.code() is Code.RESOURCE_EXHAUSTED
    assert len(numbers) > MOST_UNREAD // 2
    assert sorted(set(numbers)) == list(range(8, 8 + len(set(numbers))))
    assert served.health("m") == SERVING
