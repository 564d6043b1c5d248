"""An event loop that hostile connections keep busy: others have their turn, and what waits is bounded."""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import Awaitable, Callable
from contextlib import ExitStack
from typing import Any

import pytest

from inferencer.transport import calls, connections
from inferencer.transport.grpc_connection import GrpcConnection
from inferencer.transport.grpc_port import GrpcPort
from inferencer.transport.memory_budget import MemoryBudget
from inferencer.transport.methods import Admission, Call, Method
from inferencer.transport.turns import ANSWER_SECONDS, READ_BYTES, READ_SECONDS, Turns
from paramsync.http2 import frames
from paramsync.rpc.access import Access
from tests.http2 import wire

MB = 1 << 20
PATH = b"/service/Method"
CONNECTED = frames.PREFACE + frames.settings({})
UNREAD = frames.PREFACE + frames.settings({frames.INITIAL_WINDOW_SIZE: 0})  # takes no answer
TINY = wire.data(1, bytes(16))
PING = frames.frame(frames.PING, 0, 0, bytes(8))
MOST = 64  # connections


def begun(stream: int) -> bytes:
    return wire.with_fields(stream, [(b"content-type", b"application/grpc"), (b"te", b"trailers")])


def called(stream: int) -> bytes:
    return begun(stream) + wire.data(stream, b"\0\0\0\0\5hello", end=True)


async def until(condition: Callable[[], object]) -> None:
    while not condition():
        await asyncio.sleep(0)


# Whose turn is next ---------------------------------------------------------------------------------------------------


class Spending:
    """A connection that takes as many seconds in each of its turns."""

    def __init__(self, turns: Turns, served: list[Spending], cost: float, seconds: float, rounds: int = 1) -> None:
        self.cost = cost
        self._turns, self._served, self._seconds, self._rounds = turns, served, seconds, rounds

    def serve(self) -> None:
        self._served.append(self)
        self.cost += self._seconds
        self._turns.spend(self._seconds)
        self._rounds -= 1
        if self._rounds:
            self._turns.wait(self)


def in_turns(check: Callable[[Turns, list[Spending]], Awaitable[None]]) -> Callable[[], None]:
    async def main() -> None:
        await check(Turns(asyncio.get_running_loop()), [])

    return lambda: asyncio.run(main())


@in_turns
async def test_connections_that_cost_least_go_first_then_those_with_few_bytes(
    turns: Turns, served: list[Spending]
) -> None:
    costly, large, small, free = (Spending(turns, served, cost, 1.0) for cost in (3.0, 1.0, 1.0, 0.0))
    for connection, size in ((costly, 0), (large, 2), (small, 1), (free, 3)):
        turns.wait(connection, size)
    for expected in ([free], [free, small], [free, small, large], [free, small, large, costly]):
        await asyncio.sleep(0)  # a turn of the event loop, which one of them spends
        assert served == expected


@in_turns
async def test_once_a_turn_is_spent_costly_connections_wait_and_once_it_is_full_all_do(
    turns: Turns, served: list[Spending]
) -> None:
    for _ in range(100):
        turns.wait(Spending(turns, served, 0.0, 0.0))
    turns.wait(Spending(turns, served, 0.0, 0.005))
    await asyncio.sleep(0)
    assert len(served) == 101
    costly, cheap = (Spending(turns, served, cost, 0.0) for cost in (1.0, 0.0))
    assert [turns.has_time(connection) for connection in (costly, cheap)] == [False, True]
    turns.spend(0.005)
    assert [turns.has_time(connection) for connection in (costly, cheap)] == [False, False]
    assert len(turns.room(cheap)) < len(turns.buffer)
    await asyncio.sleep(0)
    assert [turns.has_time(connection) for connection in (costly, cheap)] == [True, True]


# Ports ----------------------------------------------------------------------------------------------------------------


class Port(GrpcPort):
    """A port whose one method answers with what it is asked, while its gate is open."""

    def __init__(self, stack: ExitStack) -> None:
        method = Method(self._answer, Admission(Access(host="127.0.0.1"), "service/Method"), predicts=True)
        super().__init__({PATH.decode(): method}, MemoryBudget(64 * MB), message_bytes=64 * MB)
        self.gate = asyncio.Event()
        self.gate.set()
        self.begun = self.answered = 0
        self._stack = stack

    async def _answer(self, call: Call) -> None:
        self.begun += 1
        await self.gate.wait()
        self.answered += 1
        call.answer(call.take(), ())

    def only_connection(self) -> GrpcConnection:
        [connection] = self.connections
        assert isinstance(connection, GrpcConnection)
        return connection

    async def connect(self, content: bytes = b"") -> socket.socket:
        """Return the client's end of a connection, which has sent the content."""
        client, served = socket.socketpair()
        self._stack.enter_context(client)
        client.setblocking(False)
        served.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 16)
        await asyncio.get_running_loop().connect_accepted_socket(self.protocol, served)
        assert client.send(content) == len(content)
        return client


