"""One call by gRPC: its messages as they come, and what it is answered. What servicers get as their context."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import grpc

from paramsync.errors import NotAllowedError, RequestError
from paramsync.rpc.access import Caller

from .errors import logged_status
from .grpc_wire import BEGINNING, PREFIX, Asked, Message, Messages, Metadata, ending
from .turns import NEWCOMER_SECONDS

if TYPE_CHECKING:
    from .admission import Admission
    from .grpc_connection import GrpcConnection
    from .memory_budget import MemoryShare
    from .trailers import Trailers

_SMALL = 1 << 16  # bytes of an answer that is copied to go in one piece
_OF_MESSAGE = 128  # bytes that one takes beside its content while it waits
_TOO_MANY = 2  # messages of a call that takes one
_NO_MESSAGE = "request: expected one message, found none"
_MORE_MESSAGES = "request: expected one message, found more"


@dataclass(frozen=True, slots=True)
class Method:
    """What answers the calls of one path."""

    run: Callable[[Call], Awaitable[None]]
    admission: Admission
    is_stream: bool = False
    """Whether it runs from the call's beginning and reads messages itself; others run once they have theirs."""
    predicts: bool = False


class Call:
    """Lives on one event loop. It is over once it was answered to its end, or given up by either side."""

    __slots__ = (
        "_began", "_connection", "_credit", "_deadline", "_expiry", "_here", "_messages", "_queue", "_queued", "_runs",
        "_sent", "_task", "_waiter", "asked", "caller", "content", "has_ended", "is_of_newcomer", "is_over", "method",
        "share", "stream", "unanswered",
    )  # fmt: skip

    def __init__(self, connection: GrpcConnection, stream: int, asked: Asked, method: Method) -> None:
        self._connection = connection
        self.stream = stream
        self._messages = Messages(connection.port.message_bytes)
        self._queue: deque[Message] = deque()  # messages that are whole
        self._queued = 0  # bytes that they take
        self._here: MemoryShare | None = None  # of messages that were not taken up: these, and the one that is coming
        self._waiter: asyncio.Future[None] | None = None
        self._credit = 0  # bytes that came and were not made up for yet
        self._task: asyncio.Task[None] | None = None
        self._sent: asyncio.Future[None] | None = None
        self._began = False  # to be answered
        self._runs = False
        self._deadline: float | None = None
        self._expiry: asyncio.TimerHandle | None = None
        self.asked = asked
        self.method = method
        self.caller: Caller | None = None
        self.content = b""
        """The message of a call with one, until `take`."""
        self.has_ended = False
        """Whether its caller sends no more messages."""
        self.is_over = False
        self.is_of_newcomer = connection.cost >= NEWCOMER_SECONDS
        """Whether its connection is new, or cost more than its answers made up for."""
        self.unanswered = 0
        """Bytes of messages that came since it was answered something."""
        self.share: MemoryShare | None = None
        """Left once its answer was handed to the kernel."""

    # What servicers ask -----------------------------------------------------------------------------------------------

    @property
    def peer(self) -> str:
        return self._connection.peer

    @property
    def certificate(self) -> str | None:
        """The name in the one that its caller showed."""
        return self._connection.certificate

    def time_remaining(self) -> float | None:
        """Seconds until its deadline, if it has one."""
        return None if self._deadline is None else max(0.0, self._deadline - self._connection.loop.time())

    def invocation_metadata(self) -> Metadata:
        return self.asked.metadata

    def take(self) -> bytes:
        """Its message, which is not kept."""
        content, self.content = self.content, b""
        return content

    async def read(self) -> bytes | None:
        """The next message of a stream; None after the last. Raises RequestError."""
        while not self._queue:
            if self.has_ended:
                return None
            self._waiter = self._connection.loop.create_future()
            await self._waiter
        content = await self._unpacked() if self._queue[0].compressed else self._pop().content
        if not self._queue:
            self._make_up()
        return content

    async def send_initial_metadata(self, metadata: Trailers = ()) -> None:
        """Tell the caller that it is being answered."""
        self._begin()
        self._connection.flush()

    async def write(self, content: bytes) -> None:
        """One of several answers. Returns once it was handed over to be sent."""
        if self.is_over:
            return
        self._begin()
        if self._connection.send(self, PREFIX.pack(False, len(content)), content):
            return
        self._sent = self._connection.loop.create_future()
        await self._sent

    def answer(self, content: bytes, trailers: Trailers) -> None:
        """The answer of a call with one, which ends it."""
        if self.is_over:
            return
        end = ending(grpc.StatusCode.OK, "", trailers)
        if len(content) <= _SMALL:
            self._connection.respond(self, BEGINNING, PREFIX.pack(False, len(content)) + content, end)
        else:
            self._begin()
            self._connection.send(self, PREFIX.pack(False, len(content)), content)
            self._connection.end(self, end)

    def finish(self) -> None:
        """After the last of several answers."""
        if not self.is_over:
            self._begin()
            self._connection.end(self, ending(grpc.StatusCode.OK))

    def refuse(self, code: grpc.StatusCode, text: str) -> None:
        """End it with an error, whatever was answered before, and what answers it."""
        self._fail(code, text)
        self._stop()

    # What its connection tells ----------------------------------------------------------------------------------------

    @property
    def is_silent(self) -> bool:
        """Whether its message is awaited, when it has begun."""
        return not (self.method.is_stream or self.is_over)

    @property
    def is_coming(self) -> bool:
        """Whether something of a message is here that was not taken up."""
        return self._here is not None and self._here.size > 0

    def begin(self) -> None:
        """Its headers came."""
        admission = self.method.admission
        if admission.looks:
            try:
                self.caller = admission.admitted(self)
            except NotAllowedError as error:
                self.refuse(*logged_status(error))
                return
        loop = self._connection.loop
        if (seconds := self.asked.timeout) is not None:
            self._deadline = loop.time() + seconds
            self._expiry = loop.call_at(self._deadline, self._expire)
        if self.method.is_stream:
            self._connection.port.begins(self, self._connection)

    def start(self) -> None:
        """Answer it."""
        if not self.method.is_stream and self._queue and not self._queue[0].compressed:
            self.content = self._pop().content
        self._task = self._connection.loop.create_task(self._run())

    def came(self, content: bytes, *, ended: bool) -> None:
        """More of its messages."""
        self.has_ended = ended
        self.unanswered += len(content)
        if self.method.is_stream:
            self._credit += len(content)
        else:
            self._connection.consumed(self.stream, len(content))
        try:
            most = None if self.method.is_stream else _TOO_MANY
            messages = self._messages.came(content, ended=ended, most=most)
        except RequestError as error:
            self.refuse(*logged_status(error))
            return
        self._queue.extend(messages)
        self._queued += sum([_OF_MESSAGE + len(message.content) for message in messages])
        if not self.method.is_stream:
            self._begin_with_one()
        self._recount()
        if self.method.is_stream:
            if not self._queue:
                self._make_up()
            self._wake()

    def sent(self) -> None:
        """What was written has been handed over to be sent."""
        if self._sent is not None and not self._sent.done():
            self._sent.set_result(None)

    def lost(self) -> None:
        """Its caller has given it up, or is gone."""
        self._connection.forget(self)
        self._stop()

    def over(self) -> None:
        """The connection knows it no more."""
        self.is_over = True
        if self._expiry is not None:
            self._expiry.cancel()
        self._queue.clear()
        self._queued = 0
        if self._messages.is_within:
            self._messages = Messages(0)
        self._recount()
        self._make_up()

    # Within -----------------------------------------------------------------------------------------------------------

    def _begin_with_one(self) -> None:
        """Begin to answer a call with one message, once its caller sends no more."""
        if len(self._queue) > 1 or (self._queue and self._messages.is_within):
            self.refuse(grpc.StatusCode.INVALID_ARGUMENT, _MORE_MESSAGES)
        elif self.has_ended and self._queue:
            self._connection.port.begins(self, self._connection)
        elif self.has_ended:
            self.refuse(grpc.StatusCode.INVALID_ARGUMENT, _NO_MESSAGE)

    def _recount(self) -> None:
        """Have as much of the memory as messages take that are here: nothing, once the call is over."""
        size = self._messages.held + self._queued
        if self._here is None and size:
            self._here = self._connection.port.share()
        if self._here is not None and size != self._here.size:
            self._connection.port.held(self._connection, self._here, size)

    def _pop(self) -> Message:
        """Take a message up."""
        message = self._queue.popleft()
        self._queued -= _OF_MESSAGE + len(message.content)
        self._recount()
        return message

    def _begin(self) -> None:
        if not self._began and not self.is_over:
            self._began = True
            self._connection.begin(self.stream, BEGINNING)

    async def _run(self) -> None:
        self._connection.port.begun(self)
        self._runs = True
        try:
            if self.is_over:
                return
            if not self.method.is_stream and self._queue:
                self.content = await self._unpacked()
            await self.method.run(self)
        except asyncio.CancelledError:
            self._fail(grpc.StatusCode.CANCELLED, "the call was ended")
        except Exception as error:  # noqa: BLE001, the edge
            self._fail(*logged_status(error))
        finally:
            self._runs = False
            self._connection.port.ran(self)
            if self.share is not None and self.share.size:
                self._connection.leave_once_written(self.stream, self.share)

    async def _unpacked(self) -> bytes:
        """Take up the next message, which is compressed. It has memory of its own until its thread is done with it,
        which may be after the call is over."""
        if not self.asked.window:
            raise RequestError("message: expected none that is compressed without grpc-encoding, found one")
        port = self._connection.port
        await port.unpacking.acquire()
        if self.is_over:
            port.unpacking.release()
            raise asyncio.CancelledError
        message, share = self._pop(), port.share()
        share.keep(len(message.content))

        def unpacked(_: object) -> None:
            share.leave()
            port.unpacking.release()

        unpack = partial(message.unpacked, self.asked.window, most=port.message_bytes)
        try:
            unpacking = self._connection.loop.run_in_executor(None, unpack)
        except BaseException:  # there is no thread
            unpacked(None)
            raise
        unpacking.add_done_callback(unpacked)
        return await asyncio.shield(unpacking)

    def _make_up(self) -> None:
        if self._credit:
            self._connection.consumed(self.stream, self._credit)
            self._credit = 0

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done() and (self._queue or self.has_ended):
            self._waiter.set_result(None)

    def _fail(self, code: grpc.StatusCode, text: str) -> None:
        if not self.is_over:
            block = ending(code, text)
            self._connection.end(self, block if self._began else BEGINNING + block)

    def _expire(self) -> None:
        self.refuse(grpc.StatusCode.DEADLINE_EXCEEDED, "the deadline of the call has passed")

    def _stop(self) -> None:
        """End what answers it."""
        if self._task is not None and self._runs:  # one that is cancelled before it runs never does
            self._task.cancel()
