"""Room for bodies, where other processes of the server take of the same memory."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from inferencer.protocols.http import intake as module
from inferencer.protocols.http.intake import Intake, _Waiting
from inferencer.transport.memory_budget import MemoryBudget, MemoryShare
from paramsync.errors import BusyError
from tests.support.http import MB

MOST = 100 * MB


class Server:
    """What one process has of the memory, and what another one has."""

    def __init__(self) -> None:
        self.words = memoryview(bytearray(16)).cast("Q")
        self.budget = MemoryBudget(MOST, self.words, 0)
        self.intake = Intake(self._on_thread, limit=MOST, patience=1.0)
        self._threads = ThreadPoolExecutor(1)

    async def _on_thread(self, work: Any) -> bytes:
        return await asyncio.get_running_loop().run_in_executor(self._threads, work)

    def take_elsewhere(self, size: int) -> None:
        self.words[1] = size

    def share(self, size: int) -> MemoryShare:
        share = self.budget.share()
        share.keep(size)
        return share


class Cancelled(asyncio.Future[None]):
    """A body that is coming. Another process takes what it leaves."""

    def __init__(self, server: Server) -> None:
        super().__init__()
        self._server = server

    def cancel(self, msg: Any = None) -> bool:
        self._server.take_elsewhere(MOST)
        return super().cancel(msg)


def test_what_another_process_takes_of_what_bodies_leave_is_no_fault() -> None:
    async def ask() -> None:
        server = Server()
        first, second = server.share(10 * MB), server.share(80 * MB)
        newer = _Waiting(second)
        newer.coming = Cancelled(server)
        server.intake._waiting[second] = newer
        with pytest.raises(BusyError):
            server.intake.need(first, 50 * MB)
        assert first.size == 10 * MB
        assert second.size == 0

    asyncio.run(ask())


def lacking(server: Server) -> MemoryShare:
    """That of a body which is read, and wants more than another process leaves."""
    server.take_elsewhere(60 * MB)
    return server.share(10 * MB)


def test_a_body_that_is_read_waits_for_what_another_process_leaves(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_MOST_WAITING", 10_000.0)

    async def ask() -> None:
        share = lacking(server := Server())
        waiting = asyncio.ensure_future(server.intake.room(share, 50 * MB))
        await asyncio.sleep(0.1)
        assert not waiting.done()
        server.take_elsewhere(0)
        await waiting
        assert share.size == 50 * MB

    asyncio.run(ask())


def test_a_body_that_is_read_does_not_wait_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_MOST_WAITING", 0.1)

    async def ask() -> None:
        share = lacking(server := Server())
        with pytest.raises(BusyError):
            await server.intake.room(share, 50 * MB)
        assert share.size == 10 * MB

    asyncio.run(ask())
