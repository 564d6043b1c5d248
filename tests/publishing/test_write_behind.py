"""WriteBehind, with writers that a test can stop."""

from __future__ import annotations

import logging
import threading
from concurrent.futures import Future

import pytest

from paramsync.errors import PublishError
from paramsync.publishing.write_behind import WriteBehind
from paramsync.version import Version
from tests.support.written import version

TIMEOUT = 30


def test_of_those_that_wait_only_the_newest_is_written_and_the_others_are_counted() -> None:
    begun, go_on = threading.Event(), threading.Event()
    written = []

    def write(number: int) -> Version:
        begun.set()
        assert go_on.wait(TIMEOUT)
        written.append(number)
        return version(number)

    behind = WriteBehind(write)
    behind.start()
    behind.put(1)
    assert begun.wait(TIMEOUT)
    for number in (2, 3, 4):
        behind.put(number)
    go_on.set()
    assert behind.flush(TIMEOUT)
    behind.close()
    assert written == [1, 4]
    status = behind.status()
    assert (status.publishes, status.skipped, status.published) == (2, 2, version(4))


def test_who_waits_for_one_that_is_overtaken_gets_the_one_that_overtook_it() -> None:
    behind = WriteBehind(version)
    first: Future[Version] = Future()
    second: Future[Version] = Future()
    behind.put(1, first)
    behind.put(2, second)
    assert behind.run_once()
    assert first.result(0) == second.result(0) == version(2)
    assert not behind.run_once()


def test_an_error_goes_to_who_waits_and_into_the_status_until_a_write_succeeds(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def write(number: int) -> Version:
        if number == 1:
            raise OSError("disk full")
        return version(number)

    behind = WriteBehind(write)
    future: Future[Version] = Future()
    behind.put(1, future)
    with caplog.at_level(logging.ERROR):
        behind.run_once()
    assert [record.getMessage() for record in caplog.records] == ["a publication failed, training goes on: disk full"]
    with pytest.raises(PublishError, match="disk full"):
        future.result(0)
    assert behind.status().last_error == "disk full"
    assert behind.take_error() == "disk full"
    assert behind.take_error() is None
    behind.put(2)
    behind.run_once()
    assert behind.status().last_error is None


def test_close_writes_what_waits() -> None:
    behind = WriteBehind(version)
    behind.put(1)
    behind.start()
    behind.close()
    assert behind.status().published == version(1)


def test_a_listener_that_fails_harms_nobody_else(caplog: pytest.LogCaptureFixture) -> None:
    def fail(version: Version) -> None:
        raise ValueError("mine")

    behind = WriteBehind(version)
    heard: list[Version] = []
    behind.subscribe(fail)
    behind.subscribe(heard.append)
    future: Future[Version] = Future()
    behind.put(1, future)
    assert behind.run_once()
    assert [future.result(0)] == heard == [version(1)]
    assert behind.status().last_error is None
    assert "a listener failed at version 1" in caplog.text


def test_a_listener_that_would_wait_for_its_own_thread_is_refused() -> None:
    behind = WriteBehind(version)
    refused: list[str] = []
    heard = threading.Event()

    def wait(version: Version) -> None:
        for call in (behind.check_thread, lambda: behind.flush(None), behind.close):
            with pytest.raises(PublishError, match="a listener must not wait for it"):
                call()
            refused.append(call.__name__)
        heard.set()

    behind.subscribe(wait)
    behind.start()
    behind.put(1)
    assert heard.wait(TIMEOUT)
    behind.close()
    assert len(refused) == 3
