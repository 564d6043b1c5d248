"""The calls and connections of one gRPC port, and the limits that keep it open for everybody."""

from __future__ import annotations

import asyncio
import itertools
from collections import OrderedDict, deque
from collections.abc import Iterator, Mapping
from heapq import nlargest

import grpc

from paramsync.errors import BusyError
from paramsync.rpc.server import most_connections

from .errors import logged_status
from .grpc_call import Call, Method
from .grpc_connection import GrpcConnection
from .memory_budget import LARGE, MemoryBudget, MemoryShare
from .read_timeout import ReadTimeouts
from .turns import Turns

_MOST = 1 << 13  # calls of all kinds; beyond it each connection may have its part of so many
_MOST_UNREAD = 1 << 14  # answers that wait for the other ends to read
_MOST_SILENT = 1 << 10  # whose messages did not come
_AT_ONCE = 64  # calls that begin to be answered in one turn of the event loop, which others need, too
_MOST_OF_NEWCOMERS = 128  # predictions at a time, so that the queue of predictions has room for others
_UNPACKED_AT_ONCE = 2  # messages
_NEW_SECONDS = 1.0  # for the first call of a connection, where there are many
_HOSTS_LOOKED_AT, _LOOKED_AT = 4, 16  # addresses, and connections of each, to make room for one
_LOOK_SECONDS = 1.0
_CHECKED_AT_ONCE = 32  # connections, of which each may turn out to be gone
_LAST = 1.0  # of the grace, for callers to read what they were answered
_STEPS, _STEP_SECONDS = 10, 0.001
_STOPPING = "the server is stopping; call another one, or try again later"


