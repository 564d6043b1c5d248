"""The server's event loop is woken once for all that gRPC has, and for everybody else is a loop as any."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import grpc
import pytest

from inferencer.event_loop import loop as loops
from inferencer.event_loop.loop import IdleSelector

_CALL = "/a.Service/Call"
_CALLERS = 8
_CALLS = 50


@pytest.fixture
def loop() -> Iterator[asyncio.AbstractEventLoop]:
    made = loops.Policy(IdleSelector()).new_event_loop()
    asyncio.set_event_loop(made)
    yield made
    asyncio.set_event_loop(None)
    made.close()


class _Echo(grpc.GenericRpcHandler):  # type: ignore[type-arg]
    def service(self, details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler[bytes, bytes]:
        return grpc.unary_unary_rpc_method_handler(self._answer)

    async def _answer(self, request: bytes, context: Any) -> bytes:
        return request


def _calls(port: int, number: int) -> list[bytes]:
    with grpc.insecure_channel(f"127.0.0.1:{port}", [("grpc.enable_http_proxy", 0)]) as channel:
        call = channel.unary_unary(_CALL, bytes, bytes)
        return [call(b"%d %d" % (number, at), timeout=30) for at in range(_CALLS)]


def test_grpc_wakes_it_and_no_byte_is_left_behind(
    loop: asyncio.AbstractEventLoop, monkeypatch: pytest.MonkeyPatch
) -> None:
    left: list[int] = []
    woken = loops._woken

    def watched(waking: socket.socket, callback: Callable[..., Any], *arguments: Any) -> None:
        def called(*arguments: Any) -> None:
            left.append(len(waking.recv(2, socket.MSG_PEEK)))
            callback(*arguments)

        woken(waking, called, *arguments)

    monkeypatch.setattr(loops, "_woken", watched)

    async def serve() -> list[list[bytes]]:
        server = grpc.aio.server()
        server.add_generic_rpc_handlers((_Echo(),))
        port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        found = await asyncio.gather(*(asyncio.to_thread(_calls, port, number) for number in range(_CALLERS)))
        await server.stop(None)
        return found

    assert loop.run_until_complete(serve()) == [
        [b"%d %d" % (number, at) for at in range(_CALLS)] for number in range(_CALLERS)
    ]
    assert left, "gRPC was not recognized"
    # what the callback takes, and at times one that came between
    assert left.count(1) > len(left) / 2


def test_all_bytes_but_one_are_taken_before_the_callback_takes_that() -> None:
    here, there = socket.socketpair()
    with here, there:
        here.setblocking(False)
        there.send(b"1" * 100)
        loops._woken(here, here.recv, 1)
        with pytest.raises(BlockingIOError):
            here.recv(1)
        there.send(b"1")
        loops._woken(here, here.recv, 1)
        with pytest.raises(BlockingIOError):
            here.recv(1)


@pytest.mark.parametrize("wrapped", [False, True])
def test_who_is_not_grpc_reads_all_bytes(loop: asyncio.AbstractEventLoop, wrapped: bool) -> None:
    here, there = socket.socketpair()
    read: list[bytes] = []

    def one(count: int) -> None:
        read.append(here.recv(count))
        if len(read) == 5:
            loop.stop()

    with here, there:
        here.setblocking(False)
        there.send(b"abcde")
        if wrapped:
            loop.add_reader(here, partial(one, 1))
        else:
            loop.add_reader(here.fileno(), one, 1)
        late = threading.Timer(30, loop.call_soon_threadsafe, [loop.stop])
        late.start()
        loop.run_forever()
        late.cancel()
        loop.remove_reader(here)
    assert read == [b"a", b"b", b"c", b"d", b"e"]
