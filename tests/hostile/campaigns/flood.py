"""Hostile connections of one kind, made by a process of low priority.

`python -m tests.hostile.campaigns.flood PORT CONNECTIONS SECONDS FILE THEN`: each connection sends FILE; THEN says what
it does after that.
"""

from __future__ import annotations

import errno
import os
import resource
import selectors
import socket
import sys
import time
from pathlib import Path

_AT_ONCE = 64  # connections that are begun, before others send
_PORTION = 1 << 16
HOLD = "hold"  # and reads
DEAF = "deaf"  # sends it again and again, and never reads
AGAIN = "again"  # makes another connection
REPEAT = "repeat"  # sends the last frame again and again, which FILE ends with 5,000 times


class Flood:
    """A bounded number of connections at a time; one that the server ended is made again."""

    def __init__(self, port: int, connections: int, content: bytes, then: str) -> None:
        self._address = ("127.0.0.1", port)
        self._most = connections
        self._content = memoryview(content)
        self._then = then
        self._selector = selectors.DefaultSelector()
        self._sent: dict[socket.socket, int] = {}
        self.made = 0
        self.bytes = 0

    def run(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            for _ in range(min(_AT_ONCE, self._most - len(self._sent))):
                self._connect()
            for key, ready in self._selector.select(0.05):
                one = key.fileobj
                assert isinstance(one, socket.socket)
                try:
                    if ready & selectors.EVENT_READ:
                        self._read(one)
                    if ready & selectors.EVENT_WRITE:
                        self._write(one)
                except OSError as error:
                    if error.errno not in (errno.EAGAIN, errno.EINPROGRESS):
                        self._end(one)

    def _connect(self) -> None:
        one = socket.socket()
        one.setblocking(False)
        if one.connect_ex(self._address) not in (0, errno.EINPROGRESS):
            one.close()
            return
        self.made += 1
        self._sent[one] = 0
        self._selector.register(one, selectors.EVENT_WRITE | (0 if self._then == DEAF else selectors.EVENT_READ))

    def _read(self, one: socket.socket) -> None:
        if not one.recv(_PORTION):
            raise ConnectionResetError(errno.ECONNRESET, "the server has closed it")

    def _write(self, one: socket.socket) -> None:
        at = self._sent[one]
        sent = one.send(self._content[at : at + _PORTION])
        self.bytes += sent
        at += sent
        if at == len(self._content):
            if self._then == AGAIN:
                self._end(one)
                return
            if self._then == HOLD:
                self._selector.modify(one, selectors.EVENT_READ)
            else:
                at = len(self._content) // 2  # which is among the frames that are all the same
                at += (len(self._content) - at) % FRAME
        self._sent[one] = at

    def _end(self, one: socket.socket) -> None:
        self._selector.unregister(one)
        del self._sent[one]
        one.close()


FRAME = 400
"""Bytes of what FILE ends with many times, for REPEAT and DEAF: a multiple of any frame's size that is used."""


def main(arguments: list[str]) -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    os.nice(19)
    port, connections, seconds, file, then = arguments
    flood = Flood(int(port), int(connections), Path(file).read_bytes(), then)
    flood.run(float(seconds))
    sys.stdout.write(f"{flood.made} {flood.bytes}\n")


if __name__ == "__main__":
    main(sys.argv[1:])
