"""ReadTimeouts: calls of the control port whose message does not come are given up."""

from __future__ import annotations

import functools
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import grpc

from paramsync.rpc.connection_limit import ConnectionLimit

MOST = 32  # each holds a thread of the server
PATIENCE = 10.0
_AT_LEAST = 1.0  # seconds that a message may take to come however many calls are silent


class ReadTimeoutInterceptor(grpc.ServerInterceptor):  # type: ignore[type-arg]  # it takes none when it runs
    """Waits for messages in place of gRPC, which would wait for ever and hold a thread meanwhile. Any thread.

    Where too many calls are silent, the one that has been silent longest is given up.
    """

    def __init__(self, connections: ConnectionLimit, most: int = MOST, *, patience: float = PATIENCE) -> None:
        """`connections` hears of every call; `patience` is how many seconds a message may take to come."""
        self._connections = connections
        self._most = most
        self._patience = patience
        self._lock = threading.Lock()
        self._silent: dict[Any, float] = {}  # contexts, and since when they are silent; the oldest first

    def intercept_service(self, continuation: Callable[[Any], Any], handler_call_details: Any) -> Any:
        handler = continuation(handler_call_details)
        if handler is None:
            return None
        answer = handler.unary_unary or handler.unary_stream or handler.stream_stream

        def call(requests: Iterator[Any], context: grpc.ServicerContext, *more: Any) -> Any:
            self._connections.begin(context, context.peer())
            if not context.add_callback(lambda: self._connections.end(context)):
                self._connections.end(context)
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
        now, patience, oldest = time.monotonic(), self._patience, None
        with self._lock:
            if len(self._silent) >= self._most:
                # its message may be here, and calls that were reset at once keep it from being read
                patience = min(patience, _AT_LEAST)
                oldest = next(iter(self._silent))
                if now - self._silent[oldest] < patience:
                    oldest = None
            self._silent.pop(oldest, None)
            self._silent[context] = now
        if oldest is not None:
            oldest.cancel()
        late = threading.Timer(patience, context.cancel)
        late.daemon = True
        late.start()
        try:
            yield
        finally:
            late.cancel()
            with self._lock:
                self._silent.pop(context, None)
