"""`paramsync status --watch` as a process: what it says of a server that changes, is lost and comes back."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from functools import partial

import pytest

from paramsync.cli.status_watch import _sentence
from paramsync.cli.watched import Watched
from paramsync.errors import NotReachableError
from paramsync.rpc.client import Inferencer
from paramsync.v1 import sync_pb2 as pb
from paramsync.v1 import sync_pb2_grpc
from tests.support.programs import eventually
from tests.support.servers import SERVING, Sync, add_sync, serving

NEXT = pb.ModelStatus(model="digits", state=pb.ModelStatus.SERVING, serving=pb.Version(number=421), lag_seconds=0)


def test_what_was_answered_last_stays_while_a_server_is_lost_and_is_replaced_when_it_is_back() -> None:
    news = threading.Event()
    with contextlib.ExitStack() as stack:
        address = stack.enter_context(serving(add_sync))
        with Inferencer(address) as inferencer:
            watched = Watched(inferencer.status, inferencer.watch, news)
            watched.run_once()
            assert news.is_set()
            assert (watched.last.answer, watched.last.error) == ((SERVING,), None)
            stack.close()
            watched.run_once()
            assert isinstance(watched.last.error, NotReachableError)
            assert watched.last.answer == (SERVING,)
            lost_at = watched.last.lost_at
            watched.run_once()
            assert watched.last.lost_at == lost_at
            with serving(add_sync, at=address):
                eventually(lambda: answers(watched), lambda: "it to answer again")


def test_an_event_has_it_asked_again_at_once() -> None:
    servicer, news = Sync(), threading.Event()
    add = partial(sync_pb2_grpc.add_SyncServicer_to_server, servicer)
    with serving(add) as address, Inferencer(address) as inferencer:
        watched = Watched(inferencer.status, partial(inferencer.watch, ""), news, poll_seconds=1000.0)
        watched.start()
        eventually(lambda: watched.last.answer == (SERVING,), lambda: "a first answer")
        servicer.statuses = (NEXT,)
        servicer.changed.set()
        eventually(lambda: watched.last.answer == (NEXT,), lambda: "the next one")
        watched.close()


def answers(watched: Watched[tuple[pb.ModelStatus, ...]]) -> bool:
    watched.run_once()
    return watched.last.error is None


@contextlib.contextmanager
def watching(*arguments: str, **options: object) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-m", "paramsync.cli", "status", "--watch", *arguments]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True, **options}
    with subprocess.Popen(command, **pipes) as process:  # type: ignore[call-overload]
        try:
            yield process
        finally:
            process.kill()


def test_a_line_says_what_serves_and_what_is_wrong() -> None:
    assert _sentence(NEXT) == "version 421 serves; up to date"
    waiting = _sentence(pb.ModelStatus(reason="/s is empty"))
    assert waiting.startswith("no version serves; ")
    assert waiting.endswith("; waits for a version: /s is empty")


@pytest.mark.slow
@pytest.mark.parametrize("form", [[], ["--json"]], ids=["lines", "json"])
def test_lines_tell_of_a_server_that_is_lost_and_back(form: list[str], nobody: str) -> None:
    with contextlib.ExitStack() as stack:
        address = stack.enter_context(serving(add_sync))
        with watching("--server", address, "--trainer", nobody, *form) as process:
            assert process.stdout is not None
            first = process.stdout.readline()
            stack.close()
            lost = process.stdout.readline()
            with serving(add_sync, at=address):
                back = process.stdout.readline()
            process.send_signal(signal.SIGINT)
            assert process.wait(30) == 130
    if form:
        servers = [json.loads(line)["servers"][0] for line in (first, lost, back)]
        assert ["not reachable" in (server["error"] or "") for server in servers] == [False, True, False]
        assert [server["models"] is None for server in servers] == [False, True, False]
    else:
        assert "digits: version 420 serves; 12 s behind, 1 step; version 421 is refused: [not finite]" in first
        assert f"{address}: lost: not reachable (" in lost
        assert back.endswith(f"{address}: answers again\n")


@pytest.mark.slow
def test_a_terminal_is_drawn_again_in_place(inferencer: str, nobody: str) -> None:
    master, terminal = pty.openpty()
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "80", "LINES": "24"}
    with watching(
        "--server", inferencer, "--trainer", nobody, stdout=terminal, stderr=terminal, env=environment
    ) as process:
        os.close(terminal)
        drawn = ""
        while drawn.count("in memory") < 3 and drawn.count("published") < 3:
            drawn += os.read(master, 1 << 16).decode()
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 130
        with contextlib.suppress(OSError):  # how Linux says that the other side is closed
            while more := os.read(master, 1 << 16).decode():
                drawn += more
    os.close(master)
    assert "\x1b[1A" in drawn  # up again, over what is there
    assert "\x1b[?25l" in drawn  # the cursor goes away
    assert drawn.rindex("\x1b[?25h") > drawn.rindex("serving")  # and comes back
    assert "Traceback" not in drawn
