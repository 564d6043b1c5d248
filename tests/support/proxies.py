"""An HTTP proxy before a server. It loses, cuts, delays or forges the requests that a test chooses."""

from __future__ import annotations

import http.client
import socket
import struct
import threading
from collections import Counter
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler
from typing import Any
from urllib.parse import urlsplit

from tests.support.http_servers import HttpServer

LATE = 0.05  # seconds by which a request comes late, after its sender has given up

_CODES = {409: "OperationAborted", 412: "PreconditionFailed", 429: "SlowDown", 503: "ServiceUnavailable"}
_HOPS = {"connection", "keep-alive", "transfer-encoding", "content-length", "date", "server"}
_SECONDS = 60.0

FAULTS = (
    "request lost",
    "request late",
    "answer lost",
    "answer reset",
    "answer cut",
    *(f"{status} {when}" for status in (429, 503) for when in ("instead", "after")),
    "409 instead",
    "412 after",
)
"""Faults of a request. A status comes "instead" of the server's answer, or "after" the server has done the request."""


class Proxy(HttpServer):
    """`choose` returns the fault for a method and path, "" for none. `counts` has the number of faults so far."""

    def __init__(self, server: str, choose: Callable[[str, str], str]) -> None:
        self.choose = choose
        self.counts: Counter[str] = Counter()
        self._lock = threading.Lock()
        self._to = urlsplit(server).netloc
        super().__init__(type("Requests", (_Requests,), {"proxy": self}))

    def fault(self, method: str, path: str) -> str:
        with self._lock:
            fault = self.choose(method, path)
            if fault:
                self.counts[fault] += 1
            return fault

    def forward(self, method: str, path: str, headers: dict[str, str], body: bytes) -> tuple[int, Any, bytes]:
        connection = http.client.HTTPConnection(self._to, timeout=_SECONDS)
        try:
            connection.putrequest(method, path, skip_host=True, skip_accept_encoding=True)
            for name, value in headers.items():
                connection.putheader(name, value)
            connection.endheaders(body or None)
            answer = connection.getresponse()
            return answer.status, answer.headers, answer.read()
        finally:
            connection.close()


class _Requests(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    proxy: Proxy

    def _handle(self) -> None:
        proxy = self.proxy
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        call = self.command, self.path, dict(self.headers.items()), body
        fault, _, when = proxy.fault(self.command, self.path).partition(" ")
        if fault == "request":
            if when == "late":
                threading.Timer(LATE, proxy.forward, call).start()
            self.close_connection = True
            return
        if when == "instead":
            self._refuse(int(fault))
            return
        status, headers, content = proxy.forward(*call)
        if when == "after":
            self._refuse(int(fault))
            return
        length = headers["Content-Length"] or "0" if self.command == "HEAD" else str(len(content))
        lines = [f"HTTP/1.1 {status} {http.client.responses.get(status, '')}"]
        lines += [f"{name}: {value}" for name, value in headers.items() if name.lower() not in _HOPS]
        if status not in (204, 304):
            lines.append(f"Content-Length: {length}")
        answer = "\r\n".join([*lines, "", ""]).encode("latin-1") + content
        self._send(answer, when if fault == "answer" else "")

    do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = _handle

    def _send(self, answer: bytes, fault: str) -> None:
        if fault:
            self.close_connection = True
        if fault == "reset":
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.wfile.write({"": answer, "cut": answer[: len(answer) // 2]}.get(fault, b""))

    def _refuse(self, status: int) -> None:
        code = _CODES.get(status, "AccessDenied")
        content = f"<?xml version='1.0'?><Error><Code>{code}</Code><Message>{code}</Message></Error>".encode()
        head = f"HTTP/1.1 {status} {code}\r\nContent-Type: application/xml\r\nContent-Length: {len(content)}\r\n\r\n"
        self._send(head.encode() + (b"" if self.command == "HEAD" else content), "")

    def log_message(self, *arguments: object) -> None:
        """Log nothing."""
