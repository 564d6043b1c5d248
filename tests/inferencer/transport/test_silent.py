"""Calls whose messages do not come: they take no room from others, and are given up."""

from __future__ import annotations

import asyncio
import queue
import socket
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2

from inferencer.transport.streams import Slots
from paramsync.errors import BusyError
from tests.support.frames import PREDICT, connected, headers, message
from tests.support.programs import eventually
from tests.support.published import Publisher, proven
from tests.support.running import LONG, LocalRunning, request, seen, synced

Code = grpc.StatusCode
WATCH = "/grpc.health.v1.Health/Watch"
CONNECTIONS, EACH = 5, 500


@pytest.fixture
def served(running: LocalRunning, publisher: Publisher) -> LocalRunning:
    publisher.publish(7)
    synced(running)
    return running


def answered(running: LocalRunning) -> bool:
    return proven(seen(running.prediction_service.Predict(request(), timeout=LONG)), 7)


def silent(running: LocalRunning) -> int:
    return sum(len(one._silent) for one in running.read_timeouts)


class Silent:
    """A call that was sent, and no message of it."""

    def __init__(self, channel: grpc.Channel, path: str = PREDICT) -> None:
        self._messages: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self.call = channel.stream_unary(path, bytes, bytes).future(iter(self._messages.get, None), timeout=LONG)

    def write(self, content: bytes) -> None:
        self._messages.put(content)
        self._messages.put(None)

    def end(self) -> None:
        self.call.cancel()
        self._messages.put(None)  # the thread that waits for one ends


@contextmanager
def opened(running: LocalRunning, *paths: str) -> Iterator[list[Silent]]:
    """One after the other, each there before the next is sent."""
    channel = running.control if "paramsync" in paths[0] else running.predictions
    found: list[Silent] = []
    room = min(one._most for one in running.read_timeouts)
    try:
        for path in paths:
            found.append(Silent(channel, path))
            wanted = min(room, len(found))
            eventually(lambda wanted=wanted: silent(running) >= wanted, lambda: "the call to be there")  # type: ignore[misc]
        yield found
    finally:
        for one in found:
            one.end()


def test_any_number_of_silent_calls_takes_no_room_from_others(served: LocalRunning) -> None:
    sockets = [connected(served.port) for _ in range(CONNECTIONS)]
    for one in sockets:
        one.sendall(b"".join(headers(2 * at + 1) for at in range(EACH)))
    eventually(lambda: silent(served) == 1024, lambda: f"as many as may be: {silent(served)}")
    for _ in range(20):
        assert answered(served)
    assert silent(served) <= 1024
    for one in sockets:
        one.close()
    eventually(lambda: silent(served) == 0, lambda: f"all to be gone: {silent(served)}")
    assert answered(served)


def test_the_call_that_was_given_most_time_is_given_up_for_a_new_one(served: LocalRunning) -> None:
    for port in served.read_timeouts:
        port._most = 4

    with opened(served, *[PREDICT] * 6) as (first, second, *others):
        text = "4 calls are open whose messages did not come yet; try again in a moment"
        for one in (first, second):
            assert (one.call.code(), one.call.details()) == (Code.RESOURCE_EXHAUSTED, text)
        for one in others:
            assert not one.call.done()
            one.write(request().SerializeToString())
            assert one.call.code() is Code.OK


@pytest.mark.parametrize("path", [PREDICT, "/tensorflow.serving.ModelService/GetModelStatus", WATCH])
def test_a_message_that_does_not_come_in_time_is_given_up(served: LocalRunning, path: str) -> None:
    for one in served.read_timeouts:
        one._patience = 0.2

    call = Silent(served.predictions, path)
    said = "request: expected its message within 0.2 s, found that it did not come"
    assert (call.call.code(), call.call.details()) == (Code.DEADLINE_EXCEEDED, said)
    call.end()
    assert answered(served)


def test_the_beginning_of_a_message_is_none(served: LocalRunning) -> None:
    for one in served.read_timeouts:
        one._patience = 0.2
    client = connected(served.port)
    content = request().SerializeToString()
    client.sendall(headers(1) + message(1, content, most=3) + headers(3) + message(3, content, most=20))
    eventually(lambda: silent(served) == 2, lambda: "both calls")
    eventually(lambda: silent(served) == 0, lambda: "the end of both")
    client.close()
    assert answered(served)


