"""How long a connection or a call may keep silent, what takes room from whom, and how both end."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable
from typing import Any
from urllib.parse import unquote

import grpc
import pytest

from inferencer.transport import calls
from inferencer.transport.grpc_port import GrpcPort
from inferencer.transport.memory_budget import MemoryBudget
from inferencer.transport.methods import Admission, Call, Method
from inferencer.transport.streams import Slots
from paramsync.errors import BusyError
from paramsync.http2 import frames
from paramsync.http2.hpack import Decoder
from paramsync.rpc.access import Access
from paramsync.rpc.server import ALIVE_SECONDS, IDLE_SECONDS, SILENT_SECONDS
from tests.http2 import wire
from tests.http2.wire import split
from tests.support import http2_client as http2
from tests.support.http2_client import Http2Client
from tests.support.in_process import InProcess
from tests.support.programs import eventually
from tests.support.running import LONG, Running, request
from tests.support.wires import Clock, Wire, feed

CANCEL = 8
HEALTH = "/grpc.health.v1.Health/Watch"
UNARY, STREAM = "/test/Unary", "/test/Stream"
CONNECTED = frames.PREFACE + frames.settings({})


class Port(GrpcPort):
    """A port whose calls are answered once its gate is open."""

    def __init__(self) -> None:
        admission = Admission(Access(host="127.0.0.1"), "test/Method")
        methods = {UNARY: Method(self._unary, admission), STREAM: Method(self._stream, admission, is_stream=True)}
        super().__init__(methods, MemoryBudget(1 << 20), message_bytes=1 << 16)
        self.gate = asyncio.Event()
        self.gate.set()

    async def _unary(self, call: Call) -> None:
        await self.gate.wait()
        call.answer(call.take(), ())

    async def _stream(self, call: Call) -> None:
        while (content := await call.read()) is not None:
            await call.write(content)
        call.finish()


class Client:
    """A client on a wire of the test's own."""

    def __init__(self, port: GrpcPort, content: bytes = CONNECTED) -> None:
        self.protocol = port.protocol()
        self.wire = Wire(self.protocol)
        self.protocol.connection_made(self.wire)
        self.send(content)

    def send(self, content: bytes) -> None:
        feed(self.protocol, content)

    def open(self, stream: int, path: str = UNARY) -> None:
        self.send(wire.headers(stream, http2.literals(http2.request_fields(path))))

    def call(self, stream: int, content: bytes = b"hello") -> None:
        self.open(stream)
        self.send(wire.data(stream, http2.prefixed(content), end=True))

    def status(self, stream: int) -> tuple[int, str] | None:
        """What a call ended with, if it has."""
        fields = {
            name: value
            for frame in split(self.wire.written)
            if frame.kind == frames.HEADERS and frame.stream == stream
            for name, value, *_ in Decoder(1 << 16).decode(frame.payload)
        }
        return (
            (int(fields["grpc-status"]), unquote(fields.get("grpc-message", ""))) if "grpc-status" in fields else None
        )


def on_a_clock(check: Callable[[Port, Clock], Awaitable[None]]) -> Callable[[], None]:
    """Run a test's coroutine on an event loop whose time is the test's."""

    def test() -> None:
        loop = Clock()

        async def main() -> None:
            port = Port()
            await check(port, loop)
            await port.stop()

        try:
            loop.run_until_complete(main())
        finally:
            loop.close()

    return test


async def pass_time(loop: Clock, seconds: float) -> None:
    loop.now += seconds
    for _ in range(6):
        await asyncio.sleep(0)


# Connections ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "sent", [b"", frames.PREFACE[:1], frames.PREFACE, CONNECTED[:-4]], ids=["nothing", "a byte", "preface", "part"]
)
def test_a_connection_has_ten_seconds_to_speak_http2_however_little_comes_meanwhile(sent: bytes) -> None:
    @on_a_clock
    async def check(port: Port, loop: Clock) -> None:
        client = Client(port, b"")
        for at in range(SILENT_SECONDS):
            client.send(sent[at : at + 1] if at < 9 else sent[9:])
            client.protocol.check(loop.now)
            assert client.wire.is_open
            loop.now += 1.0
        client.protocol.check(loop.now)
        assert not client.wire.is_open

    check()


@on_a_clock
async def test_a_connection_without_a_call_is_closed_after_a_minute(port: Port, loop: Clock) -> None:
    client = Client(port)
    client.protocol.check(IDLE_SECONDS - 1.0)
    assert client.wire.is_open
    client.protocol.check(float(IDLE_SECONDS))
    assert not client.wire.is_open


def goaways(client: Client) -> list[bytes]:
    return [frame.payload for frame in split(client.wire.written) if frame.kind == frames.GOAWAY]


