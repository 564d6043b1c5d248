"""Messages that are waited for: each is given time, and there are not more than so many calls, nor bytes of them."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator
from typing import Any

import grpc

from paramsync.errors import BusyError

from .incoming_bytes import IncomingBytes
from .memory_budget import LARGE, MemoryBudget

_PATIENCE = 60.0
_PATIENCE_AT_THE_END = 4.0
_LOOKS = 4  # while the time of one call passes
_OFTEN = 0.05  # seconds from one look at what has come to the next
_QUIET = 20  # looks after the last call, until nobody looks any more


class ReadTimeouts:
    """The calls of one port whose callers owe one message. Lives on one event loop.

    Whoever opens calls and says nothing takes no room from others: where there are too many of that kind, the one that
    was given most time is given up. Where gRPC itself waits for a message it waits without an end. Where what has come
    finds no room, the calls of the connection that most has come by are ended.
    """

    def __init__(self, most: int, budget: MemoryBudget, *, patience: float = _PATIENCE) -> None:
        """`patience` is how many seconds a message may take to come."""
        self._most = most
        self._budget = budget
        self.coming = IncomingBytes(budget)
        self._open: dict[Any, asyncio.Event] = {}  # contexts of streams, by which any number of messages may come
        self._peers: dict[Any, str] = {}
        """Of these and of those that are silent."""
        self._measuring: asyncio.TimerHandle | None = None
        self._quiet = 0
        self._patience = patience
        self._stopping = False
        self._silent: dict[Any, float] = {}  # contexts, and when their calls came; the oldest first
        self._looking: asyncio.TimerHandle | None = None
        self._endings: set[asyncio.Task[None]] = set()

    async def message(self, context: Any, peer: str) -> bytes:
        """The message of a call that came just now. What is raised ends the call, and is to be let through.

        `peer` is what gRPC calls its connection, see `Dispatch`.
        """
        loop = asyncio.get_running_loop()
        if len(self._silent) >= self._most:
            text = f"{self._most} calls are open whose messages did not come yet; try again in a moment"
            self._end(next(iter(self._silent)), grpc.StatusCode.RESOURCE_EXHAUSTED, text)
        self._silent[context] = loop.time()
        self._peers[context] = peer
        if self._looking is None:
            self._looking = loop.call_later(self._patience / _LOOKS, self._look)
        self._began(loop, peer)
        try:
            content = await context.read()
            if isinstance(content, bytes):
                self.came(context, len(content))
        finally:
            self._silent.pop(context, None)
            del self._peers[context]
        if content is grpc.aio.EOF:  # type: ignore[attr-defined]  # its stubs lack it
            await _abort(context, grpc.StatusCode.INVALID_ARGUMENT, "request: expected one message, found none")
            raise asyncio.CancelledError  # the caller left
        return content  # type: ignore[no-any-return]

    @contextlib.contextmanager
    def open(self, context: Any, peer: str) -> Iterator[asyncio.Event]:
        """For as long as messages may come by a stream, which has to end once the event is set."""
        self._open[context] = ended = asyncio.Event()
        self._peers[context] = peer
        self._began(asyncio.get_running_loop(), peer)
        try:
            yield ended
        finally:
            del self._open[context], self._peers[context]

    def awaited(self) -> int:
        """How many calls may bring a message at any moment."""
        return len(self._peers)

    def busy(self) -> BusyError:
        """What callers are told whose messages find no room."""
        return BusyError(
            f"messages that come and requests take {self._budget.most} bytes already; try again in a moment"
        )

    def came(self, context: Any, size: int) -> None:
        """A message of so many bytes was handed over."""
        self.coming.came(self._peers[context], size)
        if size >= LARGE:
            self._budget.left(size)  # by gRPC, which had it in small parts

    def drain(self) -> None:
        """From now on messages are waited for, but not for long."""
        self._stopping = True
        self._patience = min(self._patience, _PATIENCE_AT_THE_END)
        if self._looking is not None:
            self._looking.cancel()
            self._look()

    def close(self) -> None:
        """End the thread that counts. The port is closed by now."""
        for timer in (self._looking, self._measuring):
            if timer is not None:
                timer.cancel()
        self.coming.rest()

    def _look(self) -> None:
        loop = asyncio.get_running_loop()
        late = loop.time() - self._patience
        for context, came in [*self._silent.items()]:
            if came > late:
                break
            if self._stopping:
                self._end(context, grpc.StatusCode.UNAVAILABLE, "the server is stopping; call another one")
            else:
                text = f"request: expected its message within {self._patience:g} s, found that it did not come"
                self._end(context, grpc.StatusCode.DEADLINE_EXCEEDED, text)
        self._looking = loop.call_later(self._patience / _LOOKS, self._look) if self._silent else None

    def _began(self, loop: asyncio.AbstractEventLoop, peer: str) -> None:
        self.coming.know(peer)
        self._quiet = 0
        if self._measuring is None:
            self.coming.wake()
            self._measuring = loop.call_later(_OFTEN, self._measure)

    def _measure(self) -> None:
        """Where there is not enough room, end what takes most of it. Most messages have come before the first look."""
        peers: dict[str, list[Any]] = {}
        for context in (*self._silent, *self._open):
            peers.setdefault(self._peers[context], []).append(context)
        self.coming.waited(peers.keys())
        while self._budget.over and (peer := self.coming.most(peers)) is not None:
            self.coming.dropped(peer)
            for context in peers[peer]:
                if context in self._open:
                    self._open[context].set()
                else:
                    self._end(context, grpc.StatusCode.RESOURCE_EXHAUSTED, str(self.busy()))
        self._quiet += 1
        if peers or self._quiet < _QUIET:
            self._measuring = asyncio.get_running_loop().call_later(_OFTEN, self._measure)
        else:
            self._measuring = None
            self.coming.rest()

    def _end(self, context: Any, code: grpc.StatusCode, text: str) -> None:
        """What waits for the message is told by gRPC."""
        del self._silent[context]
        ending = asyncio.ensure_future(_abort_apart(context, code, text))
        self._endings.add(ending)  # the event loop would forget it
        ending.add_done_callback(self._endings.discard)


async def _abort(context: Any, code: grpc.StatusCode, text: str) -> None:
    """Raises AbortError. Returns where the caller has left."""
    with contextlib.suppress(grpc.aio.InternalError):
        await context.abort(code, text)


async def _abort_apart(context: Any, code: grpc.StatusCode, text: str) -> None:
    """From another task than the call's, which is over by now or will be."""
    with contextlib.suppress(grpc.aio.AbortError, grpc.aio.UsageError):
        await _abort(context, code, text)