def with_port(*, most: int = 1000, newcomers: int = 128) -> Callable[[Callable[..., Awaitable[None]]], Any]:
    """Run a test's coroutine with a port of at most as many connections, and as many predictions of newcomers."""

    def decorate(check: Callable[..., Awaitable[None]]) -> Callable[[], None]:
        async def main() -> None:
            with ExitStack() as stack, pytest.MonkeyPatch.context() as patch:
                patch.setattr(calls, "_MOST_OF_NEWCOMERS", newcomers)
                port = Port(stack)
                port.connections._most = most
                await asyncio.wait_for(check(port), 60.0)
                await port.stop()

        return lambda: asyncio.run(main())

    return decorate


async def receive(client: socket.socket, kind: int) -> None:
    """Read frames until one is of this kind."""
    content = b""
    while True:
        content += await asyncio.get_running_loop().sock_recv(client, MB)
        try:
            if kind in [frame.kind for frame in wire.split(content)]:
                return
        except AssertionError:  # not whole yet
            continue


# What hostile input costs ---------------------------------------------------------------------------------------------


@with_port()
async def test_a_call_is_answered_while_hostile_connections_have_far_more_to_be_read(port: Port) -> None:
    beginning = CONNECTED + begun(1) + wire.data(1, b"\0\3\0\0\0")
    hostile = [await port.connect(beginning) for _ in range(20)]
    caller = await port.connect(CONNECTED)
    await receive(caller, frames.SETTINGS)
    for client in hostile:  # all of it is there before the event loop has another turn
        client.send(TINY * 8000)
    caller.send(called(1))
    await receive(caller, frames.HEADERS)
    assert port.calls.coming < 20 * 8000 * 16 // 2
    await until(lambda: port.calls.coming == 20 * 8000 * 16)  # none of it is lost


@with_port()
async def test_a_client_that_does_not_read_answers_to_pings_is_read_no_more_until_it_does(port: Port) -> None:
    client = await port.connect(CONNECTED)
    connection = port.only_connection()
    transport = connection.transport
    assert transport is not None
    sent = 0
    while connection._behind <= 1 << 14:
        assert client.send(PING * 100) == 100 * len(PING)
        sent += 100
        await asyncio.sleep(0)
    assert transport.get_write_buffer_size() < 1 << 16
    await until(lambda: not transport.is_reading())
    client.send(PING * 3)
    answer, content = frames.frame(frames.PING, frames.ACK, 0, bytes(8)), b""
    while content.count(answer) < sent + 3:
        content += await asyncio.get_running_loop().sock_recv(client, MB)
    assert transport.is_reading()


@pytest.mark.parametrize(("came", "size", "reads"), [(5, 10, 0), (5, 1 << 17, 0), (10 * READ_BYTES, 10, 10)])
def test_an_answer_makes_up_for_what_reading_its_call_takes_however_large_it_is(
    came: int, size: int, reads: int
) -> None:
    earned: list[float] = []

    @with_port()
    async def check(port: Port) -> None:
        client = await port.connect(CONNECTED + begun(1))
        connection = port.only_connection()

        async def answer(call: Call) -> None:
            before = connection.cost = 1.0
            call.answer(bytes(size), ())
            earned.append(before - connection.cost)

        method = Method(answer, Admission(Access(host="127.0.0.1"), "service/Method"))
        port.calls.methods = {PATH.decode(): method}
        message = struct.pack(">BI", 0, came) + bytes(came)
        parts = [message[at : at + 16_000] for at in range(0, len(message), 16_000)]
        sent = b"".join(wire.data(1, part) for part in parts) + wire.data(1, b"", end=True)
        await asyncio.get_running_loop().sock_sendall(client, sent)
        await receive(client, frames.DATA)

    check()
    assert earned == [pytest.approx(ANSWER_SECONDS + reads * READ_SECONDS)]


# Room for newcomers ---------------------------------------------------------------------------------------------------