@on_a_clock
async def test_a_client_is_told_to_leave_with_an_answer_or_once_it_is_quiet(port: Port, loop: Clock) -> None:
    busy, quiet = Client(port, CONNECTED + frames.SETTINGS_ACK), Client(port, CONNECTED + frames.SETTINGS_ACK)
    busy.call(1)
    await pass_time(loop, 0.0)
    port.leave()
    await pass_time(loop, 0.9)
    busy.send(frames.frame(frames.PING, frames.ACK, 0, bytes(8)))
    port.leave()
    assert (len(goaways(busy)), len(goaways(quiet))) == (0, 0)
    await pass_time(loop, 0.1)
    port.leave()
    assert (len(goaways(busy)), len(goaways(quiet))) == (0, 1)
    busy.call(3)
    await pass_time(loop, 0.0)
    kinds = [(frame.kind, frame.stream) for frame in split(busy.wire.written)]
    assert kinds.index((frames.GOAWAY, 0)) < kinds.index((frames.HEADERS, 3))


@on_a_clock
async def test_a_client_that_has_not_taken_our_settings_is_not_told_to_leave(port: Port, loop: Clock) -> None:
    client = Client(port)
    await pass_time(loop, 5.0)
    port.leave()
    assert goaways(client) == []
    client.send(frames.SETTINGS_ACK)
    await pass_time(loop, 1.0)
    port.leave()
    assert len(goaways(client)) == 1


@on_a_clock
async def test_a_silent_connection_with_a_call_stays_while_its_client_answers_pings(port: Port, loop: Clock) -> None:
    client = Client(port)
    client.open(1, STREAM)
    for _ in range(5):
        loop.now += ALIVE_SECONDS
        client.protocol.check(loop.now)
        [*_, ping] = [frame for frame in split(client.wire.written) if frame.kind == frames.PING]
        client.send(frames.frame(frames.PING, frames.ACK, 0, ping.payload))
    assert client.wire.is_open
    loop.now += ALIVE_SECONDS
    client.protocol.check(loop.now)
    client.protocol.check(loop.now + 20.0)
    assert not client.wire.is_open


# Calls ----------------------------------------------------------------------------------------------------------------


@on_a_clock
async def test_of_too_many_calls_without_a_message_the_one_that_waited_longest_ends(port: Port, loop: Clock) -> None:
    port.calls.read_timeouts._most = 4
    client = Client(port)
    for stream in (1, 3, 5, 7, 9, 11):
        client.open(stream)
    text = "4 calls are open whose messages did not come yet; try again in a moment"
    assert [client.status(stream) for stream in (1, 3)] == [(grpc.StatusCode.RESOURCE_EXHAUSTED.value[0], text)] * 2
    for stream in (5, 7, 9, 11):
        client.send(wire.data(stream, http2.prefixed(b"hello"), end=True))
    await pass_time(loop, 0.0)
    assert [client.status(stream) for stream in (5, 7, 9, 11)] == [(0, "")] * 4
    assert len(port.calls.read_timeouts) == 0


@on_a_clock
async def test_a_message_that_does_not_come_whole_in_a_minute_ends_its_call(port: Port, loop: Clock) -> None:
    client = Client(port)
    client.open(1)
    client.open(3)
    client.send(wire.data(3, http2.prefixed(b"hello")[:-1]))
    await pass_time(loop, 59.0)
    assert (client.status(1), client.status(3)) == (None, None)
    await pass_time(loop, 16.0)
    text = "request: expected its message within 60 s, found that it did not come"
    assert client.status(1) == client.status(3) == (grpc.StatusCode.DEADLINE_EXCEEDED.value[0], text)


@on_a_clock
async def test_a_deadline_ends_a_call_in_any_state(port: Port, loop: Clock) -> None:
    port.gate.clear()
    client = Client(port)
    fields = http2.request_fields(UNARY, grpc_timeout="5S")
    for stream in (1, 3):
        client.send(wire.headers(stream, http2.literals(fields)))
    client.send(wire.data(3, http2.prefixed(b"hello"), end=True))
    await pass_time(loop, 5.0)
    expected = (grpc.StatusCode.DEADLINE_EXCEEDED.value[0], "the deadline of the call has passed")
    assert client.status(1) == client.status(3) == expected
    await pass_time(loop, 0.0)
    assert (port.calls.open, port.calls.awaited()) == (0, 0)


