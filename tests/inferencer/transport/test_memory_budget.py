"""Messages that come take room of the budget that their port was given, whichever port it is."""

from __future__ import annotations

import asyncio

import pytest

from inferencer.transport.grpc_port import GrpcPort
from inferencer.transport.memory_budget import MemoryBudget
from paramsync.errors import BusyError


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
