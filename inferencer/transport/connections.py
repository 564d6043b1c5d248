"""The connections of one gRPC port: closes some if there are too many, and ends all of them together."""

from __future__ import annotations

import asyncio
import itertools
from collections import OrderedDict
from collections.abc import Iterator, Sized
from heapq import nlargest
from typing import Protocol

import grpc

from paramsync.rpc.server import most_connections

_MOST_UNREAD = 1 << 14  # most answers that may wait for clients to read, on all connections together
_NEW_SECONDS = 1.0  # a younger connection is not closed to make room, unless the port is full
_HOSTS_LOOKED_AT, _LOOKED_AT = 4, 16  # addresses, and connections of each, searched for a connection to close
_LOOK_SECONDS = 1.0
_CHECKED_AT_ONCE = 32  # most connections checked in one turn of the event loop
_STEP_SECONDS = 0.001


class Connection(Protocol):
    """What a port needs of its connections."""

    host: str
    began: float
    heard: float
    """When the client last sent something."""
    held: int
    """Bytes of messages that handlers have not taken."""

    @property
    def calls(self) -> Sized: ...
    @property
    def unread(self) -> int: ...
    @property
    def takes_answers(self) -> bool: ...
    def refuse_coming(self, code: grpc.StatusCode, text: str) -> None: ...
    def check(self, now: float) -> None: ...
    def leave(self) -> None: ...
    def close(self) -> None: ...
    def abort(self) -> None: ...


class Connections:
    """All connections of one port. Lives on the event loop on which it is made."""

    def __init__(self, *, most_seconds: float | None = None) -> None:
        """A client whose connection is older than `most_seconds` is told to open another connection."""
        self.loop = asyncio.get_running_loop()
        self._most_seconds = most_seconds
        self._most = most_connections()
        self._all: set[Connection] = set()
        # For each address, the connections that may be closed to make room, each with its `heard` when `_quiet` last
        # examined the connection.
        self._of_hosts: dict[str, OrderedDict[Connection, float]] = {}
        self._leaving: OrderedDict[Connection, None] = OrderedDict()  # closed to make room; the oldest first
        self._looking: asyncio.TimerHandle | None = None

    def __len__(self) -> int:
        return len(self._all)

    def __iter__(self) -> Iterator[Connection]:
        return iter(self._all)

    def add(self, connection: Connection) -> None:
        self._all.add(connection)
        self._of_hosts.setdefault(connection.host, OrderedDict())[connection] = connection.heard
        if len(self._all) - len(self._leaving) > self._most * 3 // 4:
            self._make_room(connection)
        if self._looking is None:
            self._look_later()

    def discard(self, connection: Connection) -> None:
        self._all.discard(connection)
        self._leaving.pop(connection, None)
        self._spare(connection)

    def leave(self) -> int:
        """Tell all clients to begin no more calls on their connections. Returns the number of connections."""
        for connection in [*self._all]:
            connection.leave()
        return len(self._all)

    async def close(self, seconds: float) -> None:
        """End every connection once its client has read all answers; after `seconds`, abort the rest."""
        end = self.loop.time() + seconds
        for connection in [*self._all]:
            connection.close()
        while self._all and self.loop.time() < end:
            await asyncio.sleep(_STEP_SECONDS)
        await self.abort()

    async def abort(self) -> None:
        for connection in [*self._all]:
            connection.abort()
        if self._looking is not None:
            self._looking.cancel()
        await asyncio.sleep(0)  # let the transports call `connection_lost`

    # Room -------------------------------------------------------------------------------------------------------------

    def _make_room(self, newcomer: Connection) -> None:
        """Close a quiet connection, because its client can open another connection without an error. If the port is
        full, also abort the connection that has been closing longest, or the new connection if no other is closing."""
        is_full = len(self._all) > self._most
        quiet = self._quiet(newcomer, is_full=is_full)
        if quiet is not None:
            self._spare(quiet)
            self._leaving[quiet] = None
            quiet.close()
        if is_full:
            (self._leaving.popitem(last=False)[0] if self._leaving else newcomer).abort()

    def _spare(self, connection: Connection) -> None:
        """Exclude a connection from being closed to make room."""
        of_host = self._of_hosts.get(connection.host, OrderedDict())
        of_host.pop(connection, None)
        if not of_host:
            self._of_hosts.pop(connection.host, None)

    def _quiet(self, newcomer: Connection, *, is_full: bool) -> Connection | None:
        """Find a connection to close, at the addresses with the most connections.

        The connection must have no call, and must have sent nothing since this method last examined it. A full port is
        less strict: calls whose client takes no answers do not count, and if every connection without a call has sent
        something, the connection that has been silent longest is chosen.
        """
        settled = self.loop.time() - (0.0 if is_full else _NEW_SECONDS)
        for host in nlargest(_HOSTS_LOOKED_AT, self._of_hosts, key=lambda host: len(self._of_hosts[host])):
            of_host, without_call = self._of_hosts[host], []
            for connection, heard in [*itertools.islice(of_host.items(), _LOOKED_AT)]:
                if connection.began > settled:
                    break
                of_host[connection] = connection.heard
                of_host.move_to_end(connection)
                is_calling = connection.calls and (connection.takes_answers or not is_full)
                if is_calling or connection is newcomer:
                    continue
                if connection.heard == heard:
                    return connection
                without_call.append(connection)
            if is_full and without_call:
                return min(without_call, key=lambda connection: connection.heard)
        return None

    # Once a second ----------------------------------------------------------------------------------------------------

    def _look_later(self) -> None:
        self._looking = self.loop.call_later(_LOOK_SECONDS, self._look)

    def _look(self) -> None:
        self._shed_unread()
        self._check_next(iter([*self._all]))

    def _check_next(self, connections: Iterator[Connection]) -> None:
        """Check a few connections. Check the rest in later turns of the event loop, because there may be thousands."""
        self._looking = None
        now = self.loop.time()
        few = [*itertools.islice(connections, _CHECKED_AT_ONCE)]
        for connection in few:
            connection.check(now)
            if self._most_seconds is not None and now - connection.began >= self._most_seconds:
                connection.leave()
        if few:
            self._looking = self.loop.call_later(0.0, self._check_next, connections)
        elif self._all:
            self._look_later()

    def _shed_unread(self) -> None:
        """If clients leave too many answers unread, abort the connections with the most unread answers."""
        unread = {connection: connection.unread for connection in self._all}
        left = sum(unread.values()) - _MOST_UNREAD
        for connection in sorted(unread, key=unread.__getitem__, reverse=True) if left > 0 else ():
            if left <= 0:
                break
            left -= unread[connection]
            connection.abort()
