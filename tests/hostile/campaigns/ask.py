"""A client that asks a model of Witness on many connections and checks every answer, until it is told to stop.

`python -m tests.hostile.campaigns.ask http|grpc ADDRESS SUPERVISOR WORDS PLACE CONNECTIONS [REQUEST]`. WORDS is a file
that all clients map: the newest version that any of them has seen, then how many answers each had, by its PLACE. No
answer may come from an older version than had been seen anywhere before its request was sent. It ends on SIGTERM with
one line of JSON.
"""

from __future__ import annotations

import itertools
import json
import mmap
import re
import selectors
import signal
import socket
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import grpc

from paramsync.program.process import set_from_handler
from paramsync.v1 import serving_pb2

WORDS = 16
_BODY = b'{"inputs": {"x": [[1.0, 1.0]]}}'
_REQUEST = (
    b"POST /v1/models/m:predict HTTP/1.1\r\nHost: localhost\r\n"
    b"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n%s" % (len(_BODY), _BODY)
)
_METHOD = "/tensorflow.serving.PredictionService/Predict"
_PARAMETERS = 6
_PAUSE = 0.02  # before a connection that was refused is tried again
_LISTEN = "0A"  # in /proc/net/tcp


@dataclass
class Seen:
    """What one client saw."""

    answered: int = 0
    backwards: int = 0
    mixed: int = 0
    newest: int = 0
    connections: dict[int, int] = field(default_factory=Counter)
    """By worker."""
    failed: dict[int, int] = field(default_factory=Counter)
    """Connections that ended under a request, by worker; 0 for those on which no answer had come yet."""
    refused: int = 0
    """Attempts to connect while no worker listened."""
    refused_by_listeners: int = 0
    """The same, although one worker listened before and after."""
    codes: dict[str, int] = field(default_factory=Counter)
    calls: dict[int, int] = field(default_factory=Counter)
    """Those that failed, by gRPC channel."""


class Words:
    """See the module. Each is written whole; that one client may overwrite what another wrote makes the check weaker
    for a moment, and never wrong."""

    def __init__(self, path: Path, place: int) -> None:
        with path.open("r+b") as file:
            self._words = memoryview(mmap.mmap(file.fileno(), 8 * WORDS)).cast("Q")
        self._place = place

    @property
    def newest(self) -> int:
        return self._words[0]

    def answered(self, version: int, count: int) -> None:
        if version > self._words[0]:
            self._words[0] = version
        self._words[self._place] = count


class Asking:
    def __init__(self, words: Words) -> None:
        self.seen = Seen()
        self.words = words

    def check(self, before: int, version: int, values: list[float]) -> None:
        seen = self.seen
        seen.answered += 1
        seen.backwards += version < before
        seen.mixed += values != [float(version)] * _PARAMETERS
        seen.newest = max(seen.newest, version)
        self.words.answered(version, seen.answered)


class _Connection:
    """One request at a time."""

    def __init__(self, address: tuple[str, int], asking: Asking, supervisor: int) -> None:
        self._asking = asking
        self._supervisor = supervisor
        self._received = b""
        self._worker = 0
        self.socket = socket.create_connection(address, timeout=60.0)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def ask(self) -> None:
        self._before = self._asking.words.newest
        self.socket.sendall(_REQUEST)

    def take(self) -> bool:
        """Whether the answer is there, and the next request is sent. Raises OSError where the connection has ended."""
        part = self.socket.recv(1 << 16)
        if not part:
            raise ConnectionResetError("the worker has ended")
        self._received += part
        head, end, body = self._received.partition(b"\r\n\r\n")
        if not end or len(body) < int(_header(head, b"content-length")):
            return False
        self._received = b""
        if not head.startswith(b"HTTP/1.1 200"):
            self._asking.seen.codes[head[9:12].decode()] += 1
        else:
            self._asking.check(
                self._before, int(_header(head, b"paramsync-version")), json.loads(body)["outputs"]["seen"]
            )
        if not self._worker:  # once, it takes milliseconds
            self._worker = owner(self.socket, self._supervisor)
            self._asking.seen.connections[self._worker] += 1
        self.ask()
        return True

    def fail(self) -> None:
        self._asking.seen.failed[self._worker] += 1
        self.socket.close()


