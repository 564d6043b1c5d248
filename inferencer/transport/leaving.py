"""Leaving a port that other processes listen at too, so that no caller loses a call. Linux.

A listener that is closed resets the connections which nobody has accepted, and gRPC's own end cancels calls that come
until their callers know of it. So a process that another one replaces leaves in steps:

1. The kernel drops each request for a new connection; callers repeat it within a second (`refuse_new`).
2. Once the connections that were being made are accepted, the listener is closed: what is repeated comes to others.
3. Each connection of gRPC is told to begin no more calls (`Goodbye`), as HTTP/2 has it (RFC 9113, 6.8): a GOAWAY with
   the highest number that a call may have. What has begun, or is on its way, is answered. Callers are told while they
   wait for answers (`Drain.pause`): a call that one begins in the very moment when it is told, gRPC's clients repeat by
   another connection only where its message has at most 256 KiB.
4. Callers close their connections after that, and make new ones.

gRPC has no public name for the third step: whole frames are written beside its own, after its first and while it writes
no answer, of which it may have written a part. That cannot be done by TLS, where connections end by their age (`AGES`)
while the worker waits for that.
"""

from __future__ import annotations

import array
import asyncio
import ctypes
import fcntl
import socket
import struct
import termios
from collections.abc import Callable, Collection, Iterator
from contextlib import suppress
from typing import TypeAlias

from paramsync.host import tcp_connections
from paramsync.host.tcp_connections import Address

Place: TypeAlias = "int | str"
"""A port, or the path of a UNIX socket."""

AGES = (("grpc.max_connection_age_ms", 15_000),)
"""Options of a port with TLS: its connections end without a loss, each within the time that a worker has to leave."""
_GOAWAY = bytes.fromhex("000008 07 00 00000000 7fffffff 00000000")  # length, type, flags, stream; last stream, no error
_ATTACH_FILTER = 26  # SO_ATTACH_FILTER
_DROP_NEW = (  # sock_filter: of the byte of flags SYN and ACK; SYN alone is dropped, all else is kept whole
    (0x30, 0, 0, 13),
    (0x54, 0, 0, 0x12),
    (0x15, 0, 1, 0x02),
    (0x06, 0, 0, 0),
    (0x06, 0, 0, 0xFFFFFFFF),
)
_BACKLOG_AT = 24  # in tcp_info of a listener: tcpi_unacked, 4 bytes: the connections that wait to be accepted
_READ_AT = 120  # in tcp_info of a connection: tcpi_bytes_acked, 8 bytes: what its other end has been sent and has
_HANDSHAKE_SECONDS = 0.3  # in which a connection that was being made is made, or given up
_ACCEPT_SECONDS = 10.0
_STEP_SECONDS = 0.01


async def refuse_new(places: Collection[Place]) -> None:
    """Have the kernel drop requests for new connections; returns once those that were being made are accepted."""
    for listener in _sockets(places, listening=True):
        with suppress(OSError):  # a UNIX socket, or a sandbox
            _attach(listener)
    loop = asyncio.get_running_loop()
    await asyncio.sleep(_HANDSHAKE_SECONDS)
    end = loop.time() + _ACCEPT_SECONDS
    while any(map(_backlog, _sockets(places, listening=True))) and loop.time() < end:
        await asyncio.sleep(_STEP_SECONDS)


def stop_listening(places: Collection[Place]) -> None:
    """gRPC closes its listeners only when it ends."""
    for listener in _sockets(places, listening=True):
        with suppress(OSError):
            listener.shutdown(socket.SHUT_RDWR)


class Goodbye:
    """The connections of one port that are to be left. Lives on the event loop that answers."""

    def __init__(
        self, places: Collection[Place], plain: Collection[Place], busy: Callable[[], Collection[Address]]
    ) -> None:
        """`plain` are those of the places where no TLS is spoken: nobody else is told, for it would be no TLS.

        `busy` are the other ends of connections by which an answer is being written now.
        """
        self._places = places
        self._plain = plain
        self._busy = busy
        self._told: set[int] = set()

    def say(self) -> int:
        """Tell connections that were not told yet, but none by which gRPC has written nothing, or a part of a frame.
        How many there are."""
        busy, count = self._busy(), 0
        for connection in _sockets(self._places, listening=False):
            with suppress(OSError):  # it has ended, or was a listener
                peer, inode = _peer(connection), tcp_connections.inode_of(connection)
                count += 1
                if _place(connection) not in self._plain or inode in self._told:
                    continue
                if peer in busy or not _has_spoken(connection):
                    continue
                connection.send(_GOAWAY, socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)
                self._told.add(inode)
        return count


def _sockets(places: Collection[Place], *, listening: bool) -> Iterator[socket.socket]:
    for each in tcp_connections.own_sockets():
        with suppress(OSError):
            if _place(each) in places and bool(each.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)) is listening:
                yield each


def _place(each: socket.socket) -> Place:
    name = each.getsockname()
    return name[1] if each.family in (socket.AF_INET, socket.AF_INET6) else name  # type: ignore[no-any-return]


def _attach(listener: socket.socket) -> None:
    code = ctypes.create_string_buffer(b"".join(struct.pack("=HBBI", *step) for step in _DROP_NEW))
    listener.setsockopt(socket.SOL_SOCKET, _ATTACH_FILTER, struct.pack("@HP", len(_DROP_NEW), ctypes.addressof(code)))


def _backlog(listener: socket.socket) -> int:
    return 0 if listener.family == socket.AF_UNIX else _tcp_info(listener, _BACKLOG_AT, 4)


def _has_spoken(connection: socket.socket) -> bool:
    """Whether something was written, all of which the other end has."""
    unsent = array.array("i", [0])
    fcntl.ioctl(connection, termios.TIOCOUTQ, unsent)
    return not unsent[0] and (connection.family == socket.AF_UNIX or _tcp_info(connection, _READ_AT, 8) > 0)


def _tcp_info(each: socket.socket, at: int, size: int) -> int:
    info = each.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, at + size)
    return int.from_bytes(info[at:], "little")


def _peer(connection: socket.socket) -> Address:
    name = connection.getpeername()
    return tcp_connections.address_of(name) if isinstance(name, tuple) else ("", 0)