@pytest.mark.parametrize("path", [PREDICT, "/paramsync.v1.Sync/GetStatus", "/paramsync.v1.Sync/Watch"])
def test_a_call_that_ends_without_a_message_is_refused(served: LocalRunning, path: str) -> None:
    channel = served.control if "Sync" in path else served.predictions
    with pytest.raises(grpc.RpcError, match="request: expected one message, found none") as raised:
        channel.stream_unary(path, bytes, bytes)(iter(()), timeout=LONG)
    assert raised.value.code() is Code.INVALID_ARGUMENT


def test_callers_that_leave_before_their_messages_are_no_line_of_the_log(
    served: LocalRunning, caplog: pytest.LogCaptureFixture
) -> None:
    with opened(served, *[PREDICT, WATCH] * 50):
        pass
    eventually(lambda: silent(served) == 0, lambda: "all to be gone")
    assert answered(served)
    assert not caplog.records


def test_silent_calls_do_not_hold_up_the_end(served: LocalRunning, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("inferencer.transport.read_timeout._PATIENCE_AT_THE_END", 0.2)

    with opened(served, *[PREDICT, WATCH] * 10) as calls:
        began = time.monotonic()
        served.drain()
        assert Counter(one.call.code() for one in calls) == {Code.UNAVAILABLE: 20}
    assert time.monotonic() - began < 15  # and not the grace of 20


def test_each_method_has_room_of_its_own_for_calls_that_wait() -> None:
    async def waiting() -> None:
        places, others = Slots(2, "calls of Pin"), Slots(2, "calls of Unpin")
        with places.one("a"), places.one("a"):
            with pytest.raises(BusyError, match="2 calls of Pin are open already"), places.one("a"):
                raise AssertionError
            with others.one("a"):
                pass
        with places.one("a"):
            pass

    asyncio.run(waiting())


def test_connections_that_say_nothing_or_have_no_call_are_closed(
    publisher: Publisher, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("inferencer.transport.grpc_connection.SILENT_SECONDS", 1)
    monkeypatch.setattr("inferencer.transport.grpc_connection.IDLE_SECONDS", 1)
    monkeypatch.setattr("paramsync.rpc.server._MOST_CONNECTIONS", 20)
    publisher.publish(7)
    running = LocalRunning(tmp_path / "m")
    try:
        synced(running)
        silent = [socket.create_connection(("127.0.0.1", running.port), LONG) for _ in range(25)]
        for one in silent:
            one.settimeout(LONG)
            while one.recv(1 << 10):  # those beyond the limit at once, the others in a second
                pass
            one.close()
        idle = [connected(running.port) for _ in range(10)]
        assert answered(running)
        for one in idle:
            one.settimeout(LONG)
            while one.recv(1 << 10):
                pass
            one.close()
        assert answered(running)  # the caller makes a new connection unnoticed
    finally:
        running.drain()
        running.close()


def test_a_connection_that_holds_all_streams_gives_one_up_for_another_connection(served: LocalRunning) -> None:
    watch = "/grpc.health.v1.Health/Watch"
    content = health_pb2.HealthCheckRequest(service="m").SerializeToString()
    greedy: list[Any] = [served.predictions.unary_stream(watch, bytes, bytes)(content) for _ in range(512)]
    for stream in greedy:
        next(stream)
    options = [("grpc.use_local_subchannel_pool", 1)]
    with grpc.insecure_channel(f"127.0.0.1:{served.port}", options) as channel:
        mine: list[Any] = [channel.unary_stream(watch, bytes, bytes)(content, timeout=LONG) for _ in range(3)]
        for stream in mine:
            assert next(stream)
        for stream in greedy[-3:]:
            with pytest.raises(grpc.RpcError) as raised:
                next(stream)
            assert raised.value.code() is Code.RESOURCE_EXHAUSTED
            assert "this one was given to another caller" in (raised.value.details() or "")
    assert not greedy[0].done()
    for stream in greedy:
        stream.cancel()


def test_an_address_that_holds_all_streams_gives_one_up_for_another_address(served: LocalRunning) -> None:
    content = health_pb2.HealthCheckRequest(service="m").SerializeToString()
    greedy = [connected(served.port, address="127.0.0.2") for _ in range(512)]
    for one in greedy:
        one.sendall(headers(1, WATCH) + message(1, content))
    for one in greedy:
        assert b"application/grpc" in read_until(one, b"application/grpc")  # headers of a response
    mine: list[Any] = [served.predictions.unary_stream(WATCH, bytes, bytes)(content, timeout=LONG) for _ in range(3)]
    for stream in mine:
        assert next(stream)
    for one in greedy:
        one.close()


def read_until(client: socket.socket, wanted: bytes) -> bytes:
    found = b""
    while wanted not in found and (more := client.recv(1 << 16)):
        found += more
    return found
