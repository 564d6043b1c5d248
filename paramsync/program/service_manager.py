"""Tells the service manager that started the program, such as systemd, when it is ready and when it stops."""

from __future__ import annotations

import socket
from contextlib import suppress


class ServiceManager:
    """Sends datagrams of `Type=notify`. Where nobody listens, or listens no more, nothing happens."""

    def __init__(self, address: str | None) -> None:
        """`address` is that of its UNIX socket, as in NOTIFY_SOCKET: a path, or an abstract name behind an @."""
        self._address = address and (f"\0{address[1:]}" if address.startswith("@") else address)

    def ready(self, status: str) -> None:
        """The ports listen."""
        self._send("READY=1", status)

    def stopping(self, status: str) -> None:
        self._send("STOPPING=1", status)

    def _send(self, state: str, status: str) -> None:
        if not self._address:
            return
        one_line = " ".join(status.split())  # a line is a field
        with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
            sender.setblocking(False)
            sender.sendto(f"{state}\nSTATUS={one_line}".encode(), self._address)
