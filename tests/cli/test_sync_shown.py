"""What `paramsync sync` shows while it waits: bars on a terminal, a line a second elsewhere, nothing if it is quick."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import re
import struct
import subprocess
import sys
import termios

import pytest

from paramsync.cli.changes import ServerChange
from paramsync.cli.sync import _Lines
from paramsync.rpc.client import Inferencer
from paramsync.v1 import sync_pb2 as pb
from tests.support.servers import CORRUPT

VERIFYING = pb.SyncProgress(phase=pb.SyncProgress.VERIFYING, version=7, bytes_done=5_000_000, bytes_total=10_000_000)


def on_terminal(*arguments: str, columns: int, **environment: str) -> tuple[int, str]:
    """The exit code of a command, and what it draws on a terminal of so many columns."""
    master, terminal = pty.openpty()
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    known = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES", "NO_COLOR")}
    command = [sys.executable, "-m", "paramsync.cli", *arguments]
    with subprocess.Popen(command, stdout=terminal, stderr=terminal, env={**known, **environment}) as process:
        os.close(terminal)
        drawn = b""
        with contextlib.suppress(OSError):  # how Linux says that the other side is closed
            while more := os.read(master, 1 << 16):
                drawn += more
    os.close(master)
    return process.returncode, drawn.decode()


@pytest.mark.parametrize("columns", [40, 80])
def test_a_terminal_shows_how_far_it_is_and_then_why_it_failed(columns: int, inferencer: str) -> None:
    code, drawn = on_terminal("sync", "--version", str(CORRUPT), "--server", inferencer, columns=columns, TERM="xterm")
    assert code == 1
    assert "5/10 bytes" in drawn
    plain = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", drawn)
    bars = [line for line in re.split(r"[\r\n]+", plain) if "bytes" in line]
    assert max(map(len, bars)) <= columns
    assert plain.rstrip().endswith(
        "version 2 was refused: not finite; what served goes on serving, see `paramsync status`"
    )


def test_a_dumb_terminal_gets_no_commands_and_keeps_its_width(inferencer: str, nobody: str) -> None:
    code, drawn = on_terminal("status", "--server", inferencer, "--trainer", nobody, columns=40, TERM="dumb")
    table, _, _ = drawn.partition("paramsync status: trainer not reachable")
    assert code == 0
    assert "\x1b" not in drawn
    assert max(map(len, table.splitlines())) <= 40


def test_what_takes_long_is_a_line_where_nobody_draws(nobody: str, capsys: pytest.CaptureFixture[str]) -> None:
    with Inferencer(nobody) as inferencer:
        change = ServerChange(inferencer, "m")
        names = {id(change): "m: "}
        _Lines(names).show(change, VERIFYING)
        assert capsys.readouterr().err == ""
        lines = _Lines(names, every=0.0)
        lines.show(change, VERIFYING)
        lines.show(change, pb.SyncProgress(phase=pb.SyncProgress.DONE))
        assert capsys.readouterr().err == "m: verifying version 7, 5.0 MB of 10 MB\n"
