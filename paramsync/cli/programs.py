"""Runs the trainer and the inferencer: `paramsync serve` and `train` become these programs, `up` starts them.

In a wheel both are packages within `paramsync`; in a checkout they are top-level packages.
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
    ctypes.CDLL(None).prctl(1, int(signal.SIGTERM), 0, 0, 0)  # PR_SET_PDEATHSIG, which exec keeps
except AttributeError:  # another system than Linux
    pass
if os.getppid() != int(parent):  # it ended before
    sys.exit(1)
os.execv(command[0], command)
"""
"""A program that asks the kernel to end it with its parent, and then becomes a command, which the kernel ends likewise.

The program is used instead of a `preexec_fn`, which would run Python between fork and exec and may abort in a process
with threads.
"""
_ADDRESS = re.compile(r"(\w+) (\S+:\d+)")


def module(program: str) -> str:
    """Return the full name, for `python -m`, of "trainer", "inferencer", or a module within them."""
    packed = find_spec(f"paramsync.{program.partition('.')[0]}") is not None
    return f"paramsync.{program}" if packed else program


def check_tensorflow() -> None:
    """Raise SettingsError if TensorFlow is not installed."""
    if find_spec("tensorflow") is None:
        raise SettingsError(f"needs TensorFlow, which is not installed: {install('tensorflow')}")


def run(arguments: Namespace) -> NoReturn:
    """Replace this process by the program, which gets the rest of the arguments.

    With --tf-serving the rest are flags of tensorflow_model_server.
    """
    check_tensorflow()
    given = arguments.arguments
    name = module(arguments.program)
    if arguments.program == "inferencer" and given[:1] == [_TF_SERVING]:
        name, given = f"{name}.program.tf_serving", given[1:]
    os.execv(sys.executable, [sys.executable, "-m", name, *given])


class Child:
    """One program as a child process. Ctrl-C does not reach it. It ends when this process ends, even by SIGKILL."""

    def __init__(self, program: str, arguments: Sequence[str], *, log: Path) -> None:
        self.program = program
        self._log = log
        self._was_told = False  # whether `end` was called while the program ran
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
        """Return the addresses that the program logs when it is ready, by name; empty until then."""
        _, ready, rest = self._log.read_text(errors="replace").partition(f"{self.program} ready: ")
        line, end, _ = rest.partition("\n")
        return dict(_ADDRESS.findall(line)) if ready and end else {}

    def last_lines(self, count: int = 12) -> str:
        return "\n".join(self._log.read_text(errors="replace").splitlines()[-count:])

    def end(self) -> None:
        """Send SIGTERM, and return at once."""
        self._was_told = not self.ended
        self._process.terminate()

    def wait(self, seconds: float) -> str | None:
        """Wait until the program ends, and kill it after `seconds`. Returns what went wrong, if anything."""
        try:
            code = self._process.wait(timeout=seconds)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
            return self._fault("did not end when it was asked to, and was killed")
        if self._was_told and code in (0, -signal.SIGTERM):  # -SIGTERM: the program had no signal handler yet
            return None
        return self._fault(f"ended with exit code {code}" if self._was_told else f"ended by itself, exit code {code}")

    def _fault(self, what: str) -> str:
        return f"{self.program} {what}; the end of its log:\n{self.last_lines()}"


def end_all(children: Sequence[Child], *, seconds: float) -> list[str]:
    """End all children at the same time. Returns what went wrong."""
    for child in children:
        child.end()
    deadline = time.monotonic() + seconds
    faults = [child.wait(max(0.0, deadline - time.monotonic())) for child in children]
    return [fault for fault in faults if fault]