@with_port(most=MOST)
async def test_connections_with_an_unread_answer_make_room_one_for_one_and_each_newcomer_is_answered(
    port: Port,
) -> None:
    for _ in range(MOST):
        await port.connect(UNREAD + called(1))
    await until(lambda: port.answered == MOST)
    kept = await port.connect(CONNECTED)
    for newcomer in range(3 * MOST):
        await port.connect(UNREAD + called(1))
        await receive(await port.connect(CONNECTED + called(1)), frames.HEADERS)
        assert len(port.connections) <= MOST + 2  # of which two are being ended
        if newcomer % 4 == 0:  # a connection that goes on calling stays
            kept.send(called(newcomer // 2 + 1))
            await receive(kept, frames.HEADERS)


@with_port(most=MOST)
async def test_calls_whose_clients_take_no_answer_make_room_for_a_caller_that_does(port: Port) -> None:
    port.gate.clear()
    for _ in range(MOST):
        await port.connect(UNREAD + called(1))
    await until(lambda: port.begun == MOST)
    callers = [await port.connect(CONNECTED + called(1)) for _ in range(4)]
    await until(lambda: port.begun == MOST + len(callers))
    port.gate.set()
    for client in callers:
        await receive(client, frames.HEADERS)


@with_port(newcomers=2)
async def test_predictions_of_newcomers_wait_for_one_another_and_others_do_not(port: Port) -> None:
    known = await port.connect(CONNECTED + called(1))
    await receive(known, frames.HEADERS)
    port.gate.clear()
    newcomers = [await port.connect(CONNECTED + called(1)) for _ in range(5)]
    await until(lambda: len(port.calls._later) == 3)
    newcomers.pop().close()
    await until(lambda: len(port.calls._later) == 2)
    known.send(called(3))
    await until(lambda: port.begun == 1 + 2 + 1)
    port.gate.set()
    for client in (known, *newcomers):
        await receive(client, frames.HEADERS)
    await until(lambda: not port.calls._of_newcomers)


@with_port(newcomers=1)
async def test_of_newcomers_the_last_goes_first_and_each_gets_one_prediction_before_any_gets_its_second(
    port: Port,
) -> None:
    port.gate.clear()
    first = await port.connect(CONNECTED + called(1))
    await until(lambda: port.begun)
    early = await port.connect(CONNECTED + called(1))
    await until(lambda: port.calls._later)
    [of_early] = port.calls._later
    late = await port.connect(CONNECTED + b"".join(called(stream) for stream in (1, 3, 5)))
    await until(lambda: sum(map(len, port.calls._later.values())) == 4)
    waiting = []
    while port.calls._later:
        waiting.append([len(port.calls._later.get(of_early, ())), sum(map(len, port.calls._later.values()))])
        port.calls._admit_queued()
    assert waiting == [[1, 4], [1, 3], [0, 2], [0, 1]]
    port.gate.set()
    for client in (first, early, late):
        await receive(client, frames.HEADERS)


@with_port(newcomers=1)
async def test_a_client_that_takes_no_answer_waits_until_those_that_do_were_answered(port: Port) -> None:
    port.gate.clear()
    await port.connect(CONNECTED + called(1))
    await until(lambda: port.begun)
    newcomers = []
    for number, content in enumerate((UNREAD, CONNECTED, UNREAD), start=1):
        newcomers.append(await port.connect(content + called(1)))
        while len(port.calls._later) + len(port.calls._last) < number:
            await asyncio.sleep(0)
    newcomers[1].send(called(3))
    await until(lambda: [*map(len, port.calls._later.values())] == [2])
    port.calls._admit_queued()
    port.calls._admit_queued()
    assert (len(port.calls._later), len(port.calls._last)) == (0, 2)
    port.gate.set()
    await until(lambda: port.answered == 5)


# How connections end --------------------------------------------------------------------------------------------------


@with_port()
async def test_answers_that_many_leave_unread_end_those_that_leave_most(port: Port) -> None:
    content = UNREAD + b"".join(called(stream) for stream in range(1, 20, 2))
    for _ in range(10):
        await port.connect(content)
    await port.connect(UNREAD + called(1))
    await until(lambda: port.answered == 10 * 10 + 1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(connections, "_MOST_UNREAD", 50)
        port.connections._shed_unread()
    await until(lambda: len(port.connections) <= 5)
    assert sorted(connection.unread for connection in port.connections) == [1, 10, 10, 10, 10]


@with_port()
async def test_thousands_of_connections_are_checked_a_few_at_a_time_until_none_is_left(port: Port) -> None:
    checked: list[GrpcConnection] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(connections, "_LOOK_SECONDS", 0.0)
        patch.setattr(connections, "_CHECKED_AT_ONCE", 2)
        patch.setattr(GrpcConnection, "check", lambda connection, now: checked.append(connection))
        for _ in range(2):  # it begins anew once all have gone
            clients = [await port.connect(CONNECTED) for _ in range(7)]
            await until(lambda: len(port.connections) == 7)
            while not {*port.connections} <= {*checked}:
                before = len(checked)
                await asyncio.sleep(0)
                assert len(checked) - before <= 2
            for client in clients:
                client.close()
            await until(lambda: not (len(port.connections) or port.connections._looking))
            checked.clear()