@on_a_clock
async def test_calls_that_are_reset_in_any_state_leave_nothing(port: Port, loop: Clock) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(calls, "_AT_ONCE", 1)
        client = Client(port)
        port.gate.clear()
        client.open(1)
        client.open(3, STREAM)
        client.call(5)
        await pass_time(loop, 0.0)  # 3 and 5 run
        client.call(7)  # is due
        client.call(9)  # is due after that
        for stream in (1, 3, 5, 7, 9):
            client.send(http2.rst_stream(stream))
        await pass_time(loop, 0.0)
    assert (port.calls.open, port.calls.awaited(), port.calls.coming, port.calls._delayed_calls) == (0, 0, 0, 0)
    assert not client.protocol.calls


# The end --------------------------------------------------------------------------------------------------------------


@on_a_clock
async def test_silent_calls_hold_the_end_up_for_four_seconds(port: Port, loop: Clock) -> None:
    client = Client(port)
    client.open(1)
    port.hurry()
    await pass_time(loop, 5.0)
    assert client.status(1) == (grpc.StatusCode.UNAVAILABLE.value[0], "the server is stopping; call another one")


@on_a_clock
async def test_callers_that_go_on_do_not_hold_up_the_end_nor_cut_off_what_takes_long(port: Port, loop: Clock) -> None:
    client = Client(port)
    port.gate.clear()
    client.call(1)
    drained = asyncio.ensure_future(port.drain(grace=20.0, quiet_seconds=0.5))
    for stream in range(3, 23, 2):
        client.call(stream)
        await pass_time(loop, 0.4)
    text = "the server is stopping; call another one, or try again later"
    assert client.status(3) is None  # came while it still listened
    assert client.status(21) == (grpc.StatusCode.UNAVAILABLE.value[0], text)
    port.gate.set()
    while not drained.done():
        await pass_time(loop, 0.1)
    assert client.status(1) == client.status(3) == (0, "")
    assert not client.wire.is_open


# Streams --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("held", "newcomer", "gives"),
    [
        (["a:1", "a:1", "a:1", "b:1"], "b:2", "a:1"),
        (["a:1", "a:1", "a:2"], "a:3", "a:1"),
        (["a:1", "a:2", "b:1"], "b:1", None),
        (["a:1", "b:1", "c:1"], "d:1", None),
    ],
    ids=["another address", "another connection", "its own address holds as many", "nobody holds more"],
)
def test_who_holds_most_places_gives_one_up_for_one_who_holds_fewer(
    held: list[str], newcomer: str, gives: str | None
) -> None:
    lost: list[str] = []

    async def hold(slots: Slots, connection: str) -> None:
        try:
            with slots.one(connection):
                await asyncio.Event().wait()
        except BusyError as error:
            lost.append(connection if "given to another caller" in str(error) else "")

    async def check() -> None:
        slots = Slots(len(held), "streams")
        tasks = [asyncio.ensure_future(hold(slots, connection)) for connection in held]
        await asyncio.sleep(0)
        tasks.append(asyncio.ensure_future(hold(slots, newcomer)))
        for _ in range(3):
            await asyncio.sleep(0)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    asyncio.run(check())
    assert lost == ([""] if gives is None else [gives])


# Over real sockets ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", ["/paramsync.v1.Sync/GetStatus", "/paramsync.v1.Sync/Watch"])
def test_a_call_that_ends_without_a_message_is_refused(served: Running, path: str) -> None:
    call: Any = served.control.stream_unary(path, bytes, bytes)
    with pytest.raises(grpc.RpcError, match="request: expected one message, found none") as raised:
        call(iter(()), timeout=LONG)
    assert raised.value.code() is grpc.StatusCode.INVALID_ARGUMENT


def test_a_caller_that_shuts_its_writing_side_gets_the_answers_to_whole_requests(in_process: InProcess) -> None:
    content = http2.prefixed(request().SerializeToString())
    with Http2Client(in_process.port) as client:
        for stream, part in ((1, content), (3, content), (5, content[:-1])):
            client.send(http2.request(stream) + wire.data(stream, part, end=stream != 5))
        client.socket.shutdown(socket.SHUT_WR)
        assert [client.response(stream).status for stream in (1, 3)] == [0, 0]
        assert (client.response(5).status, client.response(5).code) == (None, CANCEL)
        assert client.closed() == 0
    eventually(lambda: not len(in_process.server.grpc.connections), lambda: "no connection to be left")


def test_the_calls_of_a_caller_that_is_gone_end(in_process: InProcess) -> None:
    """A caller that shuts its writing side and one that is gone look the same until something is written to them."""
    connections = in_process.server.grpc.connections
    with Http2Client(in_process.port) as client:
        client.send(http2.request(1, HEALTH) + wire.data(1, http2.prefixed(b""), end=True))
        eventually(lambda: any(connection.calls for connection in connections), lambda: "the call")
        assert client.answers()  # it has read all, so that the kernel ends the connection as if there was more to come
    eventually(lambda: not len(connections), lambda: "no connection to be left")
