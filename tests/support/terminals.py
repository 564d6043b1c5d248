"""Commands on a terminal of a given width."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import signal
import struct
import subprocess
import sys
import termios


def on_terminal(*arguments: str, columns: int, interrupt_at: str = "", **environment: str) -> tuple[int, str]:
    """The exit code of a command, and its whole output. Ctrl-C is sent after the text `interrupt_at`, if given."""
    master, terminal = pty.openpty()
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    known = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES", "NO_COLOR")}
    command = [sys.executable, "-m", "paramsync.cli", *arguments]
    with subprocess.Popen(command, stdout=terminal, stderr=terminal, env={**known, **environment}) as process:
        os.close(terminal)
        drawn = b""
        with contextlib.suppress(OSError):  # Linux reports with this error that the other side is closed
            while more := os.read(master, 1 << 16):
                drawn += more
                if interrupt_at and interrupt_at.encode() in drawn:
                    process.send_signal(signal.SIGINT)
                    interrupt_at = ""
    os.close(master)
    return process.returncode, drawn.decode()
