"""An event loop that hostile connections keep busy: others have their turn, and what waits is bounded."""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack, contextmanager
from itertools import count

import pytest

from inferencer.transport.grpc_connection import Connection
from inferencer.transport.grpc_port import GrpcPort
from inferencer.transport.listeners import listeners_at, port_of
from inferencer.transport.memory_budget import MemoryBudget
from inferencer.transport.methods import Admission, Call, Method
from inferencer.transport.turns import ANSWER_SECONDS, READ_BYTES, READ_SECONDS, Turns
from paramsync.http2 import frames
from paramsync.rpc.access import Access
from tests.http2 import wire

MB = 1 << 20
PATH = b"/service/Method"
CONNECTED = frames.PREFACE + frames.settings({})
UNREAD = frames.PREFACE + frames.settings({frames.INITIAL_WINDOW_SIZE: 0})
TINY = wire.data(1, bytes(16))


def begun(stream: int) -> bytes:
    return wire.with_fields(stream, [(b"content-type", b"application/grpc"), (b"te", b"trailers")])


def called(stream: int) -> bytes:
    return begun(stream) + wire.data(stream, b"\0\0\0\0\5hello", end=True)


class Spending:
    """What waits for its turn, and takes so many seconds of each."""

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


def test_those_that_cost_least_go_first_then_those_with_few_bytes_and_a_turn_ends_once_its_time_is_spent() -> None:
    async def check() -> None:
        turns, served = Turns(asyncio.get_running_loop()), list[Spending]()
        costly, large, small, free = (Spending(turns, served, cost, 1.0) for cost in (3.0, 1.0, 1.0, 0.0))
        for one, size in ((costly, 0), (large, 2), (small, 1), (free, 3)):
            turns.wait(one, size)
        for expected in ([free], [free, small], [free, small, large], [free, small, large, costly]):
            await asyncio.sleep(0)  # a turn of the event loop
            assert served == expected

    asyncio.run(check())


def test_one_that_comes_later_goes_before_one_that_costs_more_with_each_turn() -> None:
    async def check() -> None:
        turns, served = Turns(asyncio.get_running_loop()), list[Spending]()
        hostile = Spending(turns, served, 0.0, 1.0, rounds=100)
        turns.wait(hostile)
        await asyncio.sleep(0)
        caller = Spending(turns, served, 0.0, 1.0)
        turns.wait(caller)
        await asyncio.sleep(0)
        assert served == [hostile, caller]

    asyncio.run(check())


def test_once_a_turn_is_spent_input_of_costly_connections_waits_and_once_it_is_full_input_of_all() -> None:
    async def check() -> None:
        turns, served = Turns(asyncio.get_running_loop()), list[Spending]()
        for _ in range(100):
            turns.wait(Spending(turns, served, 0.0, 0.0))
        turns.wait(Spending(turns, served, 0.0, 0.005))
        await asyncio.sleep(0)
        assert len(served) == 101
        costly, cheap = (Spending(turns, served, cost, 0.0) for cost in (1.0, 0.0))
        assert [turns.has_time(one) for one in (costly, cheap)] == [False, True]
        turns.spend(0.005)
        assert [turns.has_time(one) for one in (costly, cheap)] == [False, False]
        assert len(turns.room(cheap)) < len(turns.buffer)
        await asyncio.sleep(0)
        assert [turns.has_time(one) for one in (costly, cheap)] == [True, True]

    asyncio.run(check())


def test_connections_that_cost_little_and_had_to_wait_have_as_much_of_the_next_turn_as_those_that_come() -> None:
    async def check() -> None:
        turns, served = Turns(asyncio.get_running_loop()), list[Spending]()
        cheap = [Spending(turns, served, 0.0, 0.004) for _ in range(4)]
        costly = Spending(turns, served, 1.0, 0.004)
        for one in (costly, *cheap):
            turns.wait(one)
        for expected in (3, 4, 5):  # the costly one only where little of the turn was spent
            await asyncio.sleep(0)
            assert served == [*cheap, costly][:expected]

    asyncio.run(check())


