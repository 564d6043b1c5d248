"""Where ports listen, how listeners are handed on and closed, and the turns that an event loop takes."""

from __future__ import annotations

import asyncio
import os
import resource
import socket
from collections.abc import Coroutine
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pytest

from inferencer.settings.settings import Settings
from inferencer.supervisor.listeners import Listeners
from inferencer.transport.event_loop import _MOST, new_event_loop
from inferencer.transport.listeners import Acceptor, listener_on, listeners_at, port_of
from paramsync.errors import SettingsError

HERE = "127.0.0.1"


class _Says(asyncio.Protocol):
    def __init__(self, what: bytes) -> None:
        self._what = what

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        transport.write(self._what)
        transport.close()


def _acceptor(listener: socket.socket, what: bytes) -> Acceptor:
    """Of a descriptor of its own, as each process has."""
    acceptor = Acceptor(lambda: _Says(what), handshake_seconds=1.0)
    acceptor.take([listener.dup()], None)
    return acceptor


async def _read(caller: socket.socket) -> bytes:
    return await asyncio.get_running_loop().sock_recv(caller, 16)


def _caller(family: int, where: tuple[str, int] | str) -> socket.socket:
    """Its connection is made by the kernel, whether or not anybody accepts it."""
    caller = socket.socket(family)
    caller.connect(where)
    caller.setblocking(False)
    return caller


@pytest.mark.parametrize("kind", ["TCP", "UNIX"])
def test_who_waits_while_a_listener_is_handed_on_is_accepted_by_the_next(kind: str, tmp_path: Path) -> None:
    async def handed_on() -> tuple[bytes, bytes]:
        path = tmp_path / "socket"
        listener = listener_on(path) if kind == "UNIX" else listeners_at(HERE, 0, "--port")[0]
        where = str(path) if kind == "UNIX" else (HERE, port_of([listener]))
        with listener:
            first = _acceptor(listener, b"first")
            await first.start()
            with _caller(listener.family, where) as early:
                answered = await _read(early)
            first.stop(handed_on=True)
            with _caller(listener.family, where) as late:
                second = _acceptor(listener, b"second")
                await second.start()
                after = await _read(late)
            second.stop()
        return answered, after

    assert asyncio.run(handed_on()) == (b"first", b"second")


def test_nobody_comes_to_a_listener_that_is_not_handed_on_though_another_process_has_it_open() -> None:
    async def stopped() -> None:
        [listener] = listeners_at(HERE, 0, "--port")
        port = port_of([listener])
        with listener:
            acceptor = _acceptor(listener, b"")
            await acceptor.start()
            acceptor.stop()
            with socket.socket() as caller, pytest.raises(ConnectionRefusedError):
                caller.connect((HERE, port))

    asyncio.run(stopped())


def test_an_answer_does_not_wait_for_its_caller_to_acknowledge_the_one_before() -> None:
    accepted: list[int] = []

    class Watched(asyncio.Protocol):
        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            connection = transport.get_extra_info("socket")
            accepted.append(connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))
            transport.close()

    async def connect() -> None:
        listeners = listeners_at(HERE, 0, "--port")
        port = port_of(listeners)
        acceptor = Acceptor(Watched, handshake_seconds=1.0)
        acceptor.take(listeners, None)
        await acceptor.start()
        with _caller(socket.AF_INET, (HERE, port)) as caller:
            assert await _read(caller) == b""
        acceptor.stop()

    asyncio.run(connect())
    assert accepted == [1]


