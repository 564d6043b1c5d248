"""TCP connections of this process, as the kernel lists them: one dump for all, not a system call for each."""

from __future__ import annotations

import os
import socket
import stat
import struct
from collections.abc import Iterator, Mapping
from contextlib import suppress
from ipaddress import IPv6Address, ip_address
from typing import NamedTuple, TypeAlias
from urllib.parse import unquote

Address: TypeAlias = "tuple[str, int]"

_NETLINK, _SOCK_DIAG, _BY_FAMILY = 16, 4, 20  # AF_NETLINK, NETLINK_SOCK_DIAG, SOCK_DIAG_BY_FAMILY
_DUMP = 0x301  # NLM_F_REQUEST | NLM_F_DUMP
_ERROR, _DONE = 2, 3  # NLMSG_...
_INFO = 2  # INET_DIAG_INFO: tcp_info of each
_STATES = sum(1 << state for state in (1, 4, 5, 8))  # established, and those of which one side is closed
_HEADER = struct.Struct("=IHHII")  # nlmsghdr
_REQUEST = struct.Struct("=BBBxI2s46x")  # inet_diag_req_v2: family, protocol, extensions, states, our port
_MESSAGE = struct.Struct("=4x2s2s16s16s12x16xI")  # inet_diag_msg: our port, theirs, our address, theirs, inode
_ATTRIBUTE = struct.Struct("=HH")  # nlattr
_SILENT_AT = 52  # where tcp_info has tcpi_last_data_recv, 4 bytes
_BUFFER = 1 << 16  # bytes; the kernel gives at most 32 KiB at once


class TcpConnection(NamedTuple):
    """What the kernel says of one: its inode, and how long ago something came."""

    inode: int
    silent_ms: int = 0


def dump(port: int) -> Mapping[Address, TcpConnection] | None:
    """The connections to this port by the address of the other end; None where this kernel does not list them.

    Connections of other processes to the same port are among them.
    """
    connections: dict[Address, TcpConnection] = {}
    try:
        with socket.socket(_NETLINK, socket.SOCK_DGRAM, _SOCK_DIAG) as kernel:
            for family in (socket.AF_INET, socket.AF_INET6):
                request = _REQUEST.pack(family, socket.IPPROTO_TCP, 1 << (_INFO - 1), _STATES, port.to_bytes(2, "big"))
                kernel.send(_HEADER.pack(_HEADER.size + len(request), _BY_FAMILY, _DUMP, 0, 0) + request)
                while _parse(kernel.recv(_BUFFER), family, connections):
                    pass
    except OSError:  # another system, a sandbox, or no descriptor is left
        return None
    return connections


def of_this_process(connections: Mapping[Address, TcpConnection]) -> dict[Address, TcpConnection]:
    """Those that no other process has which listens at the same port."""
    inodes = set()
    for name in os.listdir("/proc/self/fd"):  # noqa: PTH208, there may be thousands
        with suppress(OSError):
            inodes.add(os.stat(f"/proc/self/fd/{name}").st_ino)  # noqa: PTH116
    return {address: connection for address, connection in connections.items() if connection.inode in inodes}


def shut(connection: TcpConnection) -> None:
    """Shut one of this process's connections: who reads it finds its end."""
    for copy in own_sockets():
        if inode_of(copy) == connection.inode:
            with suppress(OSError):
                copy.shutdown(socket.SHUT_RDWR)
            return


def own_sockets() -> Iterator[socket.socket]:
    """A copy of each socket that this process has open, for as long as it is looked at."""
    for name in os.listdir("/proc/self/fd"):  # noqa: PTH208, there may be thousands
        with suppress(OSError):
            descriptor = os.dup(int(name))  # the number itself may mean another file in a moment
            if not stat.S_ISSOCK(os.fstat(descriptor).st_mode):
                os.close(descriptor)
                continue
            with socket.socket(fileno=descriptor) as copy:
                yield copy


def inode_of(connection: socket.socket) -> int:
    return os.fstat(connection.fileno()).st_ino


def peer_address(peer: str) -> Address:
    """The address of a peer as gRPC names it, such as ipv4:127.0.0.1:1234 or ipv6:%5B::1%5D:1234."""
    host, _, port = unquote(peer).partition(":")[2].rpartition(":")
    return (_normal(host.strip("[]")), int(port)) if peer.startswith("ip") else ("", 0)


def _normal(host: str) -> str:
    """One spelling of an address: IPv4 within IPv6 as IPv4, nothing of the scope."""
    address = ip_address(host.partition("%")[0])
    return str((isinstance(address, IPv6Address) and address.ipv4_mapped) or address)


def _parse(content: bytes, family: int, connections: dict[Address, TcpConnection]) -> bool:
    """Add what a part of the dump lists; whether there are more parts. Raises OSError."""
    at = 0
    while at + _HEADER.size <= len(content):
        size, kind, *_ = _HEADER.unpack_from(content, at)
        body = at + _HEADER.size
        if kind == _DONE:
            return False
        if kind == _ERROR:
            raise OSError(-int.from_bytes(content[body : body + 4], "little", signed=True), "sock_diag")
        _, port, _, address, inode = _MESSAGE.unpack_from(content, body)
        if inode:  # else the process has closed it, and the kernel has not seen its end yet
            host = _normal(socket.inet_ntop(family, address[: 4 if family == socket.AF_INET else 16]))
            silent = _silent_ms(content[body + _MESSAGE.size : at + size])
            connections[host, int.from_bytes(port, "big")] = TcpConnection(inode, silent)
        at += -(-size // 4) * 4
    return True


def _silent_ms(attributes: bytes) -> int:
    """For how many milliseconds nothing came."""
    at = 0
    while at + _ATTRIBUTE.size <= len(attributes):
        size, kind = _ATTRIBUTE.unpack_from(attributes, at)
        if kind == _INFO and size >= _ATTRIBUTE.size + _SILENT_AT + 4:
            [silent] = struct.unpack_from("=I", attributes, at + _ATTRIBUTE.size + _SILENT_AT)
            return int(silent)
        at += max(4, -(-size // 4) * 4)
    return 0