class Port(GrpcPort):
    """A port whose one method answers with what it is asked."""

    def __init__(self, *, most: int = 1000) -> None:
        method = Method(self._answer, Admission(Access(host="127.0.0.1"), "service/Method"), predicts=True)
        super().__init__({PATH.decode(): method}, MemoryBudget(64 * MB), message_bytes=64 * MB)
        self.connections._most = most
        self.answered = 0

    async def _answer(self, call: Call) -> None:
        self.answered += 1
        call.answer(call.take(), ())

    async def connected(self, content: bytes = b"") -> socket.socket:
        """The client's end of a connection, which has sent that."""
        client, served = socket.socketpair()
        client.setblocking(False)
        served.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 16)
        await asyncio.get_running_loop().connect_accepted_socket(self.protocol, served)
        assert client.send(content) == len(content)
        return client


def run(check: Callable[[Port], Awaitable[None]], *, most: int = 1000, port: type[Port] = Port) -> None:
    async def main() -> None:
        made = port(most=most)
        await asyncio.wait_for(check(made), 60.0)
        await made.stop()

    asyncio.run(main())


@contextmanager
def clients(*ones: socket.socket) -> Iterator[None]:
    with ExitStack() as stack:
        for one in ones:
            stack.enter_context(one)
        yield


async def kinds(client: socket.socket, until: int) -> list[int]:
    """Of the frames that come, up to one of that kind."""
    content = b""
    while True:
        content += await asyncio.get_running_loop().sock_recv(client, MB)
        try:
            found = [frame.kind for frame in wire.split(content)]
        except AssertionError:  # not whole yet
            continue
        if until in found:
            return found


def test_a_call_is_answered_while_hostile_connections_have_far_more_to_be_read() -> None:
    sent = TINY * 8000

    async def check(port: Port) -> None:
        beginning = CONNECTED + begun(1) + wire.data(1, b"\0\3\0\0\0")
        hostile = [await port.connected(beginning) for _ in range(20)]
        caller = await port.connected(CONNECTED)
        await kinds(caller, frames.SETTINGS)
        with clients(caller, *hostile):
            for one in hostile:  # all of it is there before the event loop has another turn
                one.send(sent)
            caller.send(called(1))
            await kinds(caller, frames.HEADERS)
            assert port.calls.coming < 20 * 8000 * 16 // 2
            while port.calls.coming < 20 * 8000 * 16:  # none of it is lost
                await asyncio.sleep(0)

    run(check)


def test_a_client_that_does_not_read_answers_to_pings_is_read_no_more_until_it_does() -> None:
    ping = frames.frame(frames.PING, 0, 0, bytes(8))

    async def check(port: Port) -> None:
        client = await port.connected(CONNECTED)
        with clients(client):
            [connection] = port.connections
            transport = connection.transport
            assert transport is not None
            sent = 0
            while connection._behind <= 1 << 14:
                assert client.send(ping * 100) == 100 * len(ping)
                sent += 100
                await asyncio.sleep(0)
            assert transport.get_write_buffer_size() < 1 << 16
            for _ in range(10):
                await asyncio.sleep(0)
            assert not transport.is_reading()
            client.send(ping * 3)
            content = b""
            while len(wire_pings(content)) < sent + 3:
                content += await asyncio.get_running_loop().sock_recv(client, MB)
            assert transport.is_reading()

    run(check)


def test_a_frame_that_is_much_work_is_charged_for_all_of_it() -> None:
    settings = frames.frame(frames.SETTINGS, 0, 0, struct.pack(">HI", 0x99, 1) * 2700)

    async def check(port: Port) -> None:
        client = await port.connected(CONNECTED)
        with clients(client):
            [connection] = port.connections
            before = connection.cost
            client.send(settings * 4)
            content = b""
            while content.count(frames.SETTINGS_ACK) < 5:
                content += await asyncio.get_running_loop().sock_recv(client, MB)
            assert connection.cost - before > 4 * 2700 * 20e-9  # no processor checks a setting in less

    run(check)


