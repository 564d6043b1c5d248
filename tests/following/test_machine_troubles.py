"""A fault of this machine is reported and retried, and never quarantines a version."""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from paramsync.errors import CorruptCheckpointError, GraphError, UnfinishedError
from paramsync.following.faults import Fault, fault_of
from paramsync.following.follower import Follower
from paramsync.following.operator_requests import Action
from paramsync.following.policy import Backoff
from tests.support.followers import SILENT, quarantined, serving
from tests.support.programs import eventually
from tests.support.published import Publisher, ask, follower_of, proven
from tests.support.troubles import as_nobody, free_descriptors


def caused(error: BaseException, cause: BaseException) -> BaseException:
    error.__cause__ = cause
    return error


CORRUPT = CorruptCheckpointError(Path("a"), expected="a file", found="another")
OWN = [errno.ENOENT, errno.EISDIR, errno.ENOTDIR, errno.ELOOP, errno.ENXIO, errno.ENAMETOOLONG]
MACHINES = [
    *(errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EIO, errno.ESTALE, errno.ETIMEDOUT, errno.EINTR, errno.EAGAIN),
    *(errno.EACCES, errno.EPERM, errno.ENOLCK, errno.EHOSTDOWN, errno.ENOTCONN, errno.EUCLEAN),
]


@pytest.mark.parametrize("number", MACHINES, ids=errno.errorcode.get)
def test_an_error_of_the_machine_is_that_whatever_it_became_on_its_way(number: int) -> None:
    error = OSError(number, "why")
    assert fault_of(error) is Fault.THE_MACHINES
    assert fault_of(caused(CORRUPT, error)) is Fault.THE_MACHINES
    assert fault_of(caused(UnfinishedError("a"), caused(GraphError("b"), error))) is Fault.THE_MACHINES


@pytest.mark.parametrize("number", OWN, ids=errno.errorcode.get)
def test_an_error_of_the_file_is_no_error_of_the_machine(number: int) -> None:
    error = OSError(number, "why")
    assert fault_of(error) is Fault.NOT_ITS_OWN
    assert fault_of(caused(UnfinishedError("a"), error)) is Fault.UNFINISHED
    assert fault_of(caused(GraphError("a"), error)) is Fault.ITS_OWN


@pytest.mark.parametrize("count", [0, 2, 4])
def test_the_last_version_serves_once_there_are_descriptors_again(
    publisher: Publisher, count: int, caplog: pytest.LogCaptureFixture
) -> None:
    publisher.publish(1)
    follower = follower_of(publisher.path, poll_seconds=3600.0)
    with free_descriptors(count):
        for _ in range(3):
            follower.run_once()
        status = follower.status()
        if status.serving is None:
            assert "Too many open files" in status.reason
            assert caplog.text.count("Too many open files") == 1
        assert (quarantined(follower), status.quarantines) == ([], 0)
        if count == 0:
            assert status.serving is None
    follower.start(SILENT)  # which looks when it is told to, or has reasons of its own
    eventually(lambda: serving(follower) == 1, lambda: str(follower.status()))
    assert proven(*ask(follower))
    eventually(lambda: follower.status().reason == "", lambda: str(follower.status()))
    follower.close()


@pytest.fixture
def forbidden() -> Iterator[Callable[[Path], None]]:
    paths: list[Path] = []

    def forbid(path: Path) -> None:
        paths.append(path)
        path.chmod(0)

    yield forbid
    for path in paths:
        path.chmod(0o644)


@pytest.mark.parametrize(
    "name", ["ckpt-2.index", "ckpt-2.data-00000-of-00001", "ckpt-2.json", "graph-*.pb", "checkpoint"]
)
def test_what_may_not_be_read_is_told_and_serves_once_it_may(
    publisher: Publisher, forbidden: Callable[[Path], None], name: str
) -> None:
    publisher.publish(1)
    publisher.publish(2)
    (path,) = publisher.path.glob(name)
    before = path.stat().st_mode
    follower = follower_of(publisher.path)
    forbidden(path)
    for _ in range(2):
        as_nobody(follower.run_once)
    status = follower.status()
    assert quarantined(follower) == []
    assert "Permission denied" in status.reason
    assert serving(follower) == (None if name in ("graph-*.pb", "checkpoint") else 1)
    path.chmod(before)
    eventually(lambda: as_nobody(follower.run_once) is not None, lambda: str(follower.status()))
    assert (serving(follower), follower.status().reason) == (2, "")


def test_a_version_that_cannot_be_read_now_is_not_gone_back_from(
    publisher: Publisher, follower: Follower, forbidden: Callable[[Path], None]
) -> None:
    publisher.publish(1)
    publisher.publish(2)
    follower.run_once()
    record = publisher.path / "ckpt-2.json"
    forbidden(record)
    as_nobody(follower.run_once)
    assert (serving(follower), quarantined(follower)) == (2, [])
    record.unlink()
    record.write_text("{")
    follower.run_once()
    assert serving(follower) == 2


def test_a_sync_tries_at_once_what_could_not_be_read(
    publisher: Publisher, follower: Follower, forbidden: Callable[[Path], None]
) -> None:
    publisher.publish(1)
    path = publisher.path / "ckpt-1.index"
    before = path.stat().st_mode
    forbidden(path)
    for _ in range(20):  # however long it would be put off by now
        as_nobody(follower.run_once)
        follower.ask(Action.SYNC, 1)
    path.chmod(before)
    answer = follower.ask(Action.SYNC, 1)
    as_nobody(follower.run_once)
    assert answer.result(0).serving is not None


# How soon -------------------------------------------------------------------------------------------------------------


def test_it_is_tried_again_soon_and_then_ever_later_up_to_half_a_minute() -> None:
    back_off = Backoff()
    assert back_off.left(0.0) == 0.0
    now, pauses = 0.0, []
    for _ in range(20):
        back_off.failed(now)
        pauses.append(back_off.left(now))
        assert back_off.left(now + pauses[-1]) == 0.0
        now += pauses[-1]
    assert pauses[0] <= 0.1
    expected = [min(2 * sooner, 30.0) for sooner in pauses[:-1]]
    assert pauses[1:] == pytest.approx(expected)
    assert pauses[-1] == pytest.approx(30.0)
