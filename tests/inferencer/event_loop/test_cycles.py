"""Who answers a call is found as grpc finds it, and nothing is left for the collector of garbage."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import grpc
import pytest
from grpc._cython import cygrpc  # type: ignore[attr-defined]

from inferencer.event_loop import cycles

_MANY = 100
_METADATA = (("key", "value"),)
Intercepted = Callable[[grpc.HandlerCallDetails], Awaitable[Any]]


class _Resolver:
    """As gRPC has one, of all handlers of a server."""

    def resolve_handler(self, details: grpc.HandlerCallDetails) -> object:
        return details.method, details.invocation_metadata


@pytest.fixture
def found() -> Iterator[None]:
    before = cygrpc._find_method_handler
    cycles.leave_no_cycles()
    assert cygrpc._find_method_handler is cycles._found  # else this grpc finds handlers in another way
    yield
    cygrpc._find_method_handler = before


def garbage(find: Callable[..., Awaitable[object]]) -> int:
    async def ask() -> None:
        for _ in range(_MANY):
            assert await find("/a.Service/Call", _METADATA, _Resolver(), ()) == ("/a.Service/Call", _METADATA)

    gc.collect()
    gc.disable()
    try:
        asyncio.run(ask())
        return gc.collect()
    finally:
        gc.enable()


@pytest.mark.usefixtures("found")
def test_no_cycles_are_left() -> None:
    assert garbage(cygrpc._find_method_handler) + _MANY <= garbage(cycles._PLAIN)


@pytest.mark.usefixtures("found")
@pytest.mark.parametrize("intercepted", [False, True])
def test_calls_are_answered_whether_or_not_they_are_intercepted(intercepted: bool) -> None:
    assert asyncio.run(answers(["/a.Service/Call", "/a.Service/Other"], intercepted)) == [
        (grpc.StatusCode.OK, b"asked", [("/a.Service/Call", "value")] * intercepted),
        (grpc.StatusCode.UNIMPLEMENTED, b"", [("/a.Service/Other", "value")] * intercepted),
    ]


async def _earlier(method: str, metadata: object, handlers: list[object], interceptors: object) -> None: ...


@pytest.mark.parametrize("other", [_earlier, None, 3])
def test_where_grpc_is_another_it_stays_as_it_is(monkeypatch: pytest.MonkeyPatch, other: object) -> None:
    monkeypatch.setattr(cygrpc, "_find_method_handler", other)
    monkeypatch.setattr(cycles, "_PLAIN", other)
    cycles.leave_no_cycles()
    assert cygrpc._find_method_handler is other


class _Noting(grpc.aio.ServerInterceptor):  # type: ignore[type-arg]
    def __init__(self) -> None:
        self.seen: list[tuple[str, object]] = []

    async def intercept_service(self, continuation: Intercepted, details: grpc.HandlerCallDetails) -> Any:
        self.seen.append((details.method, dict(details.invocation_metadata)["key"]))
        return await continuation(details)


class _Echo(grpc.GenericRpcHandler):  # type: ignore[type-arg]
    def service(self, details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler[bytes, bytes] | None:
        return grpc.unary_unary_rpc_method_handler(self._answer) if details.method.endswith("/Call") else None

    async def _answer(self, request: bytes, context: Any) -> bytes:
        return request


async def answers(methods: list[str], intercepted: bool) -> list[object]:
    noting = _Noting()
    server = grpc.aio.server(handlers=[_Echo()], interceptors=[noting] if intercepted else [])
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    answered: list[object] = []
    try:
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            for one in methods:
                noting.seen.clear()
                code, content = grpc.StatusCode.OK, b""
                try:
                    content = await channel.unary_unary(one, bytes, bytes)(b"asked", metadata=_METADATA, timeout=60)
                except grpc.aio.AioRpcError as error:
                    code = error.code()
                answered.append((code, content, [*noting.seen]))
    finally:
        await server.stop(None)
    return answered
