"""Leaving a port that other processes listen at too, so that no caller loses a connection. Linux.

A listener that is closed resets the connections which nobody has accepted. So a process that another one replaces
leaves in steps: the kernel drops each request for a new connection, which callers repeat within a second; once the
connections that were being made are accepted, the listener is closed, and what is repeated comes to others.
"""

from __future__ import annotations

import asyncio
import ctypes
import socket
import struct
from collections.abc import Collection
from contextlib import suppress

_ATTACH_FILTER = 26  # SO_ATTACH_FILTER
_DROP_NEW = (  # sock_filter: of the byte of flags SYN and ACK; SYN alone is dropped, all else is kept whole
    (0x30, 0, 0, 13),
    (0x54, 0, 0, 0x12),
    (0x15, 0, 1, 0x02),
    (0x06, 0, 0, 0),
    (0x06, 0, 0, 0xFFFFFFFF),
)
_BACKLOG_AT = 24  # in tcp_info of a listener: tcpi_unacked, 4 bytes: the connections that wait to be accepted
_HANDSHAKE_SECONDS = 0.3  # in which a connection that was being made is made, or given up
_ACCEPT_SECONDS = 10.0
_STEP_SECONDS = 0.01


async def refuse_new(listeners: Collection[socket.socket]) -> None:
    """Have the kernel drop requests for new connections; returns once those that were being made are accepted."""
    for listener in listeners:
        with suppress(OSError):  # a UNIX socket, or a sandbox
            _attach(listener)
    loop = asyncio.get_running_loop()
    await asyncio.sleep(_HANDSHAKE_SECONDS)
    end = loop.time() + _ACCEPT_SECONDS
    while any(map(_backlog, listeners)) and loop.time() < end:
        await asyncio.sleep(_STEP_SECONDS)


def _attach(listener: socket.socket) -> None:
    code = ctypes.create_string_buffer(b"".join(struct.pack("=HBBI", *step) for step in _DROP_NEW))
    listener.setsockopt(socket.SOL_SOCKET, _ATTACH_FILTER, struct.pack("@HP", len(_DROP_NEW), ctypes.addressof(code)))


def _backlog(listener: socket.socket) -> int:
    if listener.family == socket.AF_UNIX:
        return 0
    info = listener.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _BACKLOG_AT + 4)
    return int.from_bytes(info[_BACKLOG_AT:], "little")
