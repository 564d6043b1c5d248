"""The child processes of `paramsync up`: how they start, what their logs say, how they end."""

from __future__ import annotations

import ctypes
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from paramsync.cli import programs
from paramsync.cli.settings import environment_for_logs

_PR_SET_PDEATHSIG = 1
_ADDRESS = re.compile(r"(\w+) (\S+:\d+)")


class Child:
    """One of the project's programs as a child. Ctrl-C does not reach it; our death, however sudden, does."""

    def __init__(self, program: str, arguments: Sequence[str], *, log: Path) -> None:
        self.program = program
        self._log = log
        self._asked = False  # to end
        with log.open("wb") as output:
            self._process = subprocess.Popen(
                [sys.executable, "-m", programs.module(program), *arguments],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=environment_for_logs(),
                start_new_session=True,
                preexec_fn=_ending_with(os.getpid()),  # noqa: PLW1509, there are no threads yet
            )

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def ended(self) -> bool:
        return self._process.poll() is not None

    def addresses(self) -> Mapping[str, str]:
        """What listens where, by the names of the line it logs when it is ready; empty before."""
        _, ready, rest = self._log.read_text(errors="replace").partition(f"{self.program} ready: ")
        line, end, _ = rest.partition("\n")
        return dict(_ADDRESS.findall(line)) if ready and end else {}

    def last_lines(self, count: int = 12) -> str:
        return "\n".join(self._log.read_text(errors="replace").splitlines()[-count:])

    def end(self) -> None:
        """Ask it to end, if it has not ended by itself. Returns at once."""
        self._asked = not self.ended
        self._process.terminate()

    def wait(self, seconds: float) -> str | None:
        """Wait for its end, and kill it where that does not come. Returns what went wrong, if anything."""
        try:
            code = self._process.wait(timeout=seconds)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
            return self._fault("did not end when it was asked to, and was killed")
        if self._asked and code in (0, -signal.SIGTERM):  # the latter where it was asked before it could listen
            return None
        return self._fault(f"ended with exit code {code}" if self._asked else f"ended by itself, exit code {code}")

    def _fault(self, what: str) -> str:
        return f"{self.program} {what}; the end of its log:\n{self.last_lines()}"


def end_all(children: Sequence[Child], *, seconds: float) -> list[str]:
    """End all at the same time. Returns what went wrong."""
    for child in children:
        child.end()
    deadline = time.monotonic() + seconds
    faults = [child.wait(max(0.0, deadline - time.monotonic())) for child in children]
    return [fault for fault in faults if fault]


def _ending_with(parent: int) -> Callable[[], None] | None:
    """What the child does before it becomes the program, so that it is told to end when the parent is killed."""
    if sys.platform != "linux":
        return None
    prctl = ctypes.CDLL(None, use_errno=True).prctl

    def arrange() -> None:
        prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
        if os.getppid() != parent:  # it died before we asked
            os._exit(1)

    return arrange
