"""The real programs as processes: starts them, waits for their log lines, kills or stops them, leaves none behind."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, AnyStr, TypeVar

ROOT = Path(__file__).parents[2]
PATIENCE = 300.0  # seconds; TensorFlow may take many to import on a busy machine

T = TypeVar("T")


def refused(*arguments: str | Path) -> str:
    """Return the error message of a program that ends with exit code 2 because of these arguments.

    The program runs without root's access to other users' files, so that file modes take effect.
    """
    drop = ["setpriv", "--bounding-set=-dac_override,-dac_read_search"] if os.geteuid() == 0 else []
    command = [*drop, sys.executable, "-m", *map(str, arguments)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=PATIENCE)
    assert (done.returncode, done.stdout) == (2, ""), done
    (said,) = [line for line in done.stderr.splitlines(keepends=True) if line.startswith("paramsync ")]
    assert "Traceback" not in done.stderr  # TensorFlow may have begun to be imported, which has lines of its own
    return said


@contextmanager
def bounded(process: subprocess.Popen[AnyStr]) -> Iterator[subprocess.Popen[AnyStr]]:
    """Kill the process at the end of the block, or after PATIENCE: reads from the process and waits for it end."""
    killer = threading.Timer(PATIENCE, process.kill)
    with process:
        killer.start()
        try:
            yield process
        finally:
            killer.cancel()
            process.kill()


class Program:
    """One process of `python -m trainer` or `python -m inferencer`; its log goes into a file."""

    def __init__(self, *arguments: str | Path, log: Path, folder: Path = ROOT) -> None:
        self._log = log
        with log.open("wb") as file:
            self._process = subprocess.Popen(
                [sys.executable, "-m", *map(str, arguments)], cwd=folder, stdout=file, stderr=subprocess.STDOUT
            )

    def __enter__(self) -> Program:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()

    def said(self, pattern: str) -> re.Match[str]:
        """Wait until the log matches the pattern."""

        def look() -> re.Match[str] | None:
            text = self.text
            assert self._process.poll() is None, f"ended with {self._process.returncode}:\n{text}"
            return re.search(pattern, text)

        return eventually(look, lambda: f"{pattern!r} in:\n{self.text}")

    @property
    def text(self) -> str:
        """The log so far."""
        return self._log.read_text(errors="replace")

    def kill(self) -> None:
        """End the process by SIGKILL."""
        self._process.kill()
        self._process.wait()

    def stop(self, number: signal.Signals = signal.SIGTERM) -> int:
        """End the process as an operator would; returns the exit code."""
        self.send(number)
        return self.end()

    def send(self, number: signal.Signals) -> None:
        self._process.send_signal(number)

    def end(self) -> int:
        """Wait for the end of the process; returns the exit code."""
        return self._process.wait(PATIENCE)


def events(lines: Iterable[str]) -> list[dict[str, Any]]:
    """Return the lines that a program logged as JSON, without the lines that TensorFlow writes at its import."""
    return [json.loads(line) for line in lines if line.startswith("{")]


def eventually(look: Callable[[], T | None], what: Callable[[], str]) -> T:
    """Call `look` until it returns a true value, and return this value. Fails after PATIENCE; `what` names the aim."""
    deadline = time.monotonic() + PATIENCE
    pause = threading.Event()
    while time.monotonic() < deadline:
        found = look()
        if found:
            return found
        pause.wait(0.05)
    raise AssertionError(f"waited {PATIENCE:g} s for {what()}")
