"""A process beside the one that measures, which is asked a line at a time and answers with one."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from types import TracebackType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from typing_extensions import Self


class Lines:
    """One of `python -m PROGRAM`, for one thread. It ends with its block."""

    def __init__(self, program: str, *arguments: object) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", program, *map(str, arguments)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            bufsize=1,
        )

    def ask(self, line: str = "") -> str:
        """Its answer; "" where it has ended."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write(f"{line}\n")
        return self._process.stdout.readline().strip()

    def close(self) -> None:
        self._process.kill()
        self._process.communicate()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
