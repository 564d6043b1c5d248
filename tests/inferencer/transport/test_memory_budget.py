"""Messages that come take room of the budget that their port was given, whichever port it is."""

from __future__ import annotations

import asyncio

from inferencer.transport.calls import Calls
from inferencer.transport.grpc_connection import GrpcConnection
from inferencer.transport.memory_budget import MemoryBudget


async def held(budget: MemoryBudget, *sizes: int) -> list[int]:
    """What is used after each of these sizes came, or left, at two ports by turns."""
    ports = [Calls({}, budget, message_bytes=1 << 20, connection_seconds=None) for _ in range(2)]
    connections = [GrpcConnection(port) for port in ports]
    used = []
    for turn, size in enumerate(sizes):
        ports[turn % 2].held(connections[turn % 2], size)
        used.append(budget.used)
    return used


def test_what_comes_at_two_ports_of_one_budget_is_counted_together() -> None:
    assert asyncio.run(held(MemoryBudget(100), 30, 50, 40, -50)) == [30, 80, 120, 70]


def test_more_than_there_may_be_is_known_to_the_port_that_it_comes_at() -> None:
    budget = MemoryBudget(100)
    asyncio.run(held(budget, 101))
    assert budget.over
