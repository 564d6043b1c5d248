"""What a file system never answers holds up nobody for long, and what it answers late is nobody's concern."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading

import pytest

from inferencer.serving.call_with_timeout import aside
from paramsync.errors import StoreError, SyncError
from tests.support.followers import LONG
from tests.support.programs import ROOT


def test_what_comes_back_is_returned_and_what_is_raised_is_raised() -> None:
    assert asyncio.run(aside(lambda: 7, "a look")) == 7
    with pytest.raises(StoreError, match="gone"):
        asyncio.run(aside(fails, "a look"))


def fails() -> None:
    raise StoreError(ROOT, "gone")


def test_what_does_not_come_back_in_time_is_given_up_whatever_comes_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("inferencer.serving.call_with_timeout._SECONDS", 0.05)
    for late in (lambda: None, fails):
        goes_on = threading.Event()

        def hangs(late: object = late, goes_on: threading.Event = goes_on) -> None:
            goes_on.wait(LONG)
            assert callable(late)
            late()

        with pytest.raises(SyncError, match=r"a look: expected the file system to answer within 0.05 s"):
            asyncio.run(aside(hangs, "a look"))
        (thread,) = (one for one in threading.enumerate() if one.name == "a look")
        goes_on.set()
        thread.join(LONG)


def test_a_process_ends_though_it_was_not_answered() -> None:
    code = """
import asyncio, os
from inferencer.serving import call_with_timeout
call_with_timeout._SECONDS = 0.1
read, _ = os.pipe()
try:
    asyncio.run(call_with_timeout.aside(lambda: os.read(read, 1), "a look"))
except call_with_timeout.SyncError:
    print("given up", end="")
"""
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout == "given up"