@pytest.mark.parametrize(("came", "size", "reads"), [(5, 10, 0), (5, 1 << 17, 0), (10 * READ_BYTES, 10, 10)])
def test_an_answer_makes_up_for_what_reading_its_call_takes_however_large_it_is(
    came: int, size: int, reads: int
) -> None:
    earned: list[float] = []

    class Answering(Port):
        async def _answer(self, call: Call) -> None:
            [connection] = self.connections
            before = connection.cost = 1.0
            call.answer(bytes(size), ())
            earned.append(before - connection.cost)

    async def check(port: Port) -> None:
        client = await port.connected(CONNECTED + begun(1))
        with clients(client):
            message = struct.pack(">BI", 0, came) + bytes(came)
            parts = [message[at : at + 16_000] for at in range(0, len(message), 16_000)]
            sent = b"".join(wire.data(1, part) for part in parts) + wire.data(1, b"", end=True)
            await asyncio.get_running_loop().sock_sendall(client, sent)
            await kinds(client, frames.DATA)

    run(check, port=Answering)
    assert earned == [pytest.approx(ANSWER_SECONDS + reads * READ_SECONDS)]


def wire_pings(content: bytes) -> list[bytes]:
    answer = frames.frame(frames.PING, frames.ACK, 0, bytes(8))
    return [answer] * content.count(answer)


MOST = 64


def test_connections_with_an_unread_answer_make_room_one_for_one_and_each_newcomer_is_answered() -> None:
    async def check(port: Port) -> None:
        hostile = [await port.connected(UNREAD + called(1)) for _ in range(MOST)]
        while port.answered < MOST:
            await asyncio.sleep(0)
        kept = await port.connected(CONNECTED)
        streams = count(1, 2)
        with clients(kept, *hostile), ExitStack() as stack:
            for newcomer in range(3 * MOST):
                hostile_too = await port.connected(UNREAD + called(1))
                stack.enter_context(hostile_too)
                caller = await port.connected(CONNECTED + called(1))
                stack.enter_context(caller)
                await kinds(caller, frames.HEADERS)
                assert len(port.connections) <= MOST + 2  # of which two are being ended
                if newcomer % 4 == 0:  # what goes on calling stays
                    kept.send(called(next(streams)))
                    await kinds(kept, frames.HEADERS)

    run(check, most=MOST)


def test_a_connection_whose_client_is_gone_is_closed_without_an_error() -> None:
    async def check(port: Port) -> None:
        [listener] = listeners_at("127.0.0.1", 0, "--port")
        client = socket.create_connection(("127.0.0.1", port_of([listener])))
        port.take([listener], None)
        await port.start()
        while not port.connections:
            await asyncio.sleep(0)
        [connection] = port.connections
        client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        client.close()
        connection.close()
        while port.connections:
            await asyncio.sleep(0)

    run(check)


class GatedPort(Port):
    """Answers once its gate is open."""

    def __init__(self, *, most: int = 1000) -> None:
        super().__init__(most=most)
        self.gate = asyncio.Event()
        self.begun = 0

    async def _answer(self, call: Call) -> None:
        self.begun += 1
        await self.gate.wait()
        await super()._answer(call)


def test_predictions_of_newcomers_wait_for_one_another_and_others_do_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("inferencer.transport.calls._MOST_OF_NEWCOMERS", 2)

    async def check(port: Port) -> None:
        assert isinstance(port, GatedPort)
        port.gate.set()
        known = await port.connected(CONNECTED + called(1))
        await kinds(known, frames.HEADERS)
        port.gate.clear()
        newcomers = [await port.connected(CONNECTED + called(1)) for _ in range(5)]
        with clients(known, *newcomers):
            while len(port.calls._later) < 3:
                await asyncio.sleep(0)
            gone = newcomers.pop()
            gone.close()
            while len(port.calls._later) > 2:
                await asyncio.sleep(0)
            known.send(called(3))
            while port.begun < 1 + 2 + 1:
                await asyncio.sleep(0)
            port.gate.set()
            for one in (known, *newcomers):
                await kinds(one, frames.HEADERS)
            while port.calls._of_newcomers:
                await asyncio.sleep(0)

    run(check, port=GatedPort)


