"""The memory of messages comes from the budget of their port, and is given back in whatever order calls end."""

from __future__ import annotations

import asyncio
import gzip
import random
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as some

from inferencer.transport.grpc_port import GrpcPort
from inferencer.transport.memory_budget import MemoryBudget
from inferencer.transport.methods import Admission, Call, Method
from inferencer.transport.streams import until
from paramsync.errors import BusyError
from paramsync.http2 import frames
from paramsync.rpc.access import Access
from tests.http2 import wire
from tests.support import http2_client as http2
from tests.support.wires import Clock, Wire, feed

MOST = 3 << 20
CONTENT = random.Random(1).randbytes(400_000)
PACKED = http2.prefixed(gzip.compress(CONTENT, 1), compressed=1)
SENT = {
    "plain": http2.prefixed(CONTENT),
    "small": http2.prefixed(b"12"),
    "packed": PACKED,
    "half": PACKED[: len(PACKED) // 2],
    "rest": PACKED[len(PACKED) // 2 :],
    "broken": http2.prefixed(CONTENT[:70_000], compressed=1),
    "nothing": b"",
}
UNARY, STREAM = "/test/Unary", "/test/Stream"


class Threads(ThreadPoolExecutor):
    """Their work is done when the test says so."""

    def __init__(self) -> None:
        super().__init__(1)
        self.work: list[tuple[Future[Any], Callable[[], Any]]] = []

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()
        future.set_running_or_notify_cancel()  # from now on nobody can take it back
        self.work.append((future, lambda: fn(*args, **kwargs)))
        return future

    def do(self, number: int) -> None:
        if self.work:
            future, work = self.work.pop(number % len(self.work))
            try:
                future.set_result(work())
            except Exception as error:  # noqa: BLE001, as a thread does
                future.set_exception(error)


class Port:
    """A port, one client's connection, and what is computed."""

    def __init__(self, loop: Clock) -> None:
        self.loop = loop
        self.threads = Threads()
        loop.set_default_executor(self.threads)
        self.budget = MemoryBudget(MOST)
        self.others = self.budget.share()
        self.computing: list[asyncio.Future[None]] = []
        self.draining = asyncio.Event()
        admission = Admission(Access(host="127.0.0.1"), "test/Method")
        methods = {UNARY: Method(self._unary, admission), STREAM: Method(self._stream, admission, is_stream=True)}
        self.port = GrpcPort(methods, self.budget, message_bytes=1 << 20)
        self.calls = self.port.calls
        self.drained: asyncio.Future[None] | None = None
        self.opened = 0
        self.connect()

    def connect(self) -> None:
        self.protocol = self.port.protocol()
        self.wire = Wire(self.protocol)
        self.protocol.connection_made(self.wire)
        self.streams: list[int] = []
        self.receive(frames.PREFACE + frames.settings({frames.INITIAL_WINDOW_SIZE: 100_000}))

    def receive(self, content: bytes) -> None:
        if self.wire.is_open:
            feed(self.protocol, content)

    def open(self, path: str, timeout: bool) -> None:
        self.opened += 1
        self.streams.append(2 * self.opened - 1)
        fields = http2.request_fields(path, grpc_encoding="gzip", grpc_timeout="5S" if timeout else None)
        self.receive(wire.headers(self.streams[-1], http2.literals(fields)))

    def send(self, call: int, what: str, end: bool) -> None:
        if not self.streams:
            return
        stream, content = self.streams[call % len(self.streams)], SENT[what]
        parts = [content[at : at + 60_000] for at in range(0, len(content), 60_000)] or [b""]
        for part in parts:
            self.receive(wire.data(stream, part, end=end and part is parts[-1]))
        if end:
            self.streams.remove(stream)

    def reset(self, call: int) -> None:
        if self.streams:
            self.receive(http2.rst_stream(self.streams.pop(call % len(self.streams))))

    def reset_newest(self) -> None:
        """Also one whose caller sends no more."""
        if self.opened and self.wire.is_open:
            self.receive(http2.rst_stream(2 * self.opened - 1))
            self.streams = [stream for stream in self.streams if stream != 2 * self.opened - 1]

    def read(self) -> None:
        """The client reads more of all answers."""
        if self.wire.is_open and self.protocol.calls:
            self.receive(frames.settings({frames.INITIAL_WINDOW_SIZE: 10 << 20}))

    def close(self) -> None:
        self.wire.abort()
        self.opened = 0
        self.connect()

    def compute(self) -> None:
        if self.computing and not (future := self.computing.pop(0)).done():
            future.set_result(None)

    def crowd(self, size: int) -> None:
        self.others.keep(size)

    def drain(self) -> None:
        self.draining.set()
        if self.drained is None:
            self.drained = asyncio.ensure_future(self.port.end(2.0))

    async def turns(self, count: int) -> None:
        for _ in range(count):
            await asyncio.sleep(0)

    async def pass_time(self, seconds: float) -> None:
        self.loop.now += seconds
        await self.turns(3)

    async def _compute(self) -> None:
        self.computing.append(self.loop.create_future())
        await self.computing[-1]

    async def _unary(self, call: Call) -> None:
        content = call.take()
        call.share = self.budget.share()
        call.share.keep(2 * len(content))
        await self._compute()
        call.answer(content, ())

    async def _stream(self, call: Call) -> None:
        async for content in until(self.draining, call.read):
            await self._compute()
            await call.write(content[:10])
        call.finish()

    def check(self) -> None:
        held = sum(connection.held for connection in self.port.connections)
        assert self.calls.coming == held >= 0
        assert self.budget.used >= self.others.size + held

    async def over(self) -> None:
        """Everything ends, and nothing is left."""
        self.crowd(0)
        await self.send_one()
        self.wire.abort()
        for _ in range(30):
            self.threads.do(0)
            self.compute()
            await self.pass_time(1.0)
        assert (self.calls.coming, self.protocol.held, self.budget.used) == (0, 0, 0)
        await self.port.stop()

    async def send_one(self) -> None:
        """A compressed message still gets its turn."""
        if self.drained is not None:
            return
        self.close()
        self.open(UNARY, timeout=False)
        self.send(-1, "packed", end=True)
        self.computing.clear()
        for _ in range(30):
            self.threads.do(0)
            await self.turns(3)
        assert self.computing


@contextmanager
def port() -> Iterator[tuple[Clock, Port]]:
    loop = Clock()

    async def made() -> Port:
        return Port(loop)

    try:
        yield loop, loop.run_until_complete(made())
    finally:
        loop.close()


number = some.integers(0, 3)
step = some.one_of(
    some.tuples(some.just("open"), some.sampled_from([UNARY, STREAM]), some.booleans()),
    some.tuples(some.just("send"), number, some.sampled_from([*SENT]), some.booleans()),
    some.tuples(some.just("send"), number, some.sampled_from(["packed", "plain"]), some.just(False)),
    some.tuples(some.just("unpack"), number),
    some.tuples(some.just("turns"), some.integers(1, 3)),
    some.tuples(some.just("reset"), number),
    some.tuples(some.sampled_from(["reset_newest", "compute", "read", "close", "drain", "late"])),
    some.tuples(some.just("crowd"), some.sampled_from([0, MOST // 2, MOST])),
)


async def take(port: Port, kind: str, *arguments: Any) -> None:
    if kind == "turns":
        await port.turns(*arguments)
    elif kind == "unpack":
        port.threads.do(*arguments)
    elif kind == "late":
        await port.pass_time(6.0)
    else:
        getattr(port, kind)(*arguments)


@settings(max_examples=300)
@given(some.lists(step, max_size=40))
def test_in_no_order_of_events_the_memory_of_messages_is_counted_wrong(steps: list[tuple[Any, ...]]) -> None:
    async def run(port: Port) -> None:
        for step in [("open", STREAM, False), *steps]:
            await take(port, *step)
            port.check()
        await port.over()

    with port() as (loop, made):
        loop.run_until_complete(run(made))


@pytest.mark.parametrize("path", [UNARY, STREAM])
@pytest.mark.parametrize("end", ["reset_newest", "late", "close", "drain"])
@pytest.mark.parametrize("turns", range(5))
def test_a_message_that_is_unpacked_while_its_call_ends_is_given_back_once(path: str, end: str, turns: int) -> None:
    async def run(port: Port) -> None:
        port.open(path, True)
        port.send(0, "packed", end=path == UNARY)
        await port.turns(4)
        assert port.threads.work
        port.threads.do(0)
        await port.turns(turns)
        await take(port, end)
        port.check()
        await port.turns(4)
        port.check()
        await port.over()

    with port() as (loop, made):
        loop.run_until_complete(run(made))


def test_a_message_for_which_there_is_no_thread_gives_its_turn_back() -> None:
    async def run(port: Port) -> None:
        with pytest.MonkeyPatch.context() as without_threads:
            without_threads.setattr(port.threads, "submit", refuse)
            for _ in range(5):
                port.open(UNARY, False)
                port.send(0, "packed", end=True)
                await port.turns(4)
        assert (port.protocol.calls, port.calls.coming) == ({}, 0)
        await port.over()

    def refuse(*_: Any) -> None:
        raise RuntimeError("can't start new thread")

    with port() as (loop, made):
        loop.run_until_complete(run(made))


async def held(budget: MemoryBudget, *sizes: int) -> list[int]:
    """What is used after a message of two ports, by turns, has each of these sizes."""
    ports = [GrpcPort({}, budget, message_bytes=1 << 20) for _ in range(2)]
    connections, shares = [port.protocol() for port in ports], [budget.share() for _ in ports]
    used = []
    for turn, size in enumerate(sizes):
        ports[turn % 2].calls.hold(connections[turn % 2], shares[turn % 2], size)
        used.append(budget.used)
        assert (
            sum(port.calls.coming for port in ports) == sum(connection.held for connection in connections) == used[-1]
        )
    for share in shares:
        share.leave()
    return used


def test_what_comes_at_two_ports_of_one_budget_is_counted_together() -> None:
    assert asyncio.run(held(MemoryBudget(100), 30, 50, 70, 0)) == [30, 80, 120, 70]


def test_the_processes_of_one_server_share_a_budget() -> None:
    taken = memoryview(bytearray(16)).cast("Q")
    one, other = MemoryBudget(100, taken, 0), MemoryBudget(100, taken, 1)
    held, share = other.share(), one.share()
    held.need(60)
    with pytest.raises(BusyError, match="take 60 bytes: expected 100"):
        share.need(50)
    held.leave()
    share.need(50)
    assert other.used == 50
    share.leave()


def test_more_than_there_may_be_is_over() -> None:
    budget = MemoryBudget(100)
    share = budget.share()
    share.keep(100)
    assert not budget.over
    share.keep(101)
    assert budget.over
