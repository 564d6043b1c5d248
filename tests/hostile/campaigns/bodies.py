"""How long hostile HTTP requests hold a server's event loop: `python -m tests.hostile.campaigns.bodies [BYTES]`."""

from __future__ import annotations

import asyncio
import base64
import gc
import json
import struct
import subprocess
import sys
import tempfile
import zlib
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any

from tests.support.hostile_bodies import KINDS, hostile

NONE = "no request"
_TICK = 0.001


def requests(size: int) -> dict[str, tuple[str, Callable[[], bytes], str]]:
    """The path, the body and its encoding, by what it is; each body of at most so many bytes."""
    plain, named = "plain:predict", "named:predict"
    found: dict[str, tuple[str, Callable[[], bytes], str]] = {NONE: ("none:predict", lambda: b"{}", "")}
    for kind in KINDS:
        found[kind] = (plain, partial(hostile, kind, size - 100), "")
        found[f"{kind}, as examples"] = ("plain:classify", partial(_examples, kind, size - 100), "")
    for kind in ("lists", "digits", "spaces", "keys, one twice"):
        found[f"{kind}, packed"] = (plain, partial(_packed, kind, size), "deflate")
    found["base64"] = (named, lambda: _base64(base64.b64encode(b"a" * (size // 2))), "")
    found["base64 in lines"] = (named, lambda: _base64(base64.encodebytes(b"a" * (size // 2))), "")
    found["a long answer"] = (named, lambda: _inputs([1], ["\n" * (size // 2 - 50)]), "")
    found["rows of strings"] = (named, lambda: _inputs([1] * (size // 12), ["ab"] * (size // 12)), "")
    found["answers"] = (plain, lambda: b'{"instances": [' + (b"[7,9]," * (size // 6 - 10))[:-1] + b"]}", "")
    found["a long signature"] = (
        plain,
        lambda: b'{"instances": [1], "signature_name": "' + b"a " * (size // 3) + b'"}',
        "",
    )
    return found


def _examples(kind: str, size: int) -> bytes:
    return hostile(kind, size).replace(b'"instances"', b'"examples"', 1)


def _packed(kind: str, size: int) -> bytes:
    return zlib.compress(hostile(kind, 64 * size))[:size]


def _base64(text: bytes) -> bytes:
    return _inputs([1], [{"b64": text.decode()}])


def _inputs(count: list[int], said: list[Any]) -> bytes:
    return json.dumps({"inputs": {"count": count, "said": said}}, separators=(",", ":")).encode()


class Longest:
    """The longest time between two ticks of an event loop, less the tick itself."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._last = perf_counter()
        self.seconds = 0.0
        loop.call_soon_threadsafe(self._tick)

    def _tick(self) -> None:
        now = perf_counter()
        self.seconds = max(self.seconds, now - self._last - _TICK)
        self._last = now
        self._loop.call_later(_TICK, self._tick)

    def take(self) -> float:
        found, self.seconds = self.seconds, 0.0
        return found


@contextmanager
def sender(port: int) -> Iterator[subprocess.Popen[bytes]]:
    """Another process, so that what it does costs the server nothing."""
    command = [sys.executable, "-c", _SENDER, str(port)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        try:
            yield process
        finally:
            process.kill()


def holds(
    port: int, loop: asyncio.AbstractEventLoop, size: int, *, kinds: Collection[str] = (), times: int = 3
) -> dict[str, tuple[float, int]]:
    """For each kind of request for how many seconds it held the loop, the least of some times, and its status.

    Among them is NONE, one to a model that there is none of: what is seen then comes from elsewhere.
    """
    longest, found = Longest(loop), {}
    with sender(port) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        for name, (path, made, encoding) in requests(size).items():
            if kinds and name not in (*kinds, NONE):
                continue
            body = made()
            assert len(body) <= size, name
            head = f"POST /v1/models/{path} HTTP/1.1\r\nHost: a\r\nConnection: close\r\nContent-Length: {len(body)}\r\n"
            head += f"Content-Encoding: {encoding}\r\n" if encoding else ""
            message = head.encode() + b"\r\n" + body
            seconds, status = [], 0
            for _ in range(times):
                longest.take()
                process.stdin.write(struct.pack("<q", len(message)) + message)
                process.stdin.flush()
                status = int(process.stdout.readline())
                seconds.append(longest.take())
            found[name] = (min(seconds), status)
    return found


_SENDER = """
import socket, struct, sys
while head := sys.stdin.buffer.read(8):
    message = sys.stdin.buffer.read(struct.unpack("<q", head)[0])
    with socket.create_connection(("127.0.0.1", int(sys.argv[1])), 60) as one:
        one.settimeout(60)
        one.sendall(message)
        parts = []
        while part := one.recv(1 << 20):
            parts.append(part)
    print(b"".join(parts).split(b" ", 2)[1].decode(), flush=True)
"""


def main(size: int) -> None:
    from tests.support.http import small_limits

    sys.setswitchinterval(0.001)  # as the inferencer does
    with tempfile.TemporaryDirectory() as folder, small_limits(Path(folder), patience=60.0) as web:
        gc.freeze()  # and this
        found = holds(web.rest_port, web.loop, size)
        for name, (seconds, status) in sorted(found.items(), key=lambda item: -item[1][0]):
            sys.stdout.write(f"{1000 * seconds:8.1f} ms  {status}  {name}\n")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 1 << 20)
