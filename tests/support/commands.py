"""Helpers for tests of commands: a store to look at, readers of their output, a terminal of a given width."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import pty
import signal
import struct
import subprocess
import sys
import termios
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from paramsync.cli.__main__ import main
from paramsync.store.commit import StoreWriter
from paramsync.store.store import add_checksum
from paramsync.v1 import graph_pb2
from tests.support.programs import bounded
from tests.support.written import version

NAMES = ("dense/bias", "dense/kernel", "words")


def three_versions(path: Path) -> Path:
    """Make a store of versions 10, 20 and 30, each of `NAMES`."""
    with StoreWriter(path) as writer:
        for number in (10, 20, 30):
            kernel = np.random.default_rng(number).standard_normal((64, 128), np.float32)
            writer.add_graph("ab" * 20, add_checksum(graph_pb2.Graph(digest="ab" * 20).SerializeToString()))
            tensors = {"dense/kernel": kernel, "dense/bias": kernel[0] + 1, "words": np.array([b"yes", b"no"], object)}
            writer.commit(version(number, graph="ab" * 20), tensors)
    return path


def cut(path: Path) -> None:
    """Remove half of a file."""
    os.truncate(path, path.stat().st_size // 2)


def json_of(arguments: list[str], capsys: pytest.CaptureFixture[str], *, code: int = 0) -> dict[str, Any]:
    """Run a command with --json, and return its output: one object on one line."""
    assert main([*arguments, "--json"]) == code
    found: dict[str, Any] = json.loads(only_line(capsys.readouterr().out))
    return found


def only_line(text: str) -> str:
    (line,) = text.splitlines()
    return line


def on_terminal(*arguments: str, columns: int, interrupt_at: str = "", **environment: str) -> tuple[int, str]:
    """Run a command. Returns its exit code and whole output. Ctrl-C is sent after the text `interrupt_at`, if given."""
    master, terminal = pty.openpty()
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    known = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES", "NO_COLOR")}
    command = [sys.executable, "-m", "paramsync.cli", *arguments]
    with bounded(subprocess.Popen(command, stdout=terminal, stderr=terminal, env={**known, **environment})) as process:
        os.close(terminal)
        drawn = b""
        with contextlib.suppress(OSError):  # raised on Linux once the other side is closed
            while more := os.read(master, 1 << 16):
                drawn += more
                if interrupt_at and interrupt_at.encode() in drawn:
                    process.send_signal(signal.SIGINT)
                    interrupt_at = ""
        process.wait()
    os.close(master)
    return process.returncode, drawn.decode()
