"""Calls of the trainer's control port whose messages do not come: they block nobody."""

from __future__ import annotations

import queue

import grpc
import pytest

from paramsync.publishing.read_timeout import MOST
from tests.support.control_ports import STATES, TIMEOUT, Pair, status
from tests.support.frames import connected, headers

GET = "/paramsync.v1.Publisher/GetStatus"
REFLECTION = "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo"


@pytest.mark.parametrize("path", [GET, "/paramsync.v1.Publisher/Watch", "/grpc.health.v1.Health/Watch", REFLECTION])
def test_silent_calls_block_nobody(pair: Pair, path: str) -> None:
    with connected(int(pair.control.address.rpartition(":")[2])) as client:
        client.sendall(b"".join(headers(2 * at + 1, path) for at in range(2 * MOST)))
        for _ in range(20):
            assert status(pair).state == STATES.STARTING


def test_a_call_that_ends_without_a_message_is_refused(pair: Pair) -> None:
    with pytest.raises(grpc.RpcError, match="request: expected one message, found none") as raised:
        pair.channel.stream_unary(GET, bytes, bytes)(iter(()), timeout=TIMEOUT)
    assert raised.value.code() is grpc.StatusCode.INVALID_ARGUMENT


def test_a_message_that_does_not_come_in_time_is_given_up(pair: Pair) -> None:
    pair.control._arrivals._patience = 0.2
    over: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
    call = pair.channel.stream_unary(GET, bytes, bytes).future(iter(over.get, None), timeout=TIMEOUT)
    assert call.code() is grpc.StatusCode.CANCELLED
    over.put(None)
