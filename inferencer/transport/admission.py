"""Admission: whether a gRPC call may be made, before its message is waited for, and the log of what it changes."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

from google.protobuf.message import Message

from paramsync.errors import NotAllowedError
from paramsync.rpc.access import Access, Caller, Effect, effect_of
from paramsync.rpc.server import told

from .errors import abort


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

    async def admit(self, context: Any, peer: str) -> Caller:
        """To be asked when the call begins, where it `looks`; ends a call that may not be made."""
        caller = Caller.of_grpc(context, peer)
        try:
            self._check(self._method, caller)
        except NotAllowedError as error:
            await abort(error, context)
        return caller

    def audited(self, caller: Caller | None, request: Message) -> AbstractContextManager[object]:
        """Answer a call. What it changes is logged."""
        if caller is None or not self._changes:
            return nullcontext()
        return self._access.audited(self._method, caller, told(request))
