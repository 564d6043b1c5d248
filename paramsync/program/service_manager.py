"""Tells the service manager, such as systemd, when the program is ready and when it stops."""

from __future__ import annotations

import socket
from contextlib import suppress


class ServiceManager:
    """Sends the datagrams of `Type=notify`. Does nothing without an address or a listener."""

    def __init__(self, address: str | None) -> None:
        """`address` is the value of NOTIFY_SOCKET: a path, or @ and an abstract name."""
        self._address = address and (f"\0{address[1:]}" if address.startswith("@") else address)

    def ready(self, status: str) -> None:
        """Report that the ports listen."""
        self._send("READY=1", status)

    def stopping(self, status: str) -> None:
        self._send("STOPPING=1", status)

    def _send(self, state: str, status: str) -> None:
        if not self._address:
            return
        one_line = " ".join(status.split())  # each line of a datagram is a field
        with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
            sender.setblocking(False)
            sender.sendto(f"{state}\nSTATUS={one_line}".encode(), self._address)
