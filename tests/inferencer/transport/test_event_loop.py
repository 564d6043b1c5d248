"""The event loop of ports: what many bring at once is taken in turns, in the order in which it came."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Coroutine
from typing import Any

from inferencer.transport.event_loop import _MOST, new_event_loop


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


def test_who_can_write_and_whose_other_end_has_gone_are_told() -> None:
    async def check() -> None:
        loop, told = asyncio.get_running_loop(), asyncio.Event()
        here, there = socket.socketpair()
        with here, there:
            loop.add_writer(here, told.set)
            await told.wait()
            loop.remove_writer(here)
            told.clear()
            loop.add_reader(here, told.set)
            await asyncio.sleep(0.01)
            assert not told.is_set()
            there.close()
            await told.wait()
            loop.remove_reader(here)

    run(check())


def test_a_file_that_was_closed_before_it_was_removed_ends_nothing() -> None:
    async def check() -> None:
        loop = asyncio.get_running_loop()
        here, there = socket.socketpair()
        file = here.fileno()
        with socket.socket(fileno=os.dup(file)), there:  # a copy keeps it open, and among those that are looked at
            loop.add_reader(file, here.recv, 1)
            here.close()
            loop.remove_reader(file)
            there.send(b"x")
            for _ in range(3):
                await asyncio.sleep(0)

    run(check())
