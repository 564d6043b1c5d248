"""The event loop of a busy server has a processor to itself among its threads; after it all are as they were before."""

from __future__ import annotations

import asyncio
import math
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from queue import SimpleQueue

import pytest

from inferencer.event_loop import reserved_processor
from inferencer.event_loop.reserved_processor import OwnProcessor

LONG = 30.0
AWHILE = 0.1
BUSY = 1000.0  # seconds of a test, for much of which it ran, however long that took
SPINNING = "import os, sys; os.sched_setaffinity(0, {int(sys.argv[1])}); print(flush=True)\nwhile True: pass"
pytestmark = pytest.mark.skipif(
    sys.platform != "linux" or len(os.sched_getaffinity(0)) < reserved_processor._FEWEST, reason="no processor to spare"
)


@pytest.fixture(autouse=True)
def everywhere() -> Iterator[set[int]]:
    """Where threads may be, before and after."""
    before = masks()
    allowed = os.sched_getaffinity(0)
    yield allowed
    after = masks()
    assert {one: before[one] for one in before.keys() & after.keys()} == {
        one: after[one] for one in before.keys() & after.keys()
    }


class Told:
    """What the system says of the thread that the test runs on: real numbers depend on who else is busy here."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._ran = self._waited = 0
        self._own = folder / str(threading.get_native_id())
        for one in Path("/proc/self/task").iterdir():
            (folder / one.name).mkdir()
        self._own.joinpath("stat").write_text((Path("/proc/self/task") / self._own.name / "stat").read_text())
        self.busy(0.0)
        self.processor = OwnProcessor()
        self.processor.look()

    def busy(self, seconds: float, *, waited: float = 0.0) -> None:
        """It ran for so long since, and could have for so long more."""
        self._ran, self._waited = self._ran + round(seconds * 1e9), self._waited + round(waited * 1e9)
        self._own.joinpath("schedstat").write_text(f"{self._ran} {self._waited} 1\n")

    def look(self, seconds: float, *, waited: float = 0.0) -> None:
        """After it did."""
        self.busy(seconds, waited=waited)
        self.processor.look()


@pytest.fixture
def told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Told]:
    monkeypatch.setattr(reserved_processor, "_THREADS", tmp_path)
    told = Told(tmp_path)
    yield told
    told.processor.leave()


def masks() -> dict[int, set[int]]:
    found = {}
    for one in Path("/proc/self/task").iterdir():
        try:
            found[int(one.name)] = os.sched_getaffinity(int(one.name))
        except OSError:  # it has ended
            continue
    return found


def mine() -> set[int]:
    return os.sched_getaffinity(threading.get_native_id())


def busy() -> None:
    end = time.thread_time() + AWHILE
    while time.thread_time() < end:
        pass


@contextmanager
def beside() -> Iterator[int]:
    """A thread that waits."""
    ended: SimpleQueue[None] = SimpleQueue()
    thread = threading.Thread(target=ended.get)
    thread.start()
    try:
        yield thread.native_id or 0
    finally:
        ended.put(None)
        thread.join()


def test_while_it_is_busy_others_stay_off(told: Told, tmp_path: Path, everywhere: set[int]) -> None:
    with beside() as there:
        (tmp_path / str(there)).mkdir()
        told.look(BUSY)
        (one,) = mine()
        assert os.sched_getaffinity(there) == everywhere - {one}
        with beside() as later:
            assert os.sched_getaffinity(later) == {one}  # as the thread that started it
            (tmp_path / str(later)).mkdir()
            told.look(BUSY)
            assert mine() == {one}
            assert os.sched_getaffinity(there) == os.sched_getaffinity(later) == everywhere - {one}
            told.look(0.0)
            assert mine() == os.sched_getaffinity(there) == os.sched_getaffinity(later) == everywhere


def test_one_that_has_little_to_do_has_none(told: Told, everywhere: set[int]) -> None:
    told.look(0.0)
    assert mine() == everywhere


@pytest.mark.parametrize("away", [LONG, 0.0])
def test_one_that_waits_for_it_leaves_it_for_a_while(
    told: Told, everywhere: set[int], monkeypatch: pytest.MonkeyPatch, away: float
) -> None:
    monkeypatch.setattr(reserved_processor, "_AWAY", away)
    told.look(BUSY)
    told.look(BUSY, waited=BUSY / 20)
    assert len(mine()) == 1
    told.look(BUSY, waited=BUSY / 5)
    assert mine() == everywhere
    told.look(BUSY)
    assert len(mine()) == (len(everywhere) if away else 1)


def test_a_place_that_somebody_gave_is_kept(told: Told, tmp_path: Path, everywhere: set[int]) -> None:
    """To the thread itself, or to one beside it."""
    first, second, *_ = sorted(everywhere)
    with beside() as placed:
        (tmp_path / str(placed)).mkdir()
        os.sched_setaffinity(placed, {first, second})
        told.look(BUSY)
        assert len(mine()) == 1
        os.sched_setaffinity(0, {first, second})
        try:
            told.look(BUSY)
            assert mine() == os.sched_getaffinity(placed) == {first, second}
            told.look(BUSY)
            assert mine() == {first, second}  # which are few
        finally:
            os.sched_setaffinity(0, everywhere)


def test_where_there_are_few_nothing_happens(told: Told, everywhere: set[int]) -> None:
    few = set(sorted(everywhere)[:2])
    os.sched_setaffinity(0, few)
    try:
        told.look(BUSY)
        assert mine() == few
        asyncio.run(asyncio.wait_for(OwnProcessor().keep(), LONG))  # there is nothing to keep
    finally:
        os.sched_setaffinity(0, everywhere)


def test_where_the_system_does_not_say_nothing_happens(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, everywhere: set[int]
) -> None:
    monkeypatch.setattr(reserved_processor, "_THREADS", tmp_path)
    monkeypatch.setattr(reserved_processor, "_PERIOD", 0.001)
    with pytest.raises(FileNotFoundError):
        OwnProcessor().look()

    async def run() -> None:
        keeping = asyncio.ensure_future(OwnProcessor().keep())
        await asyncio.sleep(AWHILE)
        assert not keeping.done()  # it may say so later
        keeping.cancel()
        await asyncio.wait([keeping])

    asyncio.run(run())
    assert mine() == everywhere


@pytest.mark.parametrize("lost", ["schedstat", "stat"])
def test_where_it_says_no_more_a_loop_goes_on_without(
    told: Told, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, everywhere: set[int], lost: str
) -> None:
    """Until it says so again: a server without descriptors for a while cannot ask."""
    monkeypatch.setattr(reserved_processor, "_PERIOD", 0.001)
    file = next(tmp_path.glob(f"*/{lost}"))
    kept = file.read_text()

    async def until(done: Callable[[], bool]) -> None:
        end = time.monotonic() + LONG
        while not done() and time.monotonic() < end:
            told.busy(BUSY)
            await asyncio.sleep(0.002)
        assert done()

    async def run() -> None:
        keeping = asyncio.ensure_future(told.processor.keep())
        await until(lambda: len(mine()) == 1)
        told.processor.leave()
        file.unlink()
        await asyncio.sleep(AWHILE)
        assert mine() == everywhere
        assert not keeping.done()
        file.write_text(kept)
        await until(lambda: len(mine()) == 1)
        keeping.cancel()
        await asyncio.wait([keeping])

    asyncio.run(run())
    assert mine() == everywhere


def test_what_began_just_now_is_let_go_too(told: Told, everywhere: set[int]) -> None:
    """It has not been looked at."""
    told.look(BUSY)
    with beside() as later:
        (told.folder / str(later)).mkdir()
        assert os.sched_getaffinity(later) == mine()
        told.processor.leave()
        assert os.sched_getaffinity(later) == everywhere


def test_what_the_system_took_a_processor_from_is_let_go(told: Told, everywhere: set[int]) -> None:
    with beside() as there:
        (told.folder / str(there)).mkdir()
        told.look(BUSY)
        fewer = set(sorted(everywhere - mine())[1:])
        os.sched_setaffinity(there, fewer)
        told.look(0.0)
        assert os.sched_getaffinity(there) == everywhere


def test_other_threads_that_have_much_to_do_may_be_everywhere(
    told: Told, everywhere: set[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reserved_processor, "_CROWDED", -math.inf)
    told.look(BUSY)
    assert len(mine()) == 1
    told.look(BUSY)
    assert mine() == everywhere


@pytest.mark.slow
def test_its_loop_is_looked_after_until_it_ends(monkeypatch: pytest.MonkeyPatch, everywhere: set[int]) -> None:
    """And two processes do not share one for long."""
    monkeypatch.setattr(reserved_processor, "_PERIOD", AWHILE)

    async def until(done: Callable[[], bool]) -> None:
        end = time.monotonic() + LONG
        while not done() and time.monotonic() < end:
            busy()
            await asyncio.sleep(0)
        assert done()

    async def run() -> None:
        keeping = asyncio.ensure_future(OwnProcessor().keep())
        await until(lambda: len(mine()) == 1)
        command = [sys.executable, "-c", SPINNING, str(*mine())]
        with subprocess.Popen(command, stdout=subprocess.PIPE) as other:
            try:
                await until(lambda: mine() == everywhere)
            finally:
                other.kill()
        monkeypatch.setattr(reserved_processor, "_AWAY", 0.0)
        keeping.cancel()
        await asyncio.wait([keeping])
        again = asyncio.ensure_future(OwnProcessor().keep())
        await until(lambda: len(mine()) == 1)
        again.cancel()
        await asyncio.wait([again])
        assert mine() == everywhere

    asyncio.run(run())