def test_without_descriptors_all_that_cannot_be_accepted_is_one_line(caplog: pytest.LogCaptureFixture) -> None:
    told = asyncio.Event()

    async def check() -> None:
        loop = asyncio.get_running_loop()
        [listener] = listeners_at(HERE, 0, "--port")
        with listener, _caller(socket.AF_INET, (HERE, port_of([listener]))) as caller:
            acceptor = _acceptor(listener, b"here")
            await acceptor.start()
            handler = loop.get_exception_handler()
            assert handler is not None
            errors: list[dict[str, Any]] = []

            def handle(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
                errors.append(context)
                handler(loop, context)
                if len(errors) > 1:
                    told.set()

            loop.set_exception_handler(handle)
            soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
            resource.setrlimit(resource.RLIMIT_NOFILE, (_lowest(), hard))
            try:
                await told.wait()
            finally:
                resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
            assert await _read(caller) == b"here"
            acceptor.stop()

    asyncio.run(check())
    [record] = [record for record in caplog.records if record.name == "paramsync.loop"]
    assert record.exc_info is None
    assert "Too many open files" in record.getMessage()
    assert not [record for record in caplog.records if record.name == "asyncio" and record.levelname == "ERROR"]


def _lowest() -> int:
    """The number that the next file gets."""
    descriptor = os.open("/dev/null", os.O_RDONLY)
    os.close(descriptor)
    return descriptor


ELSEWHERE = "203.0.113.1"


def resolve(patch: pytest.MonkeyPatch, *addresses: str) -> None:
    """Have every name be those of these addresses."""
    found = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, 0)) for address in addresses]
    patch.setattr("inferencer.transport.listeners.socket.getaddrinfo", lambda *_, **__: found)


@pytest.mark.parametrize("addresses", [(ELSEWHERE, HERE), (HERE, ELSEWHERE), (HERE, "127.0.0.2")])
def test_a_port_listens_at_those_addresses_of_a_name_that_this_machine_has(
    addresses: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    resolve(monkeypatch, *addresses)
    with ExitStack() as stack:
        listeners = [stack.enter_context(listener) for listener in listeners_at("name", 0, "--port")]
        where = [listener.getsockname() for listener in listeners]
    port = where[0][1]
    assert where == [(address, port) for address in addresses if address != ELSEWHERE]


def test_a_name_without_an_address_of_this_machine_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    resolve(monkeypatch, ELSEWHERE)
    with pytest.raises(SettingsError, match="--port"):
        listeners_at("name", 0, "--port")


def test_a_server_reserves_its_ports_at_addresses_of_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    resolve(monkeypatch, ELSEWHERE, HERE)
    with closing(Listeners(Settings(models=(), host="name", port=0, rest_port=0))) as listeners:
        assert [one.getsockname()[0] for each in listeners.of(0) for one in each] == [HERE, HERE]


def run(main: Coroutine[Any, Any, None]) -> None:
    loop = new_event_loop()
    try:
        loop.run_until_complete(main)
    finally:
        loop.close()


def test_a_turn_takes_few_events_and_each_has_its_turn_before_any_has_its_second() -> None:
    pairs = [socket.socketpair() for _ in range(3 * _MOST)]
    taken: list[int] = []

    async def check() -> None:
        loop = asyncio.get_running_loop()
        for number, (here, _) in enumerate(pairs):
            loop.add_reader(here, taken.append, number)  # it reads nothing, so that there is always more
        for _, there in pairs:
            there.send(b"x")
        while len(taken) < len(pairs):
            before = len(taken)
            await asyncio.sleep(0)
            assert len(taken) - before <= _MOST
        assert taken[: len(pairs)] == [*range(len(pairs))]
        for here, _ in pairs:
            loop.remove_reader(here)

    run(check())
    for pair in pairs:
        for one in pair:
            one.close()


def test_a_file_that_was_closed_before_it_was_removed_ends_nothing() -> None:
    async def check() -> None:
        loop = asyncio.get_running_loop()
        here, there = socket.socketpair()
        file = here.fileno()
        with socket.socket(fileno=os.dup(file)), there:  # the copy keeps the socket open, and epoll watches it
            loop.add_reader(file, here.recv, 1)
            here.close()
            loop.remove_reader(file)
            there.send(b"x")
            for _ in range(3):
                await asyncio.sleep(0)

    run(check())
