"""One gRPC call on our own server: receives messages, runs the handler, sends answers, ends the call."""

from __future__ import annotations

import asyncio
from collections import deque
from functools import partial
from typing import Protocol

import grpc

from paramsync.errors import NotAllowedError, RequestError
from paramsync.http2.connection import ServerConnection
from paramsync.rpc.access import Caller

from .calls import OVER, RUNNING, SILENT, Calls, State
from .connections import Connection
from .errors import logged_status
from .grpc_wire import BEGINNING, PREFIX, Asked, Message, Messages, Metadata, Trailers, ending
from .memory_budget import MemoryShare
from .methods import Method
from .turns import NEWCOMER_SECONDS

_SMALL = 1 << 16  # bytes: a shorter answer is copied, so that it goes out in one piece
_OF_MESSAGE = 128  # bytes that a waiting message takes in addition to its content
_TOO_MANY = 2  # a call with a single message is refused after so many messages
_NO_MESSAGE = "request: expected one message, found none"
_MORE_MESSAGES = "request: expected one message, found more"


class Answering(Connection, Protocol):
    """What a call needs of its connection."""

    calls: dict[int, GrpcCall]
    http2: ServerConnection
    peer: str
    certificate: str | None
    cost: float

    def respond(self, stream: int, block: bytes, content: bytes, end: bytes) -> None: ...
    def send(self, stream: int, *parts: bytes) -> bool: ...
    def end(self, stream: int, block: bytes) -> None: ...
    def earn(self, unanswered: int) -> None: ...
    def leave_once_written(self, stream: int, share: MemoryShare) -> None: ...
    def flush(self) -> None: ...
    def flush_soon(self) -> None: ...


