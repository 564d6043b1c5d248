"""What has come of messages that are not whole: gRPC keeps it and says nothing of it, but the kernel counts it.

gRPC hands a message over once all of it has come, and has no limit for all messages together. What came on a connection
since it began less what was handed over is what gRPC holds of it. Linux counts what came on each (TCP_INFO); elsewhere,
and for UNIX sockets, this is 0.
"""

from __future__ import annotations

import os
import socket
import struct
import threading
import time
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path
from urllib.parse import unquote

from paramsync.host import memory

from .memory_budget import LARGE

_DESCRIPTORS = Path("/proc/self/fd")
_RECEIVED = 128  # where tcp_info has tcpi_bytes_received, 8 bytes
_OFTEN = 0.02  # seconds from one look to the next while much is coming: a machine sends itself 40 MB meanwhile
_SELDOM = 0.05
_SPARING, _SPARING_SELDOM = 10, 50  # times what a look takes, at least
_BESIDE, _FRAMED = 512, 1 << 10  # bytes that come with a message: its headers, and one of so many for frames
_ROUNDS = 4  # of the event loop, until a call that came is taken up
_GIVEN_BACK = 4  # times while as much is handed over or given up as may be here
_INFO = getattr(socket, "TCP_INFO", 0)
_COUNTED = bool(_INFO) and _DESCRIPTORS.is_dir()


class IncomingBytes:
    """The connections that have or had calls, by gRPC's name of the peer, and how much of messages came on each.

    The event loop says what it was handed over, from the first call on, and for whose messages it waits; a thread
    counts, because gRPC goes on taking what comes while the loop is busy. Where there is more than `most` that thread
    shuts the connections that most came by.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._peers: dict[str, _Peer] = {}
        self._holding: dict[str, _Peer] = {}  # those of which something is here; replaced by the thread, never changed
        self._rounds = 0
        self._waited: Collection[str] = ()
        self._resting: threading.Event | None = None
        self._freed = 0  # by gRPC, which has messages in small parts, since what it freed was given back

    @property
    def total(self) -> int:
        return sum([one.held for one in self._holding.values()])

    def know(self, peer: str) -> None:
        """A call came by it."""
        if peer not in self._peers and peer.startswith("ip"):  # of UNIX sockets the kernel does not say what came
            self._peers[peer] = _Peer()

    def wake(self) -> None:
        """Calls come: count from now on."""
        if self._resting is None and _COUNTED:
            self._resting = threading.Event()
            threading.Thread(target=self._count, args=(self._resting,), name="coming", daemon=True).start()

    def came(self, peer: str, size: int) -> None:
        """A message was handed over."""
        if (one := self._peers.get(peer)) is not None:
            one.handed += size + size // _FRAMED + _BESIDE
            self._freed += size if size >= LARGE else 0

    def waited(self, peers: Collection[str]) -> None:
        """Another round of the event loop, which waits for messages by these."""
        self._waited = peers
        self._rounds += 1

    def rest(self) -> None:
        """Nothing is going on. What was handed over stays known."""
        if self._resting is not None:
            self._resting.set()
            self._resting = None

    def most(self, peers: Collection[str]) -> str | None:
        """The one of these of whose messages most is here; None where nothing is."""
        found = {peer: one.held for peer, one in self._holding.items() if peer in peers}
        peer = max(found, key=found.__getitem__, default=None)
        return peer if peer is not None and found[peer] else None

    def dropped(self, peer: str) -> None:
        """Its calls were ended, and gRPC lets go of what came."""
        if (one := self._peers.get(peer)) is not None:
            self._freed += one.held
            one.before = one.received - one.handed

    def _count(self, resting: threading.Event) -> None:
        """A thread, as long as anything is going on."""
        pause = 0.0
        while not resting.wait(pause):
            began = time.thread_time()  # by the clock it may wait for others for long, who keep it from running
            self.look()
            took = time.thread_time() - began
            while self.total > self._most and (peer := self.most(self._holding)) is not None:
                _shut(self._holding[peer].descriptor, peer)
                self.dropped(peer)
            if self._freed > self._most // _GIVEN_BACK:  # here too: the event loop may have no time for it
                self._freed = 0
                memory.trim_heap()
            pause = max(_OFTEN, _SPARING * took) if self.total > LARGE else max(_SELDOM, _SPARING_SELDOM * took)

    def look(self) -> None:
        """Count once."""
        rounds, waited = self._rounds, self._waited
        peers = self._peers.copy()
        missing = {peer for peer, one in peers.items() if not one.look(peer)}
        try:
            descriptors = _descriptors(missing)
        except OSError:  # no descriptor is left to list them by; the next look may have one
            return
        for peer, descriptor in descriptors.items():
            peers[peer].descriptor = descriptor
            if peers[peer].look(peer):
                missing.discard(peer)
        for peer in missing:
            self._peers.pop(peer, None)
        for peer, one in peers.items():
            one.settle(rounds, waited=peer in waited)
        self._holding = {peer: one for peer, one in peers.items() if one.held and peer not in missing}


class _Peer:
    """One connection. The event loop counts what it was handed over, the thread all else."""

    __slots__ = ("before", "descriptor", "handed", "idle", "received")

    def __init__(self) -> None:
        self.descriptor = -1
        self.received = 0
        self.handed = 0
        self.before = 0
        """What came, was not handed over, and is none of a message that is coming: headers, and what was given up."""
        self.idle: tuple[int, int] | None = None
        """Since which round no message is waited for, and what there was then that was not handed over."""

    @property
    def held(self) -> int:
        return max(0, self.received - self.handed - self.before)

    def look(self, peer: str) -> bool:
        """Whether the connection is there still."""
        if self.descriptor < 0:
            return False
        handed = self.handed  # first: what is handed over meanwhile is no credit
        received = _received(self.descriptor, peer)
        if received is None:
            return False
        if received < self.received:  # another connection from the same port
            self.before, self.idle = -handed, None
        self.received = received
        self.before = min(self.before, received - handed)  # compressed messages are larger than what came
        return True

    def settle(self, rounds: int, *, waited: bool) -> None:
        """Of what came while no message was waited for nothing is here, once calls that had come were taken up."""
        if waited:
            self.idle = None
        elif self.idle is None:
            self.idle = rounds, self.received - self.handed
        elif rounds >= self.idle[0] + _ROUNDS:
            self.before = min(max(self.before, self.idle[1]), self.received - self.handed)
            self.idle = rounds, self.received - self.handed


def _descriptors(peers: set[str]) -> dict[str, int]:
    """The connections to these peers among all that this process has."""
    if not peers or not _COUNTED:
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
    if _other_end(descriptor) != _address(peer):
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
