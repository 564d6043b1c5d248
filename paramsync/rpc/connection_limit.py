"""Keeps a port of gRPC's own server open for newcomers: shuts quiet connections before its limit refuses new ones."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Collection, Mapping

from paramsync.host import tcp_connections
from paramsync.host.tcp_connections import Address, TcpConnection, peer_address
from paramsync.program.process import connection_limit

MOST = 4096  # for each port, where descriptors allow
_PORTS = 3  # of one process
_EVERY = 1.0  # seconds from one look to the next
_EVERY_WHEN_MANY = 0.1


def most_connections() -> int:
    """How many connections a port accepts."""
    return min(MOST, connection_limit() // _PORTS)


class ConnectionLimit:
    """The connections of one port, and which of them have calls. Any thread.

    From three quarters of the limit on, connections without a call are shut: of the address that has most of them, the
    one that has been silent longest. A new connection has a second for its first call. Clients connect again unnoticed.
    """

    def __init__(self, most: int | None = None) -> None:
        self._most = most_connections() if most is None else most
        self._calls: dict[object, str] = {}  # the peer of each call; any thread adds and removes its own
        self._seen: dict[int, float] = {}  # when a connection was seen first, by its inode
        self._ended = threading.Event()

    def begin(self, context: object, peer: str) -> None:
        """A call of this peer, as gRPC names it, goes on until its `end`."""
        self._calls[context] = peer

    def end(self, context: object) -> None:
        self._calls.pop(context, None)

    def start(self, port: int) -> None:
        """Look after this port by a thread, until `close`."""
        threading.Thread(target=self._loop, args=(port,), name=f"connections of {port}", daemon=True).start()

    def close(self) -> None:
        self._ended.set()

    def run_once(self, port: int) -> int:
        """Shut what has to be shut. Returns how many connections there are."""
        connections = tcp_connections.dump(port) or {}
        if len(connections) > self._most * 3 // 4:
            connections = tcp_connections.of_this_process(connections)
        now = time.monotonic()
        inodes = [connection.inode for connection in connections.values()]
        self._seen = {inode: self._seen.get(inode, now) for inode in inodes}
        spare = len(connections) - self._most * 3 // 4
        if spare > 0:
            peers = set(self._calls.values())  # after the dump: a call that came meanwhile is among them
            busy = {peer_address(peer) for peer in peers}
            settled = {inode for inode, first in self._seen.items() if now - first >= _EVERY}
            for connection in to_shut(connections, busy, settled, spare):
                tcp_connections.shut(connection)
        return len(connections)

    def _loop(self, port: int) -> None:
        pause = _EVERY
        while not self._ended.wait(pause):
            count = self.run_once(port)
            pause = _EVERY_WHEN_MANY if count > self._most // 2 else _EVERY


def to_shut(
    connections: Mapping[Address, TcpConnection], busy: Collection[Address], settled: Collection[int], count: int
) -> list[TcpConnection]:
    """At most so many connections without a call, of the addresses that have most, those silent for longest first."""
    of_host = Counter(host for host, _ in connections)
    quiet: dict[str, list[TcpConnection]] = {}
    for address, connection in sorted(connections.items(), key=lambda item: item[1].silent_ms):
        if address not in busy and connection.inode in settled:
            quiet.setdefault(address[0], []).append(connection)
    shut: list[TcpConnection] = []
    while quiet and len(shut) < count:
        host = max(quiet, key=of_host.__getitem__)
        shut.append(quiet[host].pop())
        of_host[host] -= 1
        if not quiet[host]:
            del quiet[host]
    return shut
