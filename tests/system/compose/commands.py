"""Runs other programs for the compose test, waits for them, and gives them a folder."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from threading import Event
from typing import TypeVar

Found = TypeVar("Found")
PARENT = Path("/var/tmp")  # on disk, where /tmp may be memory, and short: names of sockets have a limit


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


@contextmanager
def scratch(purpose: str) -> Iterator[Path]:
    """A folder on disk for what must not be in the tree, gone afterwards with everything mounted inside."""
    folder = Path(tempfile.mkdtemp(prefix=f"paramsync-{purpose}-", dir=PARENT))
    try:
        yield folder
    finally:
        # What was killed may have left mounts: the innermost first, and none may be there when files are removed.
        mounted = [line.split()[1] for line in Path("/proc/self/mounts").read_text().splitlines()]
        for point in reversed([point for point in mounted if point.startswith(f"{folder}/")]):
            run("umount", "--lazy", point)
        shutil.rmtree(folder)
