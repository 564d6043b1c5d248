"""MetricsPort: GET /metrics by HTTP, for as long as training lasts. Bounded in time, bytes and callers."""

from __future__ import annotations

import contextlib
import socket
import socketserver
import threading
import time
from collections.abc import Callable
from typing import Any

from prometheus_client.exposition import CONTENT_TYPE_LATEST as CONTENT_TYPE

from paramsync.rpc import addresses

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
        """The words of the request's first line, when all of its head has come; none where that does not come."""
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
