"""The states of a gRPC call on our own server, and how many calls of one port may be in each state.

A call begins with its headers. It is over once its caller gets nothing more: the call is answered completely or
refused, its deadline has passed, the caller reset it, or the connection is lost. Only `Calls` changes the state.

    state     waits for                                 next             counted in
    SILENT    its message                               QUEUED DUE OVER  read_timeouts, unless it is a stream
    QUEUED    a place among predictions of newcomers    DUE OVER         _later or _last
    DUE       its turn of the event loop to start       RUNNING OVER     _starting; _of_newcomers
    RUNNING   its handler's answer                      OVER             _streams, if it is a stream; _of_newcomers
    OVER      nothing                                                    nothing

A newcomer is a connection that is new, or has cost more time than its answers made up for (see `turns`).
Only predictions of newcomers are queued, and counted in `_of_newcomers`.

A call that is over may have a task that is scheduled to start, or a handler that has not returned. Such a task starts
nevertheless, and returns at once. The call stays counted in `_starting`, `_streams` and `_of_newcomers` until its task
or handler has returned.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from collections.abc import Mapping
from enum import Enum, auto
from typing import Protocol

import grpc

from paramsync.errors import BusyError

from .connections import Connection, Connections
from .errors import logged_status
from .memory_budget import LARGE, MemoryBudget, MemoryShare
from .methods import Method

_MOST = 1 << 13  # open calls; above this number, each connection may have an equal share of this number at most
_MOST_SILENT = 1 << 10  # most calls that wait for their message
_PATIENCE = 60.0  # seconds in which the message of a silent call must come
_PATIENCE_AT_THE_END = 4.0  # seconds: the limit for silent calls while the server stops
_LOOKS = 4  # silent calls are checked so many times within the patience
_AT_ONCE = 64  # most calls that start in one turn of the event loop, because other events need the loop, too
_MOST_OF_NEWCOMERS = 128  # most predictions of newcomers at a time, so that the queue keeps room for other callers
_UNPACKED_AT_ONCE = 2  # most messages decompressed at a time
_STEPS, _STEP_SECONDS = 10, 0.001  # `until_quiet` takes so many steps, of at least so many seconds each
_STOPPING = "the server is stopping; call another one, or try again later"


class State(Enum):
    """The state of a call; see the table above."""

    SILENT = auto()
    QUEUED = auto()
    DUE = auto()
    RUNNING = auto()
    OVER = auto()


SILENT, QUEUED, DUE, RUNNING, OVER = State


class Call(Protocol):
    """What `Calls` needs of a call."""

    state: State
    method: Method
    is_of_newcomer: bool

    def begin(self) -> None: ...
    def start(self) -> None: ...
    def refuse(self, code: grpc.StatusCode, text: str) -> None: ...


class ReadTimeouts:
    """The silent calls of one port: limits how many wait for their message, and for how long.

    Over the limit, the call that has waited longest ends, so that callers who open calls and send nothing take no room
    from other callers.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._patience = _PATIENCE
        self._is_stopping = False
        self._silent: dict[Call, float] = {}  # the time at which each call began; the oldest first
        self._looking: asyncio.TimerHandle | None = None

    def __len__(self) -> int:
        return len(self._silent)

    def begin(self, call: Call, now: float) -> None:
        if len(self._silent) >= self._most:
            text = f"{self._most} calls are open whose messages did not come yet; try again in a moment"
            next(iter(self._silent)).refuse(grpc.StatusCode.RESOURCE_EXHAUSTED, text)
        self._silent[call] = now
        if self._looking is None:
            self._look_later()

    def end(self, call: Call) -> None:
        """Forget a call whose message has come, or that is over."""
        self._silent.pop(call, None)

    def drain(self) -> None:
        """From now on, wait only a few seconds for messages."""
        self._is_stopping = True
        self._patience = min(self._patience, _PATIENCE_AT_THE_END)
        if self._looking is not None:
            self._looking.cancel()
            self._look()

    def close(self) -> None:
        if self._looking is not None:
            self._looking.cancel()

    def _look_later(self) -> None:
        self._looking = asyncio.get_running_loop().call_later(self._patience / _LOOKS, self._look)

    def _look(self) -> None:
        self._looking = None
        late = asyncio.get_running_loop().time() - self._patience
        for call, began in [*self._silent.items()]:
            if began > late:
                break
            if self._is_stopping:
                call.refuse(grpc.StatusCode.UNAVAILABLE, "the server is stopping; call another one")
            else:
                text = f"request: expected its message within {self._patience:g} s, found that it did not come"
                call.refuse(grpc.StatusCode.DEADLINE_EXCEEDED, text)
        if self._silent:
            self._look_later()


class Countable(Protocol):
    """The calls of a port: how many are open, and how many have come."""

    open: int
    came: int


async def until_quiet(port: Countable, seconds: float, *, most: float) -> bool:
    """Wait until no call is open and no call has come for `seconds`, but at most `most` seconds. Returns whether it
    became quiet."""
    loop = asyncio.get_running_loop()
    end, still = loop.time() + most, 0
    while (still < _STEPS or port.open) and loop.time() < end:
        before = port.came
        await asyncio.sleep(max(_STEP_SECONDS, seconds / _STEPS))
        # Count quiet steps instead of time: a busy loop accepts no calls, so its busy time is not quiet.
        still = still + 1 if port.came == before else 0
    return still >= _STEPS and not port.open


