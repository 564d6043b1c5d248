"""A token that a stock client shows with each call by gRPC."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import grpc


class Shows(grpc.UnaryUnaryClientInterceptor, grpc.UnaryStreamClientInterceptor):  # type: ignore[type-arg]
    def __init__(self, token: str) -> None:
        self._header = ("authorization", f"Bearer {token}")

    def intercept_unary_unary(self, continuation: Callable[..., Any], details: Any, request: Any) -> Any:
        return continuation(details._replace(metadata=[*(details.metadata or ()), self._header]), request)

    def intercept_unary_stream(self, continuation: Callable[..., Any], details: Any, request: Any) -> Any:
        return self.intercept_unary_unary(continuation, details, request)
