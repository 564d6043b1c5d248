"""ReadTimeouts: calls of the control port whose message does not come are given up."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import grpc

MOST = 32  # each holds a thread of the server
PATIENCE = 10.0


class ReadTimeouts(grpc.ServerInterceptor):  # type: ignore[type-arg]  # it takes none when it runs
    """Waits for messages in place of gRPC, which would wait for ever and hold a thread meanwhile. Any thread.

    Where too many calls are silent, the one that has been silent longest is given up.
    """

    def __init__(self, most: int = MOST, *, patience: float = PATIENCE) -> None:
        """`patience` is how many seconds a message may take to come."""
        self._most = most
        self._patience = patience
        self._lock = threading.Lock()
        self._silent: dict[Any, None] = {}  # contexts; the oldest first

    def intercept_service(self, continuation: Callable[[Any], Any], handler_call_details: Any) -> Any:
        handler = continuation(handler_call_details)
        if handler is None:
            return None
        answer = handler.unary_unary or handler.unary_stream or handler.stream_stream

        def call(requests: Iterator[Any], context: grpc.ServicerContext, *more: Any) -> Any:
            messages = self._messages(requests, context)
            if handler.request_streaming:
                return answer(messages, context, *more)
            message = next(messages, None)
            if message is None:
                context.abort(grpc.StatusCode.INVALID_ARGUMENT, "request: expected one message, found none")
            return answer(message, context, *more)

        functools.update_wrapper(call, answer, assigned=())  # Watch of health says that it needs no thread
        made = (
            grpc.stream_stream_rpc_method_handler
            if handler.response_streaming
            else grpc.stream_unary_rpc_method_handler
        )
        return made(call, handler.request_deserializer, handler.response_serializer)

    def _messages(self, requests: Iterator[Any], context: grpc.ServicerContext) -> Iterator[Any]:
        while True:
            with self._waiting(context):
                message = next(requests, None)
            if message is None:
                return
            yield message

    @contextmanager
    def _waiting(self, context: grpc.ServicerContext) -> Iterator[None]:
        with self._lock:
            oldest = next(iter(self._silent)) if len(self._silent) >= self._most else None
            self._silent.pop(oldest, None)
            self._silent[context] = None
        if oldest is not None:
            oldest.cancel()
        late = threading.Timer(self._patience, context.cancel)
        late.daemon = True
        late.start()
        try:
            yield
        finally:
            late.cancel()
            with self._lock:
                self._silent.pop(context, None)
