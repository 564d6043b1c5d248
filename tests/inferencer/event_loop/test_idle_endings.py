"""Whoever waits for an event loop to rest comes to an end of it: by giving up, an interrupt, or the end of the loop."""

from __future__ import annotations

import asyncio
import signal
import socket
import time
from contextlib import suppress
from pathlib import Path
from selectors import EVENT_READ

import pytest

from inferencer.event_loop.idle import Rests
from paramsync.host import yielding
from tests.support.programs import eventually
from tests.support.resting import FEW, LONG, Guests, answers, busy, gives, left, put_off, seconds


def test_who_gave_up_waits_no_more_and_leaves_nothing_behind(rests: Rests, loop: asyncio.AbstractEventLoop) -> None:
    before = len(left())
    with busy(loop):
        Guests(4, lambda: gives(rests, 3)).join()
        assert len(left()) == before
    assert answers(loop)


@pytest.mark.usefixtures("patient")
def test_an_interrupt_ends_the_wait_and_the_block(rests: Rests, loop: asyncio.AbstractEventLoop) -> None:
    def interrupt(number: int, frame: object) -> None:
        raise KeyboardInterrupt

    before, previous = len(left()), signal.signal(signal.SIGALRM, interrupt)
    try:
        with busy(loop):
            signal.setitimer(signal.ITIMER_REAL, 0.1)
            with pytest.raises(KeyboardInterrupt):
                gives(rests)
            assert seconds(yielding.give) < LONG / 3
            assert len(left()) == before
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, previous)


@pytest.mark.usefixtures("patient")
def test_an_error_ends_the_block(rests: Rests, loop: asyncio.AbstractEventLoop) -> None:
    with busy(loop):
        with pytest.raises(RuntimeError, match="gone"), rests.first():
            raise RuntimeError("gone")
        assert seconds(yielding.give) < LONG / 3


@pytest.mark.usefixtures("impatient")
def test_a_loop_that_does_not_run_is_waited_for_until_patience_ends(rests: Rests) -> None:
    loop = asyncio.SelectorEventLoop(rests)
    assert put_off(rests) < 5 * FEW
    loop.run_until_complete(asyncio.sleep(0.01))
    assert put_off(rests) < 5 * FEW
    loop.close()
    assert put_off(rests) < 5 * FEW


@pytest.mark.usefixtures("impatient")
def test_a_loop_that_ends_while_it_is_waited_for_is_no_error(rests: Rests) -> None:
    loop = asyncio.SelectorEventLoop(rests)
    waited: list[float] = []

    async def end() -> None:
        loop.stop()
        time.sleep(0.05)

    loop.call_soon(lambda: loop.create_task(end()))
    several = Guests(3, lambda: waited.append(seconds(lambda: gives(rests, 100))))
    loop.run_forever()
    loop.close()
    several.join()
    assert max(waited) < 5 * FEW


@pytest.mark.usefixtures("impatient")
def test_what_is_closed_while_it_rests_is_no_error(rests: Rests) -> None:
    """As it is for a moment to a thread that asks while the loop wakes up for the last time."""

    def rest() -> None:
        with suppress(OSError):  # closed before it is waited on
            rests.select()

    reading, writing = socket.socketpair()
    with reading, writing:
        rests.register(reading, EVENT_READ)
        loop = Guests(1, rest)
        eventually(rests.is_resting, lambda: "a rest")
        time.sleep(0.05)
        rests.close()
        took = put_off(rests)
        writing.send(b"x")
        loop.join()
    assert took < 5 * FEW


@pytest.mark.usefixtures("patient")
def test_a_round_of_what_a_server_follows_gives_way(
    tmp_path: Path, rests: Rests, loop: asyncio.AbstractEventLoop
) -> None:
    from inferencer.serving.served import Maker  # here, for all else does without TensorFlow
    from inferencer.settings.settings import ModelSettings

    made = Maker(poll_seconds=60.0, state=None, rests=rests).make([ModelSettings(name="m", store=tmp_path / "m")], {})
    [follower] = made["m"].followers
    with busy(loop):
        one = Guests(1, follower.run_once)
        time.sleep(0.1)
        assert not one.are_done()
    one.join()
    follower.close()
