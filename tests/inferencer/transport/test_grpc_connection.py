"""How long a connection may take to speak HTTP/2, and what is answered once its other end sends nothing more."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from inferencer.transport.grpc_port import GrpcPort
from inferencer.transport.memory_budget import MemoryBudget
from paramsync.rpc.server import IDLE_SECONDS, SILENT_SECONDS
from tests.support import http2_client as http2
from tests.support.frames import PREDICT
from tests.support.http2_client import PREFACE, Http2Client
from tests.support.programs import eventually
from tests.support.published import Publisher
from tests.support.running import LocalRunning, request, synced
from tests.support.wires import Clock, Wire, feed

CANCEL = 8


@contextmanager
def wire() -> Iterator[tuple[Clock, Wire]]:
    loop = Clock()

    async def made() -> Wire:
        protocol = GrpcPort({}, MemoryBudget(100), message_bytes=100).protocol()
        wire = Wire(protocol)
        protocol.connection_made(wire)
        return wire

    try:
        yield loop, loop.run_until_complete(made())
    finally:
        loop.close()


@pytest.mark.parametrize(
    "sent", [b"", PREFACE[:1], PREFACE, PREFACE + http2.settings({})[:5]], ids=["nothing", "a byte", "preface", "part"]
)
def test_a_connection_has_ten_seconds_to_speak_http2_however_little_comes_meanwhile(sent: bytes) -> None:
    with wire() as (loop, made):
        for at in range(SILENT_SECONDS):
            loop.now = float(at)
            feed(made.protocol, sent[at : at + 1] if at < 9 else sent[9:])
            made.connection.check(loop.now)
            assert made.is_open
        made.connection.check(float(SILENT_SECONDS))
        assert not made.is_open


def test_one_that_speaks_it_may_be_idle_for_longer() -> None:
    with wire() as (_, made):
        feed(made.protocol, PREFACE + http2.settings({}))
        made.connection.check(IDLE_SECONDS - 1.0)
        assert made.is_open


@pytest.fixture
def served(running: LocalRunning, publisher: Publisher) -> LocalRunning:
    publisher.publish(7)
    synced(running)
    return running


def test_a_caller_that_shuts_its_writing_side_gets_the_answers_to_whole_requests(served: LocalRunning) -> None:
    content = http2.prefixed(request().SerializeToString())
    with Http2Client(served.port) as client:
        client.send(http2.request(1, PREDICT) + http2.data(1, content, end=True))
        client.send(http2.request(3, PREDICT) + http2.data(3, content, end=True))
        client.send(http2.request(5, PREDICT) + http2.data(5, content[:-1]))
        client.socket.shutdown(socket.SHUT_WR)
        assert [client.response(stream).status for stream in (1, 3)] == [0, 0]
        assert (client.response(5).status, client.response(5).code) == (None, CANCEL)
        assert client.closed() == 0
    eventually(lambda: not len(served.server.predicting.grpc.connections), lambda: "no connection to be left")


def test_the_calls_of_a_caller_that_is_gone_end(served: LocalRunning) -> None:
    """A caller that shuts its writing side and one that is gone look the same until something is written to them."""
    connections = served.server.predicting.grpc.connections
    health = "/grpc.health.v1.Health/Watch"
    with Http2Client(served.port) as client:
        client.send(http2.request(1, health) + http2.data(1, http2.prefixed(b""), end=True))
        eventually(lambda: [connection for connection in connections if connection.calls], lambda: "the call")
        assert client.answers()  # it has read all, so that the kernel ends the connection as if there was more to come
    eventually(lambda: not len(connections), lambda: "no connection to be left")
