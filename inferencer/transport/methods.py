"""A method of a gRPC port: its access check, its handler, and the interface of a call for handlers."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

from google.protobuf.message import Message

from paramsync.rpc.access import Access, Caller, Effect, effect_of
from paramsync.rpc.server import request_text

from .grpc_wire import Metadata, Trailers
from .memory_budget import MemoryShare

Answering: TypeAlias = Callable[[bytes, MemoryShare, Any], Awaitable[tuple[bytes, Trailers]]]
"""A function that turns a prediction request, its share and its call into the response and the trailing metadata.

It raises the error with which the request is refused."""


class Call(Protocol):
    """A call as its handler sees it, whichever gRPC server carries it. Servicers get it as their context."""

    caller: Caller | None
    share: MemoryShare | None
    """Memory of the request and its answer; given back once the kernel has taken the answer."""
    is_of_newcomer: bool
    """Whether the connection is new, or has cost more time than its answers made up for."""

    @property
    def peer(self) -> str:
        """The caller's address in gRPC's form, such as ipv4:127.0.0.1:1234."""

    @property
    def certificate(self) -> str | None:
        """The name in the caller's certificate."""

    def time_remaining(self) -> float | None:
        """Return the seconds until the deadline, if the call has one."""

    def invocation_metadata(self) -> Metadata: ...

    def take(self) -> bytes:
        """Take the message out of a call with a single message, so that the call does not keep the message alive."""

    async def read(self) -> bytes | None:
        """Wait for the next message of a stream. Returns None after the last message. Raises RequestError."""

    async def send_initial_metadata(self, metadata: Trailers = ()) -> None:
        """Send the headers of the answer."""

    async def write(self, content: bytes) -> None:
        """Send one of several answers. Waits while the caller's windows are full."""

    def answer(self, content: bytes, trailers: Trailers) -> None:
        """End the call with its only answer."""

    def finish(self) -> None:
        """End the call after several answers."""


class Admission:
    """Checks callers of one method before their messages are awaited, and logs what they change."""

    def __init__(self, access: Access, method: str) -> None:
        """`method` is package.Service/Method."""
        self._access = access
        self._method = method
        effect = effect_of(method)
        self.looks = access.looks_at(effect)
        """Whether `admit` must be called."""
        self._changes = effect is Effect.CHANGES
        self._check = access.check if self._changes else access.check_read

    def admit(self, call: Call) -> Caller:
        """Return who calls. Raises NotAllowedError."""
        caller = Caller.of(call.peer, call.invocation_metadata(), call.certificate)
        self._check(self._method, caller)
        return caller

    def audit(self, caller: Caller | None, request: Message) -> AbstractContextManager[object]:
        """Log a change that is made within this context."""
        if caller is None or not self._changes:
            return nullcontext()
        return self._access.audited(self._method, caller, request_text(request))


@dataclass(frozen=True, slots=True)
class Method:
    """Answers calls to one path."""

    run: Callable[[Call], Awaitable[None]]
    admission: Admission
    is_stream: bool = False
    """If True, the handler starts with the call and reads messages itself. Otherwise the handler starts once the call's
    only message has come."""
    predicts: bool = False