class Calls:
    """The open calls of one port. Lives on the event loop on which it is made."""

    def __init__(
        self, methods: Mapping[str, Method], budget: MemoryBudget, connections: Connections, *, message_bytes: int
    ) -> None:
        self.methods = methods
        self.message_bytes = message_bytes
        self.loop = connections.loop
        self.read_timeouts = ReadTimeouts(_MOST_SILENT)
        self.coming = 0
        """Bytes of all calls' messages that handlers have not taken."""
        self.refuses = False
        """Whether new calls are refused because the server stops."""
        self.unpacking = asyncio.Semaphore(_UNPACKED_AT_ONCE)
        """Held by each thread that decompresses a message, even after its call is over."""
        self._connections = connections
        self._budget = budget
        self.came = 0
        self.open = 0
        self._starting = 0
        self._delayed: dict[Connection, deque[Call]] = {}  # calls that start in later turns of the loop
        self._delayed_calls = 0
        self._of_newcomers: set[Call] = set()
        # Queued predictions of newcomers. The last connection has the next turn.
        self._later: OrderedDict[Connection, dict[Call, None]] = OrderedDict()
        # Queued predictions of newcomers whose clients take no answers.
        self._last: OrderedDict[Connection, dict[Call, None]] = OrderedDict()
        self._streams = 0

    def awaited(self) -> int:
        """The number of calls whose message may come at any moment, or has just come."""
        return len(self.read_timeouts) + self._starting + self._streams

    # Events of a call -------------------------------------------------------------------------------------------------

    def begin(self, call: Call, connection: Connection) -> None:
        """Add a call whose headers have come."""
        self.came += 1
        self.open += 1
        if self.refuses:
            call.refuse(grpc.StatusCode.UNAVAILABLE, _STOPPING)
        elif self.open > _MOST and len(connection.calls) > _MOST // len(self._connections):
            call.refuse(grpc.StatusCode.RESOURCE_EXHAUSTED, f"{_MOST} calls are open already; try again in a moment")
        else:
            call.begin()
            if call.state is SILENT:
                self.read_timeouts.begin(call, self.loop.time())

    def admit(self, call: Call, connection: Connection) -> None:
        """Start or queue a call whose message has come, or that needs no message to start."""
        self.read_timeouts.end(call)
        if call.method.predicts and call.is_of_newcomer and len(self._of_newcomers) >= _MOST_OF_NEWCOMERS:
            call.state = QUEUED
            queue = self._later if connection.takes_answers else self._last
            queue.setdefault(connection, {})[call] = None
        else:
            self._admit(call, connection)

    def start(self, call: Call) -> None:
        """Record that the task of a call runs, and start a delayed call."""
        if call.state is DUE:
            call.state = RUNNING
        self._starting -= 1
        self._streams += call.method.is_stream
        if self._delayed_calls:
            self._start_delayed()

    def end(self, call: Call, connection: Connection) -> None:
        """Record that a call is over: its caller gets nothing more."""
        before, call.state = call.state, OVER
        self.open -= 1
        if before is SILENT:
            self.read_timeouts.end(call)
        elif before is QUEUED:
            queue = self._later if call in self._later.get(connection, ()) else self._last
            del queue[connection][call]
            if not queue[connection]:
                del queue[connection]

    def leave(self, call: Call) -> None:
        """Record that the handler of a call has returned."""
        self._streams -= call.method.is_stream
        if call in self._of_newcomers:
            self._of_newcomers.discard(call)
            if self._later or self._last:
                self._admit_queued()

    def _admit(self, call: Call, connection: Connection) -> None:
        call.state = DUE
        if call.method.predicts and call.is_of_newcomer:
            self._of_newcomers.add(call)
        self._starting += 1
        if self._starting - self._delayed_calls <= _AT_ONCE:
            call.start()
        else:
            self._delayed.setdefault(connection, deque()).append(call)
            self._delayed_calls += 1

    def _start_delayed(self) -> None:
        """Start one delayed call. Connections take turns."""
        connection = next(iter(self._delayed))
        calls = self._delayed.pop(connection)
        self._delayed_calls -= 1
        calls.popleft().start()
        if calls:
            self._delayed[connection] = calls

    def _admit_queued(self) -> None:
        """Admit a queued prediction of the connection that joined the queue last.

        The newest connection is first, so that some callers wait only briefly, even in a flood. After its turn, a
        connection waits until all other connections have had a turn.
        """
        queue = self._later or self._last
        connection, calls = queue.popitem()
        call = next(iter(calls))
        del calls[call]
        if calls:
            queue[connection] = calls
            queue.move_to_end(connection, last=False)
        self._admit(call, connection)

    # Memory -----------------------------------------------------------------------------------------------------------

    def share(self) -> MemoryShare:
        return self._budget.share()

    def hold(self, connection: Connection, share: MemoryShare, size: int) -> None:
        """Set a call's share to the bytes of messages that the call holds.

        If the budget is exceeded and messages hold more than LARGE bytes, end calls of the connection that holds most.
        """
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
            largest = max(self._connections, key=lambda connection: connection.held, default=None)
            if largest is None or not largest.held:
                return
            largest.refuse_coming(*logged_status(busy))
