"""Counts the bytes of messages that have not come whole: gRPC holds these and says nothing of them, the kernel does.

gRPC hands a message over once all of it has come, and has no limit for all messages together. What came on a connection
since it began, less what was handed over, is what gRPC holds of it. Linux counts what came on each (sock_diag);
elsewhere, and for UNIX sockets, this is 0.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Collection

from paramsync.host import tcp_connections
from paramsync.host.tcp_connections import Address, TcpConnection, peer_address

from .memory_budget import LARGE, MemoryBudget

_OFTEN = 0.02  # seconds from one count to the next while much is coming: a machine sends itself 40 MB meanwhile
_SELDOM = 0.05
_SPARING, _SPARING_SELDOM = 10, 50  # times what a count takes, at least
_OVERHEAD, _FRAME = 512, 1 << 8  # bytes that come with a message: its headers, and one of so many for frames and TLS
_ROUNDS = 4  # of the event loop, until a call that came is taken up


class IncomingBytes:
    """The connections of one port that have or had calls, and how much of messages came on each.

    The event loop says what it was handed over, from the first call on, and for whose messages it waits; a thread
    counts, because gRPC goes on taking what comes while the loop is busy. Where that is more than half of the budget,
    or a quarter more than requests leave of it, the thread shuts the connections that most came by.
    """

    def __init__(self, budget: MemoryBudget) -> None:
        self.port = 0
        """That which is listened at; nothing is counted before it is known."""
        self._budget = budget
        self._peers: dict[str, _Peer] = {}
        self._holding: dict[str, _Peer] = {}  # those of which something is here; replaced by the thread, never changed
        self._rounds = 0
        self._waited: Collection[str] = ()
        self._quiet: threading.Event | None = None

    @property
    def total(self) -> int:
        return sum([peer.held for peer in self._holding.values()])

    def know(self, name: str) -> None:
        """A call came by this peer, as gRPC calls it."""
        if name not in self._peers and name.startswith("ip"):  # of UNIX sockets the kernel does not say what came
            self._peers[name] = _Peer(peer_address(name))

    def wake(self) -> None:
        """Calls come: count from now on."""
        if self._quiet is None and self.port:
            self._quiet = threading.Event()
            threading.Thread(target=self._count, args=(self._quiet,), name="incoming bytes", daemon=True).start()

    def came(self, name: str, size: int) -> None:
        """A message was handed over."""
        if (peer := self._peers.get(name)) is not None:
            peer.handed += size + size // _FRAME + _OVERHEAD

    def waited(self, names: Collection[str]) -> None:
        """Another round of the event loop, which waits for messages by these peers."""
        self._waited = names
        self._rounds += 1

    def rest(self) -> None:
        """Nothing is going on. What was handed over stays known."""
        if self._quiet is not None:
            self._quiet.set()
            self._quiet = None

    def most(self, names: Collection[str]) -> str | None:
        """The one of these peers of whose messages most is here; None where nothing is."""
        held = {name: peer.held for name, peer in self._holding.items() if name in names}
        name = max(held, key=held.__getitem__, default=None)
        return name if name is not None and held[name] else None

    def dropped(self, name: str) -> None:
        """Its calls were ended, and gRPC lets go of what came."""
        if (peer := self._peers.get(name)) is not None:
            self._budget.left(peer.held)
            peer.before = peer.received - peer.handed

    def _count(self, quiet: threading.Event) -> None:
        """A thread, as long as anything is going on."""
        pause = 0.0
        while not quiet.wait(pause):
            began = time.thread_time()  # by the clock it may wait for others for long, who keep it from running
            self.count()
            took = time.thread_time() - began
            while self._is_too_much() and (name := self.most(self._holding)) is not None:
                tcp_connections.shut(self._holding[name].connection)
                self.dropped(name)
            pause = max(_OFTEN, _SPARING * took) if self.total > LARGE else max(_SELDOM, _SPARING_SELDOM * took)

    def _is_too_much(self) -> bool:
        total, budget = self.total, self._budget
        return total > budget.most // 2 or budget.used > budget.most * 5 // 4

    def count(self) -> None:
        """Count once."""
        rounds, waited = self._rounds, self._waited
        peers = self._peers.copy()
        handed = {name: peer.handed for name, peer in peers.items()}  # what is handed over meanwhile is no credit
        connections = tcp_connections.dump(self.port)
        if connections is None:
            return
        for name, peer in peers.items():
            connection = connections.get(peer.address)
            if connection is not None:
                peer.counted(connection, handed[name])
                peer.settle(rounds, waited=name in waited)
            elif peer.missing:  # in two dumps: while connections come and go, one may be left out of a dump
                self._peers.pop(name, None)
            peer.missing = connection is None
        self._holding = {name: peer for name, peer in peers.items() if peer.held and not peer.missing}


class _Peer:
    """One connection. The event loop counts what it was handed over, the thread all else."""

    __slots__ = ("address", "before", "connection", "handed", "idle", "missing")

    def __init__(self, address: Address) -> None:
        self.address = address
        self.connection = TcpConnection(0, 0)
        self.missing = False
        """Whether the last dump did not have it."""
        self.handed = 0
        self.before = 0
        """What came, was not handed over, and is none of a message that is coming: headers, and what was given up."""
        self.idle: tuple[int, int] | None = None
        """Since which round no message is waited for, and what there was then that was not handed over."""

    @property
    def received(self) -> int:
        return self.connection.received

    @property
    def held(self) -> int:
        return max(0, self.received - self.handed - self.before)

    def counted(self, connection: TcpConnection, handed: int) -> None:
        if self.connection.inode not in (0, connection.inode):  # another connection from the same port
            self.before, self.idle = -handed, None
        self.connection = connection
        self.before = min(self.before, connection.received - handed)  # compressed messages are larger than what came

    def settle(self, rounds: int, *, waited: bool) -> None:
        """Of what came while no message was waited for nothing is here, once calls that had come were taken up."""
        if waited:
            self.idle = None
        elif self.idle is None:
            self.idle = rounds, self.received - self.handed
        elif rounds >= self.idle[0] + _ROUNDS:
            self.before = min(max(self.before, self.idle[1]), self.received - self.handed)
            self.idle = rounds, self.received - self.handed
