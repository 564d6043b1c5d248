"""What has come of messages that are not whole: gRPC keeps it and says nothing of it, but the kernel counts it.

gRPC hands a message over once all of it has come, and has no limit for all messages together. What came on a connection
less what was handed over is what gRPC holds of it. Linux counts what came on each (TCP_INFO); elsewhere this is 0.
"""

from __future__ import annotations

import os
import socket
import struct
import threading
import time
from collections.abc import Collection, Iterable
from contextlib import suppress
from pathlib import Path
from urllib.parse import unquote

from paramsync.host import heap

from .memory_budget import LARGE

_DESCRIPTORS = Path("/proc/self/fd")
_RECEIVED = 128  # where tcp_info has tcpi_bytes_received, 8 bytes
_OFTEN = 0.02  # seconds from one look to the next: a machine sends itself 40 MB meanwhile
_GIVEN_BACK = 4  # times while as much is handed over or given up as may be here
_SPARING = 10  # times what a look takes, at least
_KNOWN = 1 << 14  # connections that are known; more than there can be at a time
_INFO = getattr(socket, "TCP_INFO", None)


class Coming:
    """The connections on which messages are coming, by gRPC's name of the peer.

    The event loop says which they are and what it was handed over; a thread counts, because gRPC goes on taking what
    comes while the loop is busy. Where there is more than `most` that thread shuts the connections that most came by.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._wanted: frozenset[str] = frozenset()
        self._peers: dict[str, _Peer] = {}  # replaced by the thread, never changed
        self._known: dict[str, None] = {}  # who is known longest comes first
        self._asked = threading.Event()
        self._freed = 0  # by gRPC, which has messages in small parts, since what it freed was given back

    @property
    def total(self) -> int:
        return sum([one.held for one in self._peers.values()])

    def watch(self, peers: Iterable[str]) -> None:
        """Count what comes by these, and nothing else, until that is said again."""
        self._wanted = frozenset(peers)
        if not self._asked.is_set() and self._wanted:
            self._asked.set()
            threading.Thread(target=self._count, name="coming", daemon=True).start()

    def know(self, peer: str) -> None:
        """A message that was waited for came by it, or will not come.

        Of another connection all that came is of messages that are coming, also what came before the first look.
        """
        self._known.pop(peer, None)
        self._known[peer] = None
        if len(self._known) > _KNOWN:
            del self._known[next(iter(self._known))]

    def came(self, peer: str, size: int) -> None:
        """A message was handed over."""
        if (one := self._peers.get(peer)) is not None:
            one.before += size
            self._freed += size if size >= LARGE else 0

    def most(self) -> str | None:
        """The peer of whose messages most is here."""
        return max(self._peers, key=lambda peer: self._peers[peer].held, default=None)

    def dropped(self, peer: str) -> None:
        """Its calls were ended, and gRPC lets go of what came."""
        if (one := self._peers.get(peer)) is not None:
            self._freed += one.held
            one.before = one.received

    def __bool__(self) -> bool:
        return bool(self._peers)

    def _count(self) -> None:
        """A thread, as long as messages are coming."""
        pause = threading.Event()
        while wanted := self._wanted:
            began = time.monotonic()
            self.look(wanted)
            while self.total > self._most and (peer := self.most()) is not None:
                _shut(self._peers[peer].descriptor, peer)
                self.dropped(peer)
            if self._freed > self._most // _GIVEN_BACK:  # here too: the event loop may have no time for it
                self._freed = 0
                heap.give_back()
            pause.wait(max(_OFTEN, _SPARING * (time.monotonic() - began)))
        self._peers = {}
        self._asked.clear()

    def look(self, peers: Collection[str]) -> None:
        """Count once."""
        found = {peer: one for peer, one in self._peers.items() if peer in peers}
        new = {peer: _Peer(descriptor) for peer, descriptor in _descriptors({*peers} - found.keys()).items()}
        found |= new
        for peer, one in [*found.items()]:
            received = _received(one.descriptor, peer)
            if received is None:
                del found[peer]
            else:
                one.received = received
        self._settle(new)
        self._peers = found  # from now on who hands a message over says so here too; who did so meanwhile is known
        self._settle(new)

    def _settle(self, new: dict[str, _Peer]) -> None:
        for peer, one in new.items():
            if peer in self._known:
                one.before = one.received


class _Peer:
    __slots__ = ("before", "descriptor", "received")

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        self.received = 0
        self.before = 0
        """What is none of a message that is coming: what had come of one that is known, and what was handed over."""

    @property
    def held(self) -> int:
        return max(0, self.received - self.before)


def _descriptors(peers: set[str]) -> dict[str, int]:
    """The connections to these peers among all that this process has."""
    if not peers or _INFO is None or not _DESCRIPTORS.is_dir():
        return {}
    wanted = {_address(peer): peer for peer in peers}
    found = {}
    for name in os.listdir(_DESCRIPTORS):  # noqa: PTH208, there may be thousands
        address = _other_end(int(name))
        if address in wanted:
            found[wanted[address]] = int(name)
    return found


def _other_end(descriptor: int) -> tuple[str, int] | None:
    """Where a connection leads; None for what is none, or was closed meanwhile."""
    with suppress(OSError):
        one = socket.socket(socket.AF_INET6, socket.SOCK_STREAM, 0, fileno=descriptor)
        try:
            name = one.getpeername()
        finally:
            one.detach()  # it is gRPC's
        if isinstance(name, tuple) and len(name) > 1:
            return name[0].removeprefix("::ffff:"), name[1]
    return None


def _shut(descriptor: int, peer: str) -> None:
    if _other_end(descriptor) == _address(peer):
        with suppress(OSError):
            one = socket.socket(socket.AF_INET6, socket.SOCK_STREAM, 0, fileno=descriptor)
            try:
                one.shutdown(socket.SHUT_RDWR)
            finally:
                one.detach()


def _received(descriptor: int, peer: str) -> int | None:
    """How many bytes came; None where it is another connection by now, or this kernel does not say."""
    if _INFO is None or _other_end(descriptor) != _address(peer):
        return None
    with suppress(OSError):
        one = socket.socket(socket.AF_INET6, socket.SOCK_STREAM, 0, fileno=descriptor)
        try:
            content = one.getsockopt(socket.IPPROTO_TCP, _INFO, _RECEIVED + 8)
        finally:
            one.detach()
        if len(content) >= _RECEIVED + 8:
            return int(struct.unpack_from("=Q", content, _RECEIVED)[0])
    return None


def _address(peer: str) -> tuple[str, int]:
    """Of gRPC's name, such as ipv4:127.0.0.1:1234 or ipv6:%5B::1%5D:1234."""
    host, _, port = unquote(peer).partition(":")[2].rpartition(":")
    return host.strip("[]").removeprefix("::ffff:"), int(port) if port.isdigit() else 0
