"""`paramsync up` as people run it: with the real trainer and the real inferencer."""

from __future__ import annotations

import json
import os
import re
import select
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.programs import PATIENCE, eventually

pytestmark = pytest.mark.slow

PORTS = ("--port=0", "--rest-port=0", "--control-port=0", "--trainer-port=0")
UP = [sys.executable, "-m", "paramsync.cli", "up", *PORTS]


class Running:
    """`paramsync up` as a process, once it has started its children."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        self._lines = process.stderr if "--json" in process.args else process.stdout  # type: ignore[operator]
        self.seen = ""
        self.read_until("waiting for the trainer")
        listed = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text()
        self.children = {_becomes_program(int(pid)): int(pid) for pid in listed.split()}
        self._ends = [os.pidfd_open(pid) for pid in self.children.values()]
        arguments = Path(f"/proc/{self.children['trainer']}/cmdline").read_text().split("\0")
        self.folder = Path(arguments[arguments.index("--store") + 1]).parent

    def read_until(self, words: str) -> None:
        self.read_until_match(re.escape(words))

    def read_until_match(self, pattern: str) -> re.Match[str]:
        """Read on until what was said has a match."""
        assert self._lines is not None
        while not (found := re.search(pattern, self.seen)):
            line = self._lines.readline()
            assert line, f"expected {pattern!r}, found the end of {self.seen}"
            self.seen += line
        return found

    def await_children(self) -> None:
        """Wait for the end of both, however they end."""
        for pidfd in self._ends:
            assert select.select([pidfd], [], [], PATIENCE)[0]
            os.close(pidfd)


@contextmanager
def running(*arguments: str, **environment: str) -> Iterator[Running]:
    pipe = subprocess.PIPE
    with subprocess.Popen(
        [*UP, *arguments],
        stdout=pipe,
        stderr=pipe,
        text=True,
        errors="replace",  # communicate goes on where reading lines stopped, which may be within a character
        env=os.environ | environment,
    ) as process:
        killer = threading.Timer(PATIENCE, process.kill)
        killer.start()
        try:
            yield Running(process)
        finally:
            killer.cancel()
            process.kill()


def _becomes_program(pid: int) -> str:
    """Wait until a child has become its program, by exec. Returns which."""

    def words() -> list[str]:
        return Path(f"/proc/{pid}/cmdline").read_text().split("\0")

    eventually(lambda: words()[1:2] == ["-m"], lambda: f"a program: {words()}")
    return words()[2]


@pytest.mark.promise
def test_versions_flow_and_answers_become_better() -> None:
    with running("--json") as run:
        shown = [run.read_until_match(r"serving (\d+), .* accuracy (9\d|100)\.\d%")[1]]
        while len(shown) < 5:  # two of which have answered at least: it asks once between two lines
            shown.append(run.read_until_match(rf"serving (?!(?:{'|'.join(shown)}),)(\d+),")[1])
        ready = re.search(r"control (\S+:\d+), HTTP", (run.folder / "inferencer.log").read_text())
        assert ready is not None
        fresh = [sys.executable, "-m", "paramsync.cli", "sync", "digits", "--fresh", "--server", ready[1], "--json"]
        synced = json.loads(subprocess.run(fresh, stdout=subprocess.PIPE, check=True).stdout)
        assert synced["status"]["serving"]["number"] > int(shown[-1])
        run.process.send_signal(signal.SIGINT)
        out, err = run.process.communicate()
        run.await_children()
    assert run.process.returncode == 0, err
    found = json.loads(out)
    assert found["published"] >= found["served"] >= 3
    assert found["failed"] == 0
    assert found["predictions"] >= 5
    assert found["last_accuracy"] > found["first_accuracy"]
    assert found["freshness_ms_p50"] > 0


@pytest.mark.promise
def test_ctrl_c_on_a_terminal_ends_up_cleanly() -> None:
    with running(FORCE_COLOR="1", COLUMNS="80", LINES="24") as run:
        run.read_until("predictions")
        run.process.send_signal(signal.SIGINT)
        out, err = run.process.communicate()
        run.await_children()
    assert (run.process.returncode, err) == (0, "")
    assert "versions published" in out
    assert not run.folder.exists()


def test_sigterm_while_the_programs_start_ends_up_cleanly() -> None:
    with running("--json") as run:
        run.process.terminate()
        out, err = run.process.communicate()
        run.await_children()
    assert run.process.returncode == 0, err
    assert json.loads(out)["predictions"] == 0
    assert not run.folder.exists()
