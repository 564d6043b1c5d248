"""Admission: whether a gRPC call may be made, before its message is awaited, and the log of what it changes."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING

from google.protobuf.message import Message

from paramsync.rpc.access import Access, Caller, Effect, effect_of
from paramsync.rpc.server import told

if TYPE_CHECKING:
    from .grpc_call import Call


class Admission:
    """Of the calls of one method. Lives on one event loop."""

    def __init__(self, access: Access, method: str) -> None:
        """`method` is package.Service/Method."""
        self._access = access
        self._method = method
        effect = effect_of(method)
        self.looks = access.looks_at(effect)
        self._changes = effect is Effect.CHANGES
        self._check = access.check if self._changes else access.check_read

    def admitted(self, call: Call) -> Caller:
        """To be asked when the call begins, where it `looks`. Raises NotAllowedError."""
        caller = Caller.of(call.peer, call.invocation_metadata(), call.certificate)
        self._check(self._method, caller)
        return caller

    def audited(self, caller: Caller | None, request: Message) -> AbstractContextManager[object]:
        """Answer a call. What it changes is logged."""
        if caller is None or not self._changes:
            return nullcontext()
        return self._access.audited(self._method, caller, told(request))
