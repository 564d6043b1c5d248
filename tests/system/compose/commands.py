"""How the compose test runs other programs and waits for them."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from threading import Event
from typing import TypeVar

Found = TypeVar("Found")


class CommandError(Exception):
    """A command that failed: what it was, how it ended, and the end of what it said."""

    def __init__(self, argv: Sequence[str], code: int, output: str) -> None:
        super().__init__(f"exit code {code}: {' '.join(argv)}\n{output[-4000:]}")


def run(*argv: str, env: Mapping[str, str] | None = None, timeout: float = 60) -> str:
    """What the command wrote to stdout, stripped. CommandError when it fails, TimeoutExpired when it takes too long."""
    pipe = subprocess.PIPE
    with subprocess.Popen(
        argv, env=env, stdin=subprocess.DEVNULL, stdout=pipe, stderr=pipe, text=True, start_new_session=True
    ) as process:
        try:
            out, err = process.communicate(timeout=timeout)
        except BaseException:
            os.killpg(process.pid, signal.SIGKILL)  # what it started goes with it
            raise
    if process.returncode:
        raise CommandError(argv, process.returncode, out + err)
    return out.strip()


def wait_for(what: str, look: Callable[[], Found | None], *, timeout: float, every: float = 0.2) -> Found:
    """Looks until there is something true to see and returns it. TimeoutError names what never came."""
    deadline = time.monotonic() + timeout
    pause = Event()
    while not (found := look()):
        if time.monotonic() > deadline:
            raise TimeoutError(f"not within {timeout:.0f} s: {what}")
        pause.wait(every)
    return found
