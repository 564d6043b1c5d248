"""A worker that leaves waits until each accepted connection is known."""

from __future__ import annotations

import asyncio
import contextlib
import socket

import pytest

from inferencer.transport.event_loop import new_event_loop
from inferencer.transport.listeners import Acceptor, listeners_at, port_of
from inferencer.worker.server import _ACCEPTING_TURNS


async def answering(turns: int) -> tuple[int, int, bool]:
    """Stop listening after some turns of the loop. Returns how many connections are made within _ACCEPTING_TURNS, how
    many later, and whether the successor can accept one."""
    made: list[asyncio.BaseTransport] = []

    class Noted(asyncio.Protocol):
        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            made.append(transport)

    acceptor, listeners = Acceptor(Noted, handshake_seconds=1.0), listeners_at("127.0.0.1", 0, "--port")
    with listeners[0].dup() as successor, socket.create_connection(("127.0.0.1", port_of(listeners))):
        acceptor.take(listeners, None)
        await acceptor.start()
        for _ in range(turns):
            await asyncio.sleep(0)
        acceptor.stop(handed_on=True)
        for _ in range(_ACCEPTING_TURNS):
            await asyncio.sleep(0)
        soon = len(made)
        for _ in range(20):
            await asyncio.sleep(0)
        for transport in made:
            transport.close()
        successor.setblocking(False)
        with contextlib.suppress(BlockingIOError):
            successor.accept()[0].close()
            return soon, len(made) - soon, True
    return soon, len(made) - soon, False


@pytest.mark.parametrize("turns", range(6))
def test_a_connection_is_known_within_a_few_turns_or_waits_for_the_successor(turns: int) -> None:
    loop = new_event_loop()
    soon, later, waits = loop.run_until_complete(answering(turns))
    loop.close()
    assert (soon + waits, later) == (1, 0)
