"""Admissions: whether a call of the control port may be made, and a line in the log for each that changes something."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import grpc

from paramsync.errors import NotAllowedError
from paramsync.rpc.access import Access, Caller, Effect, effect_of
from paramsync.rpc.server import code_of, one_line, told

_MADE = {
    (False, False): grpc.unary_unary_rpc_method_handler,
    (False, True): grpc.unary_stream_rpc_method_handler,
    (True, True): grpc.stream_stream_rpc_method_handler,
}


class Admissions(grpc.ServerInterceptor):  # type: ignore[type-arg]  # it takes none when it runs
    """Any thread."""

    def __init__(self, access: Access) -> None:
        self._access = access

    def intercept_service(self, continuation: Callable[[Any], Any], handler_call_details: Any) -> Any:
        handler = continuation(handler_call_details)
        method = handler_call_details.method.lstrip("/")
        effect = effect_of(method)
        if handler is None or not self._access.looks_at(effect):
            return handler
        answer = handler.unary_unary or handler.unary_stream or handler.stream_stream
        check = self._access.check if effect is Effect.CHANGES else self._access.check_read

        def call(request: Any, context: Any) -> Any:
            caller = Caller.of_grpc(context, context.peer())
            try:
                check(method, caller)
            except NotAllowedError as error:
                code = code_of(error)
                assert code is not None
                context.abort(code, one_line(str(error)))
            if effect is not Effect.CHANGES:
                return answer(request, context)
            with self._access.audited(method, caller, told(request)) as change:
                try:
                    return answer(request, context)
                except Exception:
                    change.why = str(context.details() or "")  # abort raises without a word
                    raise

        made = _MADE[handler.request_streaming, handler.response_streaming]
        return made(call, handler.request_deserializer, handler.response_serializer)