def test_a_waiting_connection_gets_one_prediction_started_before_the_others_have_their_turn(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("inferencer.transport.calls._MOST_OF_NEWCOMERS", 1)

    async def check(port: Port) -> None:
        assert isinstance(port, GatedPort)
        first = await port.connected(CONNECTED + called(1))
        while not port.begun:
            await asyncio.sleep(0)
        one = await port.connected(CONNECTED + called(1))
        while not port.calls._later:
            await asyncio.sleep(0)
        many = await port.connected(CONNECTED + b"".join(called(stream) for stream in (1, 3, 5)))
        with clients(first, one, many):
            while sum(map(len, port.calls._later.values())) < 4:
                await asyncio.sleep(0)
            started = []
            while port.calls._later:
                before = {connection: len(calls) for connection, calls in port.calls._later.items()}
                port.calls._admit_queued()
                after = {connection: len(calls) for connection, calls in port.calls._later.items()}
                started += [count for connection, count in before.items() if after.get(connection, 0) < count]
            assert started == [3, 1, 2, 1]  # of many, of one, and then the rest
            port.gate.set()
            for client in (first, one, many):
                await kinds(client, frames.HEADERS)

    run(check, port=GatedPort)


def test_answers_that_many_leave_unread_end_those_that_leave_most(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("inferencer.transport.connections._MOST_UNREAD", 50)

    async def check(port: Port) -> None:
        content = UNREAD + b"".join(called(stream) for stream in range(1, 20, 2))
        most = [await port.connected(content) for _ in range(10)]
        few = await port.connected(UNREAD + called(1))
        with clients(few, *most):
            while port.answered < 10 * 10 + 1:
                await asyncio.sleep(0)
            port.connections._shed_unread()
            while len(port.connections) > 5:
                await asyncio.sleep(0)
            assert sorted(connection.unread for connection in port.connections) == [1, 10, 10, 10, 10]

    run(check)


def test_a_client_that_takes_no_answer_waits_until_those_that_do_were_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("inferencer.transport.calls._MOST_OF_NEWCOMERS", 1)

    async def check(port: Port) -> None:
        assert isinstance(port, GatedPort)
        first = await port.connected(CONNECTED + called(1))
        while not port.begun:
            await asyncio.sleep(0)
        newcomers = []
        for number, content in enumerate((UNREAD, CONNECTED, UNREAD), start=1):
            newcomers.append(await port.connected(content + called(1)))
            while len(port.calls._later) + len(port.calls._last) < number:
                await asyncio.sleep(0)
        with clients(first, *newcomers):
            newcomers[1].send(called(3))
            while [*map(len, port.calls._later.values())] != [2]:
                await asyncio.sleep(0)
            port.calls._admit_queued()
            port.calls._admit_queued()
            assert (len(port.calls._later), len(port.calls._last)) == (0, 2)
            port.gate.set()
            while port.answered < 5:
                await asyncio.sleep(0)

    run(check, port=GatedPort)


def test_thousands_of_connections_are_checked_a_few_at_a_time_until_none_is_left(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("inferencer.transport.connections._LOOK_SECONDS", 0.0)
    monkeypatch.setattr("inferencer.transport.connections._CHECKED_AT_ONCE", 2)
    checked: list[Connection] = []
    monkeypatch.setattr(Connection, "check", lambda connection, now: checked.append(connection))

    async def check(port: Port) -> None:
        for _ in range(2):  # it begins anew once all have gone
            ones = [await port.connected(CONNECTED) for _ in range(7)]
            while len(port.connections) < len(ones):
                await asyncio.sleep(0)
            connections = {*port.connections}
            while not connections <= {*checked}:
                before = len(checked)
                await asyncio.sleep(0)
                assert len(checked) - before <= 2
            for one in ones:
                one.close()
            while port.connections or port.connections._looking:
                await asyncio.sleep(0)
            checked.clear()

    run(check)


def test_calls_whose_clients_take_no_answer_make_room_for_a_caller_that_does() -> None:
    async def check(port: Port) -> None:
        assert isinstance(port, GatedPort)
        hostile = [await port.connected(UNREAD + called(1)) for _ in range(MOST)]
        while port.begun < MOST:
            await asyncio.sleep(0)
        with clients(*hostile), ExitStack() as stack:
            callers = [stack.enter_context(await port.connected(CONNECTED + called(1))) for _ in range(4)]
            while port.begun < MOST + len(callers):
                await asyncio.sleep(0)
            port.gate.set()
            for one in callers:
                await kinds(one, frames.HEADERS)

    run(check, port=GatedPort, most=MOST)