class GrpcCall:
    """A call on our own server. Lives on one event loop. See the module `calls` for its states. Only `_end` ends it."""

    __slots__ = (
        "_began", "_calls", "_connection", "_credit", "_deadline", "_expiry", "_messages", "_queue", "_queued",
        "_sent", "_task", "_unread", "_waiter", "asked", "caller", "content", "has_ended", "is_of_newcomer", "method",
        "share", "state", "stream", "unanswered",
    )  # fmt: skip

    def __init__(self, calls: Calls, connection: Answering, stream: int, asked: Asked, method: Method) -> None:
        self._calls = calls
        self._connection = connection
        self.stream = stream
        self.asked = asked
        self.method = method
        self.state: State = SILENT
        self._messages = Messages(calls.message_bytes)
        self._queue: deque[Message] = deque()  # whole messages that the handler has not taken
        self._queued = 0  # bytes that the queue takes
        self._unread: MemoryShare | None = None  # the share of the queue and of the message that is being received
        self._waiter: asyncio.Future[None] | None = None  # a handler that reads awaits this
        self._credit = 0  # bytes received for which the client's window has not been reopened
        self._task: asyncio.Task[None] | None = None
        self._sent: asyncio.Future[None] | None = None  # a handler that writes awaits this
        self._began = False  # whether the headers of the answer are sent
        self._deadline: float | None = None
        self._expiry: asyncio.TimerHandle | None = None
        self.caller: Caller | None = None
        self.content = b""
        """The message of a call with a single message, until `take` is called."""
        self.has_ended = False
        """Whether the caller sends no more messages."""
        self.is_of_newcomer = connection.cost >= NEWCOMER_SECONDS
        self.unanswered = 0
        """Bytes received since the last answer."""
        self.share: MemoryShare | None = None

    # For handlers -----------------------------------------------------------------------------------------------------

    @property
    def peer(self) -> str:
        return self._connection.peer

    @property
    def certificate(self) -> str | None:
        return self._connection.certificate

    def time_remaining(self) -> float | None:
        return None if self._deadline is None else max(0.0, self._deadline - self._calls.loop.time())

    def invocation_metadata(self) -> Metadata:
        return self.asked.metadata

    def take(self) -> bytes:
        content, self.content = self.content, b""
        return content

    async def read(self) -> bytes | None:
        while not self._queue:
            if self.has_ended:
                return None
            self._waiter = self._calls.loop.create_future()
            await self._waiter
        content = await self._unpack() if self._queue[0].compressed else self._pop().content
        if not self._queue:
            self._consume()
        return content

    async def send_initial_metadata(self, metadata: Trailers = ()) -> None:
        self._begin()
        self._connection.flush()

    async def write(self, content: bytes) -> None:
        if not self.is_over and not self._send(content):
            self._sent = self._calls.loop.create_future()
            await self._sent

    def answer(self, content: bytes, trailers: Trailers) -> None:
        if self.is_over:
            return
        end = ending(grpc.StatusCode.OK, "", trailers)
        if len(content) <= _SMALL:
            self._earn()
            self._connection.respond(self.stream, BEGINNING, PREFIX.pack(False, len(content)) + content, end)
            self._end()
        else:
            self._send(content)
            self._end(end)

    def finish(self) -> None:
        if not self.is_over:
            self._begin()
            self._end(ending(grpc.StatusCode.OK))

    # Events -----------------------------------------------------------------------------------------------------------

    @property
    def is_over(self) -> bool:
        """Whether the caller gets nothing more."""
        return self.state is OVER

    @property
    def is_coming(self) -> bool:
        return self._unread is not None and self._unread.size > 0

    def begin(self) -> None:
        """Check the caller, start the clock of the deadline, and admit a stream."""
        admission = self.method.admission
        if admission.looks:
            try:
                self.caller = admission.admit(self)
            except NotAllowedError as error:
                self.refuse(*logged_status(error))
                return
        if (seconds := self.asked.timeout) is not None:
            self._deadline = self._calls.loop.time() + seconds
            self._expiry = self._calls.loop.call_at(self._deadline, self._expire)
        if self.method.is_stream:
            self._calls.admit(self, self._connection)

    def start(self) -> None:
        """Run the handler in the next turn of the event loop."""
        if not self.method.is_stream and self._queue and not self._queue[0].compressed:
            self.content = self._pop().content
        self._task = self._calls.loop.create_task(self._run())

    def receive(self, content: bytes, *, ended: bool) -> None:
        """Take a part of the call's messages. `ended` says that it is the last part."""
        is_stream = self.method.is_stream
        self.has_ended = ended
        self.unanswered += len(content)
        if is_stream:
            self._credit += len(content)
        else:
            self._connection.http2.consumed(self.stream, len(content))
        try:
            messages = self._messages.came(content, ended=ended, most=None if is_stream else _TOO_MANY)
        except RequestError as error:
            self.refuse(*logged_status(error))
            return
        self._queue.extend(messages)
        self._queued += sum([_OF_MESSAGE + len(message.content) for message in messages])
        if not is_stream:
            self._admit_with_one()
        self._count()
        if is_stream:
            if not self._queue:
                self._consume()
            self._wake()

    def on_sent(self) -> None:
        """Wake a handler that waited until the client's windows let all written bytes pass."""
        if self._sent is not None and not self._sent.done():
            self._sent.set_result(None)

    def refuse(self, code: grpc.StatusCode, text: str) -> None:
        """End the call with an error, even after answers, and stop its handler."""
        self._end(ending(code, text), stop=True)

    def lose(self) -> None:
        """End a call that its caller cancelled, or whose caller is gone."""
        self._end(stop=True)

    def _end(self, last: bytes | None = None, *, stop: bool = False) -> None:
        """End the call: send the `last` headers, if any, and give back all that the call holds.

        With `stop`, also cancel the handler. `stop` is False if the handler itself ends the call.
        """
        if self.is_over:
            return
        if last is not None:
            self._connection.end(self.stream, last if self._began else BEGINNING + last)
        stop = stop and self.state is RUNNING
        self._calls.end(self, self._connection)
        del self._connection.calls[self.stream]
        if self._expiry is not None:
            self._expiry.cancel()
        self._queue.clear()
        self._queued = 0
        if self._messages.is_within:
            self._messages = Messages(0)
        self._count()
        self._consume()
        self._connection.flush_soon()
        if stop and self._task is not None:
            self._task.cancel()

    def _expire(self) -> None:
        self.refuse(grpc.StatusCode.DEADLINE_EXCEEDED, "the deadline of the call has passed")

    # Answers ----------------------------------------------------------------------------------------------------------

    async def _run(self) -> None:
        """Run the handler, unless the call is already over. End the call if the handler fails."""
        self._calls.start(self)
        try:
            if self.is_over:
                return
            if not self.method.is_stream and self._queue:
                self.content = await self._unpack()
            await self.method.run(self)
            assert self.is_over, "the handler returned without an answer"
        except asyncio.CancelledError:
            self._end(ending(grpc.StatusCode.CANCELLED, "the call was ended"))
        except Exception as error:  # noqa: BLE001, every error becomes a status here
            self._end(ending(*logged_status(error)))
        finally:
            self._calls.leave(self)
            if self.share is not None and self.share.size:
                self._connection.leave_once_written(self.stream, self.share)

    def _begin(self) -> None:
        if not self._began and not self.is_over:
            self._began = True
            self._connection.http2.headers(self.stream, BEGINNING)

    def _send(self, content: bytes) -> bool:
        self._begin()
        self._earn()
        return self._connection.send(self.stream, PREFIX.pack(False, len(content)), content)

    def _earn(self) -> None:
        self._connection.earn(self.unanswered)
        self.unanswered = 0

    # Messages ---------------------------------------------------------------------------------------------------------

    def _admit_with_one(self) -> None:
        """Admit a call with a single message once its caller sends no more."""
        if len(self._queue) > 1 or (self._queue and self._messages.is_within):
            self.refuse(grpc.StatusCode.INVALID_ARGUMENT, _MORE_MESSAGES)
        elif self.has_ended and self._queue:
            self._calls.admit(self, self._connection)
        elif self.has_ended:
            self.refuse(grpc.StatusCode.INVALID_ARGUMENT, _NO_MESSAGE)

    def _count(self) -> None:
        """Count the memory of the messages that the call holds. A call that is over holds none."""
        size = self._messages.held + self._queued
        if self._unread is None and size:
            self._unread = self._calls.share()
        if self._unread is not None and size != self._unread.size:
            self._calls.hold(self._connection, self._unread, size)

    def _pop(self) -> Message:
        """Take a message out of the queue."""
        message = self._queue.popleft()
        self._queued -= _OF_MESSAGE + len(message.content)
        self._count()
        return message

    async def _unpack(self) -> bytes:
        """Take the next message out of the queue and decompress it on a thread. The message has its own share of memory
        until the thread is done, even if the call is over earlier."""
        if not self.asked.window:
            raise RequestError("message: expected none that is compressed without grpc-encoding, found one")
        calls = self._calls
        await calls.unpacking.acquire()
        if self.is_over:
            calls.unpacking.release()
            raise asyncio.CancelledError
        message, share = self._pop(), calls.share()
        share.keep(len(message.content))

        def give_back(_: object) -> None:
            share.leave()
            calls.unpacking.release()

        unpack = partial(message.unpacked, self.asked.window, most=calls.message_bytes)
        try:
            unpacking = calls.loop.run_in_executor(None, unpack)
        except BaseException:  # no thread can be started
            give_back(None)
            raise
        unpacking.add_done_callback(give_back)
        return await asyncio.shield(unpacking)

    def _consume(self) -> None:
        """Let the client send as many more bytes as have been taken."""
        if self._credit:
            self._connection.http2.consumed(self.stream, self._credit)
            self._credit = 0

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done() and (self._queue or self.has_ended):
            self._waiter.set_result(None)
