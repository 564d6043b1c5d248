"""The two programs: in place of this process, for `paramsync serve` and `train`, or as children of `paramsync up`.

They are packed below `paramsync` where it is installed, and lie beside it in a checkout.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from argparse import Namespace
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import NoReturn

from paramsync.cli.settings import environment_for_logs
from paramsync.errors import SettingsError
from paramsync.program.packages import install

_TF_SERVING = "--tf-serving"
_WITH_PARENT = """
import ctypes, os, signal, sys
parent, *command = sys.argv[1:]
try:
    ctypes.CDLL(None).prctl(1, int(signal.SIGTERM), 0, 0, 0)  # PR_SET_PDEATHSIG: what it becomes has it too
except AttributeError:  # another system than Linux
    pass
if os.getppid() != int(parent):  # it ended before
    sys.exit(1)
os.execv(command[0], command)
"""
"""Becomes a command that ends with the process which started it. To say so between fork and exec would run Python in a
copy of a process with threads, which may abort there."""
_ADDRESS = re.compile(r"(\w+) (\S+:\d+)")


def module(program: str) -> str:
    """What `python -m` starts: "trainer", "inferencer", or a module within one."""
    packed = find_spec(f"paramsync.{program.partition('.')[0]}") is not None
    return f"paramsync.{program}" if packed else program


def check_tensorflow() -> None:
    """Raises SettingsError where it is not installed."""
    if find_spec("tensorflow") is None:
        raise SettingsError(f"needs TensorFlow, which is not installed: {install('tensorflow')}")


def run(arguments: Namespace) -> NoReturn:
    """Become the program, with the arguments that follow.

    To serve with --tf-serving first, the rest are flags of tensorflow_model_server.
    """
    check_tensorflow()
    given = arguments.arguments
    name = module(arguments.program)
    if arguments.program == "inferencer" and given[:1] == [_TF_SERVING]:
        name, given = f"{name}.program.tf_serving", given[1:]
    os.execv(sys.executable, [sys.executable, "-m", name, *given])


class Child:
    """One of the programs as a child. Ctrl-C does not reach it; our death, however sudden, does."""

    def __init__(self, program: str, arguments: Sequence[str], *, log: Path) -> None:
        self.program = program
        self._log = log
        self._was_told = False  # to end
        with log.open("wb") as output:
            command = [sys.executable, "-m", module(program), *arguments]
            self._process = subprocess.Popen(
                [sys.executable, "-IS", "-c", _WITH_PARENT, str(os.getpid()), *command],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=environment_for_logs(),
                start_new_session=True,
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
        """Tell it to end, if it has not ended by itself. Returns at once."""
        self._was_told = not self.ended
        self._process.terminate()

    def wait(self, seconds: float) -> str | None:
        """Wait for its end, and kill it where that does not come. Returns what went wrong, if anything."""
        try:
            code = self._process.wait(timeout=seconds)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
            return self._fault("did not end when it was asked to, and was killed")
        if self._was_told and code in (0, -signal.SIGTERM):  # the latter where it was told before it could listen
            return None
        return self._fault(f"ended with exit code {code}" if self._was_told else f"ended by itself, exit code {code}")

    def _fault(self, what: str) -> str:
        return f"{self.program} {what}; the end of its log:\n{self.last_lines()}"


def end_all(children: Sequence[Child], *, seconds: float) -> list[str]:
    """End all at the same time. Returns what went wrong."""
    for child in children:
        child.end()
    deadline = time.monotonic() + seconds
    faults = [child.wait(max(0.0, deadline - time.monotonic())) for child in children]
    return [fault for fault in faults if fault]
