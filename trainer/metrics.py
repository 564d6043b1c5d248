"""How training and publishing go, as Prometheus reads it: the page, and GET /metrics by HTTP."""

from __future__ import annotations

import contextlib
import socket
import socketserver
import threading
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.exposition import CONTENT_TYPE_LATEST as CONTENT_TYPE
from prometheus_client.metrics_core import Metric

from paramsync.program.prometheus import Page
from paramsync.rpc import addresses

if TYPE_CHECKING:
    from paramsync.publishing.control_port import Training


class TrainerMetrics(Page):
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
        for name, said, value in (
            ("step", "The step that training is at.", meter.step),
            ("steps_per_second", "Over the last second or more.", meter.steps_per_second),
            ("loss", "Of the last step.", meter.loss),
            (
                "published_version",
                "The version published last, by this process.",
                None if version is None else version.number,
            ),
            ("published_step", "The training step of that version.", None if version is None else version.step),
            ("since_publication_seconds", "How long ago that was.", since),
            ("publish_seconds", "What that took, from pinning its values to its commit.", took),
            ("stall_seconds", "How long the last publication held the thread that trains.", meter.stall),
            ("publishing_fails", "1 where the last publication failed.", publishing.last_error is not None),
            ("saved_step", "The step that training would resume at.", None if state is None else state.saved),
        ):
            if value is not None:
                yield GaugeMetricFamily(f"paramsync_trainer_{name}", said, value=float(value))
        for name, said, count in (
            ("publications", "Versions published by this process.", publishing.publishes),
            ("skipped", "Publications that a newer one overtook before they were written.", publishing.skipped),
            ("refused", "Publications refused because of their values.", publishing.refused),
        ):
            yield CounterMetricFamily(f"paramsync_trainer_{name}", said, value=count)


_SECONDS = 5.0  # for a caller to ask, and to take the answer
_BYTES = 8192  # of a request
_MOST = 8  # callers at a time; the next is hung up on


class MetricsPort:
    """Answers from the moment it is made, on threads of its own."""

    def __init__(self, host: str, port: int, text: Callable[[], bytes]) -> None:
        """Port 0 is any free one. Raises SettingsError for an address that cannot be had."""
        addresses.check_port(host, port, "--metrics-port")
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        try:
            self._server = _Server(host, port, family, text)
        except OSError as error:
            raise addresses.refused(host, port, "--metrics-port") from error
        self.address = addresses.address(host, self._server.server_address[1])
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.1,), name="metrics", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class _Server(socketserver.ThreadingTCPServer):
    allow_reuse_address = True
    daemon_threads = True
    block_on_close = False

    def __init__(self, host: str, port: int, family: int, text: Callable[[], bytes]) -> None:
        self.address_family = family
        self.text = text
        self._room = threading.BoundedSemaphore(_MOST)
        super().__init__((host, port), _Request)

    def process_request(self, request: Any, client_address: Any) -> None:
        if self._room.acquire(blocking=False):
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._room.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A caller that leaves is no error of ours."""


class _Request(socketserver.BaseRequestHandler):
    server: _Server

    def handle(self) -> None:
        with contextlib.suppress(OSError):
            self.request.settimeout(_SECONDS)
            self.request.sendall(self._answer(self._line()))

    def _line(self) -> list[str]:
        """The words of the request's first line, once its whole head has come; none where it does not come."""
        deadline, head = time.monotonic() + _SECONDS, b""
        while b"\r\n\r\n" not in head and b"\n\n" not in head:
            left = deadline - time.monotonic()
            if left <= 0 or len(head) > _BYTES:
                return []
            self.request.settimeout(left)
            piece = self.request.recv(_BYTES)
            if not piece:
                return []
            head += piece
        return head.partition(b"\n")[0].decode(errors="replace").split()

    def _answer(self, line: list[str]) -> bytes:
        if len(line) != 3:
            return _answered("400 Bad Request", b"expected GET /metrics\n")
        method, path, _ = line
        if path.partition("?")[0] != "/metrics":
            return _answered("404 Not Found", b"expected /metrics\n")
        if method != "GET":
            return _answered("405 Method Not Allowed", b"expected GET\n")
        return _answered("200 OK", self.server.text(), CONTENT_TYPE)


def _answered(status: str, body: bytes, kind: str = "text/plain; charset=utf-8") -> bytes:
    head = f"HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    return head.encode() + body
