"""What follows a store gives way to what serves."""

from __future__ import annotations

import os
import sys
import threading
from pathlib import Path

import pytest

from paramsync.following.follower import NICENESS, Follower, lower_priority
from tests.support.followers import LONG, SILENT
from tests.support.published import Publisher


def niceness() -> dict[int, int]:
    return {int(one.name): os.getpriority(os.PRIO_PROCESS, int(one.name)) for one in Path("/proc/self/task").iterdir()}


@pytest.mark.skipif(sys.platform != "linux", reason="threads have a priority of their own on Linux only")
def test_only_the_follower_gives_way(follower: Follower, publisher: Publisher) -> None:
    publisher.publish(1)
    before, others = niceness(), {*threading.enumerate()}
    follower.start(SILENT)
    follower.sync(timeout=LONG)
    (worker,) = (one for one in {*threading.enumerate()} - others if one.name == "follower m")
    after = niceness()
    mine = before[threading.main_thread().native_id or 0]
    lower = {one for one, nice in after.items() if nice > mine} - before.keys()
    assert lower == {worker.native_id}
    assert after[worker.native_id or 0] == min(19, mine + NICENESS)


def test_where_it_cannot_be_told_nothing_happens(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: int) -> None:
        raise PermissionError

    monkeypatch.setattr(os, "setpriority", refused)
    lower_priority()
    monkeypatch.delattr(os, "setpriority")
    lower_priority()
