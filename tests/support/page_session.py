"""Runs inside a page's namespace. With arguments: brings the loopback up and executes them. Else: runs Python blocks.

For Python blocks it reads names of files, runs each file, and reports success or failure: see `pages`.
"""

from __future__ import annotations

import fcntl
import os
import socket
import struct
import sys
import traceback
from pathlib import Path
from typing import Any

_SIOCSIFFLAGS, _UP = 0x8914, 0x1


def main() -> None:
    if command := sys.argv[1:]:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
            fcntl.ioctl(any_socket, _SIOCSIFFLAGS, struct.pack("16sh14x", b"lo", _UP))
        os.execvp(command[0], command)
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    sys.path[0] = ""  # as in an interactive interpreter
    answers.write("ready\n")
    names: dict[str, Any] = {}
    for line in sys.stdin:
        text = Path(line.strip()).read_text()
        if text.startswith(("import ", "from ")):
            names = {"__name__": "__main__"}
        try:
            exec(compile(text, line.strip(), "exec"), names)
        except BaseException:  # noqa: BLE001, the page fails with this error
            traceback.print_exc()
            answers.write("failed\n")
        else:
            answers.write("done\n")


if __name__ == "__main__":
    main()