def _header(head: bytes, name: bytes) -> bytes:
    found = re.search(rb"\r\n" + name + rb": *([^\r]+)", head, re.IGNORECASE)
    if found is None:
        raise ValueError(f"no {name!r} in {head!r}")
    return found[1]


def owner(connection: socket.socket, supervisor: int) -> int:
    """The process of this server that has the other end of a connection; 0 where none has it."""
    ours, port = connection.getsockname()[1], connection.getpeername()[1]
    inode = next((inode for other, _, inode in _sockets(port) if other == ours), "")
    for pid in family(supervisor):
        with suppress(OSError):
            for descriptor in Path(f"/proc/{pid}/fd").iterdir():
                with suppress(OSError):
                    if inode and str(descriptor.readlink()) == f"socket:[{inode}]":
                        return pid
    return 0


def listeners(port: int) -> set[str]:
    """The sockets that listen on it, by their inodes."""
    return {inode for _, state, inode in _sockets(port) if state == _LISTEN}


def _sockets(port: int) -> Iterator[tuple[int, str, str]]:
    """Of each socket that is bound to it: the port at the other end, the state, the inode."""
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        _, local, remote, state, *_, inode = line.split()[:10]
        if local.endswith(f":{port:04X}"):
            yield int(remote.rpartition(":")[2], 16), state, inode


def family(pid: int) -> list[int]:
    """All processes below one."""
    found: list[int] = []
    for children in Path(f"/proc/{pid}/task").glob("*/children"):
        with suppress(OSError):
            for child in map(int, children.read_text().split()):
                found += [child, *family(child)]
    return found


def by_http(address: str, asking: Asking, supervisor: int, count: int, over: threading.Event) -> None:
    host, port = address.rpartition(":")[0], int(address.rpartition(":")[2])
    seen = asking.seen
    poll = selectors.DefaultSelector()
    missing = count
    while not over.is_set():
        while missing:
            before = listeners(port)
            try:
                connection = _Connection((host, port), asking, supervisor)
            except ConnectionRefusedError:
                seen.refused += 1
                seen.refused_by_listeners += not before.isdisjoint(listeners(port))
                over.wait(_PAUSE)
                break
            except ConnectionResetError:  # its worker ended meanwhile
                seen.failed[0] += 1
                continue
            try:
                connection.ask()
            except OSError:
                connection.fail()
                continue
            poll.register(connection.socket, selectors.EVENT_READ, connection)
            missing -= 1
        for key, _ in poll.select(0.1):
            try:
                key.data.take()
            except OSError:
                poll.unregister(key.fileobj)
                key.data.fail()
                missing += 1


def by_grpc(address: str, asking: Asking, count: int, over: threading.Event, request: bytes) -> None:
    options = [("grpc.use_local_subchannel_pool", 1), ("grpc.enable_http_proxy", 0)]
    channels = [grpc.insecure_channel(address, options) for _ in range(count)]
    calls = [channel.unary_unary(_METHOD, bytes, bytes) for channel in channels]
    for channel, call in itertools.cycle(enumerate(calls)):
        if over.is_set():
            break
        before = asking.words.newest
        try:
            answer = serving_pb2.PredictResponse.FromString(call(request, timeout=60.0, wait_for_ready=True))
        except grpc.RpcError as error:
            asking.seen.codes[error.code().name] += 1
            asking.seen.calls[channel] += 1
            continue
        asking.check(before, answer.model_spec.version.value, list(answer.outputs["seen"].float_val))
    for opened in channels:
        opened.close()


def main(kind: str, address: str, supervisor: str, words: str, place: str, count: str, *request: str) -> None:
    over = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: set_from_handler(over))
    asking = Asking(Words(Path(words), int(place)))
    if kind == "http":
        by_http(address, asking, int(supervisor), int(count), over)
    else:
        by_grpc(address, asking, int(count), over, bytes.fromhex(request[0]))
    sys.stdout.write(json.dumps(vars(asking.seen)) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
