"""Calls of the trainer's control port whose messages do not come: they block nobody."""

from __future__ import annotations

import itertools
import queue
import select
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import grpc
import pytest

from paramsync.publishing.read_timeout import MOST
from tests.support.control_ports import STATES, TIMEOUT, Pair, status
from tests.support.frames import connected, headers, reset
from tests.support.programs import eventually

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


def test_calls_that_are_reset_at_once_end_no_call_of_others(pair: Pair) -> None:
    over = threading.Event()

    def attack() -> int:
        sent = 0
        while not over.is_set():
            with (
                suppress(OSError),
                connected(int(pair.control.address.rpartition(":")[2])) as client,
            ):  # until it is shut
                client.settimeout(TIMEOUT)
                for first in itertools.count(1, 400):
                    client.sendall(b"".join(headers(at, GET) + reset(at) for at in range(first, first + 400, 2)))
                    sent += 200
                    if over.is_set():
                        break
                    while select.select([client], [], [], 0)[0] and client.recv(1 << 16):
                        pass
        return sent

    with ThreadPoolExecutor(4) as threads:
        attacking = [threads.submit(attack) for _ in range(4)]
        try:
            codes = [_code_of_status(pair) for _ in range(30)]
        finally:
            over.set()
        assert set(codes) <= {grpc.StatusCode.OK, grpc.StatusCode.RESOURCE_EXHAUSTED}, codes
        assert grpc.StatusCode.OK in codes, codes
        eventually(
            lambda: _code_of_status(pair) is grpc.StatusCode.OK, lambda: "a call to be answered after the attack"
        )
        assert all(attacker.result() > 1000 for attacker in attacking)


def _code_of_status(pair: Pair) -> grpc.StatusCode:
    try:
        status(pair)
    except grpc.RpcError as error:
        return error.code()
    return grpc.StatusCode.OK
