"""How training and publishing go, as Prometheus reads it: the page, and GET /metrics by HTTP."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from typing import TYPE_CHECKING, TypeAlias

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.exposition import CONTENT_TYPE_LATEST as CONTENT_TYPE
from prometheus_client.metrics_core import Metric

from paramsync.errors import NotAllowedError
from paramsync.program.prometheus import MetricsPage
from paramsync.rpc import addresses
from paramsync.rpc.access import Access, Caller, Effect, bearer, name_in
from paramsync.rpc.tls import ServerTls

if TYPE_CHECKING:
    from paramsync.publishing.control_port import Training


Fields: TypeAlias = "Mapping[str, Sequence[str]]"
"""The headers of a request: their values by name, in small letters."""


class TrainerMetrics(MetricsPage):
    """The page of metrics, read anew at each call, on any thread."""

    def __init__(self, training: Callable[[], Training | None], *, clock: Callable[[], float] = time.time) -> None:
        """`training` returns the training that has begun; None before."""
        self._training = training
        self._clock = clock
        super().__init__()

    def collect(self) -> Iterator[Metric]:
        training = self._training()
        if training is None:
            return
        meter, state, publishing = training.meter, training.state, training.publisher.status()
        version = publishing.published
        committed = None if version is None else version.committed_at
        since = None if committed is None else max(0.0, self._clock() - committed)
        took = None if version is None or committed is None else committed - version.snapshot_at
        number = None if version is None else version.number
        for name, meaning, value in (
            ("step", "The step that training is at.", meter.step),
            ("loss", "Loss of the last step.", meter.loss),
            ("published_version", "The version that this process published last.", number),
            (
                "published_step",
                "Training step of the version published last.",
                None if version is None else version.step,
            ),
            ("since_publication_seconds", "Time since this process published a version.", since),
            (
                "last_publish_duration_seconds",
                "Duration of the last publication, from pinning its values to its commit.",
                took,
            ),
            (
                "last_stall_duration_seconds",
                "How long the last publication held the thread that trains.",
                meter.stall,
            ),
            (
                "publishing_failing",
                "1 where the last publication failed or was refused, else 0.",
                publishing.last_error is not None,
            ),
            ("saved_step", "The step that training would resume at.", None if state is None else state.saved),
        ):
            if value is not None:
                yield GaugeMetricFamily(f"paramsync_trainer_{name}", meaning, value=float(value))
        for name, meaning, count in (
            ("steps", "Steps trained by this process.", meter.step - meter.first),
            ("publications", "Versions published by this process.", publishing.publishes),
            (
                "publications_skipped",
                "Publications that a newer one overtook before they were written.",
                publishing.skipped,
            ),
            ("publications_failed", "Publications that failed or were refused.", publishing.failed),
            ("publications_refused", "Publications refused because of NaN or infinity.", publishing.refused),
        ):
            yield CounterMetricFamily(f"paramsync_trainer_{name}", meaning, value=count)


_SECONDS = 5.0  # for a caller to ask, and to take the answer
_BYTES = 8192  # of a request
_MOST = 8  # callers at a time; the next is hung up on


class MetricsPort:
    """Answers from the moment it is made, on a thread of its own."""

    def __init__(
        self,
        host: str,
        port: int,
        text: Callable[[], bytes],
        *,
        access: Access | None = None,
        tls: ServerTls | None = None,
    ) -> None:
        """`access` says who may ask; None: everybody whom this host lets. Port 0 is any free one.

        Raises SettingsError for an address that cannot be had.
        """
        addresses.check_port(host, port, "--metrics-port")
        family, *_, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        try:
            listener = socket.create_server(address[:2], family=family)
        except OSError as error:
            raise addresses.refused(host, port, "--metrics-port") from error
        self.address = addresses.address(host, listener.getsockname()[1])
        self._text = text
        self._access = access or Access(host=host)
        self._tls = tls
        self._callers = 0
        self._closed: Future[None] = Future()
        serve = self._serve(listener)
        self._thread = threading.Thread(target=asyncio.run, args=(serve,), name="metrics", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._closed.set_result(None)
        self._thread.join()

    async def _serve(self, listener: socket.socket) -> None:
        # asyncio would print a traceback for each connection that it has no file descriptor for
        asyncio.get_running_loop().set_exception_handler(lambda *_: None)
        context = None if self._tls is None else self._tls.http_context()
        seconds = None if context is None else _SECONDS
        server = await asyncio.start_server(
            self._accept, sock=listener, limit=_BYTES, ssl=context, ssl_handshake_timeout=seconds
        )
        await asyncio.wrap_future(self._closed)
        server.close()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._callers += 1
        try:
            if self._callers <= _MOST:
                writer.write(self._answer(*await _request(reader), writer.transport))
                await asyncio.wait_for(writer.drain(), _SECONDS)
        except (OSError, asyncio.TimeoutError):
            pass  # a caller that leaves is no error of ours
        finally:
            self._callers -= 1
            writer.close()

    def _answer(self, request: list[str], fields: Fields, transport: asyncio.WriteTransport) -> bytes:
        if len(request) != 3:
            return _response("400 Bad Request", b"expected GET /metrics\n")
        method, path, _ = request
        if path.partition("?")[0] != "/metrics":
            return _response("404 Not Found", b"expected /metrics\n")
        if method != "GET":
            return _response("405 Method Not Allowed", b"expected GET\n")
        try:
            if self._access.looks_at(Effect.READS):
                authorization = next(iter(fields.get("authorization", ())), "")
                self._access.check_read("GET /metrics", _caller(transport, authorization))
        except NotAllowedError as error:
            return _response("401 Unauthorized", f"{error}\n".encode(), more="WWW-Authenticate: Bearer\r\n")
        try:
            self._access.check_host("GET /metrics", fields.get("host", ()))
        except NotAllowedError as error:
            return _response("403 Forbidden", f"{error}\n".encode())
        return _response("200 OK", self._text(), CONTENT_TYPE)


def _caller(transport: asyncio.WriteTransport, authorization: str) -> Caller:
    certificate = name_in(transport.get_extra_info("peercert"))
    return Caller(str(transport.get_extra_info("peername")), bearer(authorization), certificate)


async def _request(reader: asyncio.StreamReader) -> tuple[list[str], Fields]:
    """The words of the request's first line, none where it does not come or is no HTTP, and its headers."""
    try:
        head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), _SECONDS)
    except (asyncio.TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
        return [], {}
    first, *headers = head.decode(errors="replace").split("\r\n")
    fields: dict[str, list[str]] = {}
    for name, _, value in (header.partition(":") for header in headers):
        fields.setdefault(name.lower(), []).append(value.strip())
    return first.split(), fields


def _response(status: str, body: bytes, kind: str = "text/plain; charset=utf-8", *, more: str = "") -> bytes:
    length = f"Content-Length: {len(body)}\r\n"
    head = f"HTTP/1.1 {status}\r\nContent-Type: {kind}\r\n{length}Connection: close\r\n{more}\r\n"
    return head.encode() + body
