"""One call by gRPC: its messages as they come, and what it is answered. What servicers get as their context."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import grpc

from paramsync.errors import NotAllowedError, RequestError
from paramsync.rpc.access import Caller

from .errors import logged_status
from .grpc_wire import BEGINNING, PREFIX, Asked, Message, Messages, Metadata, ending

if TYPE_CHECKING:
    from .admission import Admission
    from .grpc_connection import GrpcConnection
    from .memory_budget import MemoryShare
    from .trailers import Trailers

_SMALL = 1 << 16  # bytes of an answer that is copied to go in one piece
_OF_MESSAGE = 128  # bytes that one takes beside its content while it waits
_NO_MESSAGE = "request: expected one message, found none"


@dataclass(frozen=True, slots=True)
class Method:
    """What answers the calls of one path."""

    run: Callable[[Call], Awaitable[None]]
    admission: Admission
    is_stream: bool = False
    """Whether it runs from the call's beginning and reads messages itself; others run once they have theirs."""


class Call:
    """Lives on one event loop. It is over once it was answered to its end, or given up by either side."""

    __slots__ = (
        "_began", "_connection", "_counted", "_credit", "_deadline", "_expiry", "_has_message", "_messages",
        "_packed", "_queue", "_runs", "_sent", "_task", "_waiter", "asked", "caller", "content", "has_ended",
        "is_over", "method", "share", "stream",
    )  # fmt: skip

    def __init__(self, connection: GrpcConnection, stream: int, asked: Asked, method: Method) -> None:
        self._connection = connection
        self.stream = stream
        self._messages = Messages(connection.port.message_bytes)
        self._queue: deque[Message] = deque()
        self._waiter: asyncio.Future[None] | None = None
        self._credit = 0  # bytes that came and were not made up for yet
        self._counted = 0  # bytes of messages that the port knows to be here
        self._task: asyncio.Task[None] | None = None
        self._sent: asyncio.Future[None] | None = None
        self._began = False  # to be answered
        self._runs = False
        self._has_message = False  # a call that has one needs no more
        self._packed: Message | None = None
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
        message = self._queue.popleft()
        content = message.content if not message.compressed else await self._unpacked(message)
        self._count(self._counted - _OF_MESSAGE - len(message.content))
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
        if self._connection.send(self.stream, PREFIX.pack(False, len(content)), content):
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
            self._connection.send(self.stream, PREFIX.pack(False, len(content)), content)
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
        """Whether its message is awaited."""
        return not (self.method.is_stream or self._has_message or self.is_over)

    @property
    def is_coming(self) -> bool:
        """Whether something of a message is here that was not taken up."""
        return self._counted > 0

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
        if self._packed is None and self._has_message and self._counted:
            self._count(0)
        self._task = self._connection.loop.create_task(self._run())

    def came(self, content: bytes, *, ended: bool) -> None:
        """More of its messages."""
        self.has_ended = ended
        if self.method.is_stream:
            self._credit += len(content)
            self._queue_messages(content, ended=ended)
            return
        self._connection.consumed(self.stream, len(content))
        if self._has_message:
            return
        try:
            messages = self._messages.came(content, ended=ended)
        except RequestError as error:
            self.refuse(*logged_status(error))
            return
        if messages:
            self._messages = Messages(0)
        if self._messages.held != self._counted:
            self._count(self._messages.held)
        if messages:
            self._take_up(messages[0])
        elif ended:
            self.refuse(grpc.StatusCode.INVALID_ARGUMENT, _NO_MESSAGE)

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
        self._messages = Messages(0)
        if self._task is None:
            self.content, self._packed = b"", None
        self._count(0)
        self._make_up()

    # Within -----------------------------------------------------------------------------------------------------------

    def _queue_messages(self, content: bytes, *, ended: bool) -> None:
        before = self._messages.held
        try:
            messages = self._messages.came(content, ended=ended)
        except RequestError as error:
            self.refuse(*logged_status(error))
            return
        self._queue.extend(messages)
        arrived = sum([_OF_MESSAGE + len(message.content) for message in messages])
        self._count(self._counted + self._messages.held - before + arrived)
        if not self._queue:
            self._make_up()
        self._wake()

    def _count(self, size: int) -> None:
        """So many bytes of messages are here now that were not taken up."""
        more, self._counted = size - self._counted, size
        if more:
            self._connection.port.held(self._connection, more)

    def _begin(self) -> None:
        if not self._began and not self.is_over:
            self._began = True
            self._connection.begin(self.stream, BEGINNING)

    def _take_up(self, message: Message) -> None:
        self.content = message.content
        self._packed = message if message.compressed else None
        self._has_message = True
        self._connection.port.begins(self, self._connection)
        if (self._task is None or message.compressed) and not self.is_over:
            self._count(len(message.content))

    async def _run(self) -> None:
        self._connection.port.begun(self)
        self._runs = True
        try:
            if self.is_over:
                return
            if self._packed is not None:
                packed, self._packed, self.content = self._packed, None, b""
                self.content = await self._unpacked(packed)
                del packed
                self._count(0)
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

    async def _unpacked(self, message: Message) -> bytes:
        if not self.asked.window:
            raise RequestError("message: expected none that is compressed without grpc-encoding, found one")
        port = self._connection.port
        async with port.unpacking:
            return await asyncio.to_thread(message.unpacked, self.asked.window, most=port.message_bytes)

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