class Calls:
    """Lives on the event loop on which it is made."""

    def __init__(
        self,
        methods: Mapping[str, Method],
        budget: MemoryBudget,
        *,
        message_bytes: int,
        connection_seconds: float | None,
    ) -> None:
        self.methods = methods
        self.message_bytes = message_bytes
        self._connection_seconds = connection_seconds
        self.loop = asyncio.get_running_loop()
        self.turns = Turns(self.loop)
        self.read_timeouts = ReadTimeouts(_MOST_SILENT)
        self.coming = 0
        """Bytes of messages that were not taken up, as most have not come whole: the sum of what calls hold."""
        self.connections: set[GrpcConnection] = set()
        # by address, those that are not leaving, and when something came of each before it was looked at last
        self._of_hosts: dict[str, OrderedDict[GrpcConnection, float]] = {}
        self._leaving: OrderedDict[GrpcConnection, None] = OrderedDict()  # closed to make room; the oldest first
        self._budget = budget
        self._most_connections = most_connections()
        self._came = 0  # calls since the beginning
        self._open = 0
        self._refuses = False
        self._beginning = 0  # calls whose message is there, and which were not begun with
        self._due: dict[GrpcConnection, deque[Call]] = {}  # of them, those for which there is no room in this turn
        self._due_calls = 0
        self._of_newcomers: set[Call] = set()  # predictions that were started
        # predictions of newcomers that wait for one of these to end; the connection whose turn is next comes last
        self._later: OrderedDict[GrpcConnection, dict[Call, None]] = OrderedDict()
        self._last: OrderedDict[GrpcConnection, dict[Call, None]] = OrderedDict()  # after these, of who takes no answer
        self._streams = 0
        self._looking: asyncio.TimerHandle | None = None
        self.unpacking = asyncio.Semaphore(_UNPACKED_AT_ONCE)
        """Turns of threads. A turn ends when its thread does, also where the call was over before."""

    # Calls ------------------------------------------------------------------------------------------------------------

    def awaited(self) -> int:
        """How many calls may bring a message at any moment, or have just done so."""
        return len(self.read_timeouts) + self._beginning + self._streams

    def begin(self, call: Call, connection: GrpcConnection) -> None:
        """Its headers came."""
        self._came += 1
        self._open += 1
        if self._refuses:
            call.refuse(grpc.StatusCode.UNAVAILABLE, _STOPPING)
        elif self._open > _MOST and len(connection.calls) > _MOST // len(self.connections):
            call.refuse(grpc.StatusCode.RESOURCE_EXHAUSTED, f"{_MOST} calls are open already; try again in a moment")
        else:
            call.begin()
            if call.is_silent:
                self.read_timeouts.begin(call, self.loop.time())

    def over(self, call: Call, connection: GrpcConnection) -> None:
        self._open -= 1
        self.read_timeouts.end(call)
        for waiting in (self._later, self._last):
            if connection in waiting:
                waiting[connection].pop(call, None)
                if not waiting[connection]:
                    del waiting[connection]

    def begins(self, call: Call, connection: GrpcConnection) -> None:
        """Its message is there, or it needs none to begin: it is started, in a moment where many are."""
        self.read_timeouts.end(call)
        if call.method.predicts and call.is_of_newcomer:
            if len(self._of_newcomers) >= _MOST_OF_NEWCOMERS:
                waiting = self._later if connection.takes_answers else self._last
                waiting.setdefault(connection, {})[call] = None
                return
            self._of_newcomers.add(call)
        self._start(call, connection)

    def _start(self, call: Call, connection: GrpcConnection) -> None:
        self._beginning += 1
        if self._beginning - self._due_calls <= _AT_ONCE:
            call.start()
        else:
            self._due.setdefault(connection, deque()).append(call)
            self._due_calls += 1

    def begun(self, call: Call) -> None:
        self._beginning -= 1
        self._streams += call.method.is_stream
        if self._due_calls:
            self._start_next()

    def _start_next(self) -> None:
        """One of each connection in turn."""
        connection = next(iter(self._due))
        calls = self._due.pop(connection)
        self._due_calls -= 1
        calls.popleft().start()
        if calls:
            self._due[connection] = calls

    def ran(self, call: Call) -> None:
        self._streams -= call.method.is_stream
        if call in self._of_newcomers:
            self._of_newcomers.discard(call)
            if self._later or self._last:
                self._start_later()

    def _start_later(self) -> None:
        """Of the connection that came last, so that not all wait long in a flood; then it comes after the others."""
        waiting = self._later or self._last
        connection, calls = waiting.popitem()
        call = next(iter(calls))
        del calls[call]
        if calls:
            waiting[connection] = calls
            waiting.move_to_end(connection, last=False)
        self._of_newcomers.add(call)
        self._start(call, connection)

    def share(self) -> MemoryShare:
        return self._budget.share()

    def held(self, connection: GrpcConnection, share: MemoryShare, size: int) -> None:
        """Count this many bytes of messages for the call that has the share. Over budget, end the calls of the
        connection that holds most."""
        more = size - share.size
        share.keep(size)
        self.coming += more
        connection.held += more
        if more <= -LARGE:
            self._budget.left(-more)
        elif more > 0 and self.coming > LARGE and self._budget.over:
            self._crowd_out()

    def _crowd_out(self) -> None:
        most = self._budget.most
        busy = BusyError(f"messages that come and requests take {most} bytes already; try again in a moment")
        while self._budget.over:
            largest = max(self.connections, key=lambda connection: connection.held, default=None)
            if largest is None or not largest.held:
                return
            for call in [*largest.calls.values()]:
                if call.is_coming:
                    call.refuse(*logged_status(busy))

    # Connections ------------------------------------------------------------------------------------------------------

    def came(self, connection: GrpcConnection) -> None:
        self.connections.add(connection)
        self._of_hosts.setdefault(connection.host, OrderedDict())[connection] = connection.heard
        if len(self.connections) - len(self._leaving) > self._most_connections * 3 // 4:
            self._make_room(connection)
        if self._looking is None:
            self._look_later()

    def gone(self, connection: GrpcConnection) -> None:
        self.connections.discard(connection)
        self._leaving.pop(connection, None)
        self._leave_alone(connection)

    def _leave_alone(self, connection: GrpcConnection) -> None:
        """It is not looked at any more to make room."""
        of_host = self._of_hosts.get(connection.host, OrderedDict())
        of_host.pop(connection, None)
        if not of_host:
            self._of_hosts.pop(connection.host, None)

    def _make_room(self, newcomer: GrpcConnection) -> None:
        """Close a quiet connection, which its client makes again unnoticed. Where there is no room at all, end one that
        is closing, or else the new one."""
        is_full = len(self.connections) > self._most_connections
        quiet = self._quiet(newcomer, is_full=is_full)
        if quiet is not None:
            self._leave_alone(quiet)
            self._leaving[quiet] = None
            quiet.close()
        if is_full:
            (self._leaving.popitem(last=False)[0] if self._leaving else newcomer).abort()

    def _quiet(self, newcomer: GrpcConnection, *, is_full: bool) -> GrpcConnection | None:
        """One without a call, of an address that has most: one on which nothing came since it was looked at last. A new
        one has a moment for its first call. Where there is no room at all, it is of those looked at the one that is
        silent longest, and calls whose client takes no answer do not count."""
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

    def _look_later(self) -> None:
        self._looking = self.loop.call_later(_LOOK_SECONDS, self._look)

    def _look(self) -> None:
        self._shed_unread()
        self._check_next(iter([*self.connections]))

    def _check_next(self, connections: Iterator[GrpcConnection]) -> None:
        """Check a few of these, and the rest in later turns of the event loop: there may be thousands."""
        self._looking = None
        now = self.loop.time()
        few = [*itertools.islice(connections, _CHECKED_AT_ONCE)]
        for connection in few:
            connection.check(now)
            if self._connection_seconds is not None and now - connection.began >= self._connection_seconds:
                connection.leave()
        if few:
            self._looking = self.loop.call_later(0.0, self._check_next, connections)
        elif self.connections:
            self._look_later()

    def _shed_unread(self) -> None:
        """Where others leave too many answers unread, end the connections that leave most."""
        unread = {connection: connection.unread for connection in self.connections}
        left = sum(unread.values()) - _MOST_UNREAD
        if left <= 0:
            return
        for connection in sorted(unread, key=unread.__getitem__, reverse=True):
            if left <= 0:
                break
            left -= unread[connection]
            connection.abort()

    # The end ----------------------------------------------------------------------------------------------------------

    def leave(self) -> int:
        """Have callers begin no more calls on the connections that are here. How many there are."""
        for connection in [*self.connections]:
            connection.leave()
        return len(self.connections)

    async def quiet(self, seconds: float, *, most: float) -> None:
        """Returns once no call is open and none came for so many seconds, or after the most."""
        end, still = self.loop.time() + most, 0
        while (still < _STEPS or self._open) and self.loop.time() < end:
            before = self._came
            await asyncio.sleep(max(_STEP_SECONDS, seconds / _STEPS))
            # in steps: while the loop is busy it does not take up what comes, and that time must not count
            still = still + 1 if self._came == before else 0

    async def drain(self, grace: float) -> None:
        """Refuse calls that come, answer those that are here within the grace, and end every connection, once its other
        end has read all."""
        end = self.loop.time() + grace
        self._refuses = True
        await self.quiet(0.0, most=grace - _LAST)
        for connection in [*self.connections]:
            connection.close()
        while self.connections and self.loop.time() < end:
            await asyncio.sleep(_STEP_SECONDS)
        await self.stop()

    async def stop(self) -> None:
        """End all at once."""
        for connection in [*self.connections]:
            connection.abort()
        self.read_timeouts.close()
        if self._looking is not None:
            self._looking.cancel()
        await asyncio.sleep(0)  # in which transports tell their connections
