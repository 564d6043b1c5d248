"""Bodies and clients beyond what is allowed: what they get, and that the server is unharmed."""

from __future__ import annotations

import contextlib
import gzip
import json
import resource
import socket
import threading
from collections.abc import Iterator

import pytest

from tests.http import MB, Got, Web, call, small_limits
from tests.programs import eventually
from tests.running import LONG

PREDICT = "/v1/models/plain:predict"


@pytest.fixture(scope="module")
def web(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Web]:
    with small_limits(tmp_path_factory.mktemp("web")) as web:
        yield web


@pytest.fixture(autouse=True)
def unharmed(web: Web) -> Iterator[None]:
    yield
    web.check_unharmed()


def exchange(web: Web, content: bytes) -> Got:
    """What the server says to these bytes, after which it ends the connection."""
    with socket.create_connection(("127.0.0.1", web.rest_port), LONG) as one:
        one.settimeout(LONG)
        one.sendall(content)
        parts = []
        while part := one.recv(1 << 16):
            parts.append(part)
    head, _, body = b"".join(parts).partition(b"\r\n\r\n")
    return Got(int(head.split()[1]) if head else 0, {}, body)


HEAD = b"POST /v1/models/plain:predict HTTP/1.1\r\nHost: here\r\n"


@pytest.mark.parametrize(
    "message",
    [
        HEAD + b"Content-Length: %d\r\n\r\n" % (5 * MB),
        HEAD + b"Content-Length: %d\r\nExpect: 100-continue\r\n\r\n" % (1 << 60),
        HEAD + b"Transfer-Encoding: chunked\r\n\r\n" + (b"100000\r\n" + b" " * MB + b"\r\n") * 5,
    ],
    ids=["said", "said beforehand", "in chunks"],
)
def test_a_body_that_is_too_large_is_refused_before_it_is_held(web: Web, message: bytes) -> None:
    got = exchange(web, message)
    assert (got.status, "body: expected at most 4194304 bytes, found" in got.error) == (413, True)


def test_a_small_body_that_unfolds_to_a_large_one_is_refused(web: Web) -> None:
    bomb = gzip.compress(b" " * (512 * MB), 1)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    got = call(web.rest_port, "POST", PREDICT, bomb, Content_Encoding="gzip")
    assert (got.status, "expected at most 4194304 bytes" in got.error) == (413, True)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 128 << 10
    good = gzip.compress(json.dumps({"instances": [[1, 2]]}).encode())
    assert call(web.rest_port, "POST", PREDICT, good, Content_Encoding="gzip").status == 200


def test_long_strings_where_numbers_belong_cost_no_more_than_themselves(web: Web) -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    got = call(web.rest_port, "POST", PREDICT, {"inputs": ["x" * MB] + [1] * 100})
    assert got.status == 400
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 64 << 10


def test_a_body_that_does_not_come_is_given_up(web: Web) -> None:
    got = exchange(web, HEAD + b'Content-Length: 100\r\n\r\n{"inst')
    assert (got.status, got.error) == (408, "body: expected all of it within 1 s, found 6 bytes")


def test_a_client_that_says_nothing_is_left(web: Web) -> None:
    assert exchange(web, b"POST /v1/mod").status == 0


@pytest.mark.parametrize(
    ("begins", "status"),
    [(b"POST /v1/models/plain:predict HTTP/1.1\r\nX: ", 0), (HEAD + b"Content-Length: 9999\r\n\r\n", 408)],
)
def test_a_client_that_sends_byte_by_byte_is_left(web: Web, begins: bytes, status: int) -> None:
    pause = threading.Event()
    with socket.create_connection(("127.0.0.1", web.rest_port), LONG) as one:
        one.sendall(begins)
        one.settimeout(0.1)
        found = b""
        for _ in range(300):
            with contextlib.suppress(OSError):
                one.sendall(b" ")
            pause.wait(0.02)
            try:
                part = one.recv(1 << 16)
            except TimeoutError:
                continue
            except ConnectionResetError:
                part = b""
            found += part
            if not part:
                break
        else:
            raise AssertionError(found)
    assert found.startswith(f"HTTP/1.1 {status}".encode() if status else b"")
    assert bool(found) == bool(status)


def test_a_client_that_never_reads_is_left(web: Web) -> None:
    body = json.dumps({"inputs": {"count": [1], "said": ["a" * (4 * MB - 100)]}}).encode()  # and comes back twice
    head = HEAD.replace(b"plain", b"named")
    with socket.socket() as one:
        one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        one.settimeout(LONG)
        one.connect(("127.0.0.1", web.rest_port))
        one.sendall(head + b"Content-Length: %d\r\n\r\n" % len(body) + body)
        assert one.recv(1) == b"H"
        server = web.rest._web
        assert server is not None
        eventually(lambda: not server.connections, lambda: f"{server.connections} to be given up")


def test_what_is_no_http_is_a_bad_request(web: Web) -> None:
    for content in (
        b"\x00\x01\x02\r\n\r\n",
        b"GET\r\n\r\n",
        HEAD + b"Content-Length: x\r\n\r\n",
        b"\x16\x03\x01" * 100,
    ):
        with socket.create_connection(("127.0.0.1", web.rest_port), LONG) as one:
            one.settimeout(LONG)
            one.sendall(content + b"\r\n\r\n")
            assert one.recv(1 << 16).startswith(b"HTTP/1.0 400")


def test_what_cannot_be_unpacked_is_a_bad_request_and_no_line_of_the_log(
    web: Web, caplog: pytest.LogCaptureFixture
) -> None:
    found = call(web.rest_port, "POST", "/v1/models/plain:predict", b"{}\n", Content_Encoding="gzip")
    assert (found.status, found.error) == (400, "body: expected what its headers say, found what cannot be unpacked")
    assert call(web.rest_port, "GET", "/v1/models/plain").status == 200
    with socket.create_connection(("127.0.0.1", web.rest_port), LONG) as one:
        one.settimeout(LONG)
        one.sendall(b"GET /healthz HTTP/1.1\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n")
        assert one.recv(1 << 16).startswith(b"HTTP/1.0 400")
    assert not caplog.records
    web.check_unharmed()


def test_connections_that_say_nothing_make_room_for_those_that_do(web: Web, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("inferencer.rest.server._MOST_CONNECTIONS", 4)
    silent = [socket.create_connection(("127.0.0.1", web.rest_port), LONG) for _ in range(6)]
    web.check_unharmed()
    for one in silent:
        one.close()


def test_a_connection_that_is_asked_nothing_more_is_closed(web: Web) -> None:
    with socket.create_connection(("127.0.0.1", web.rest_port), LONG) as one:
        one.settimeout(LONG)
        one.sendall(b"GET /v1/models/plain HTTP/1.1\r\nHost: a\r\n\r\n")
        assert one.recv(1 << 16).startswith(b"HTTP/1.1 200")
        while one.recv(1 << 16):
            pass


def test_a_client_that_leaves_in_the_middle_of_a_body_is_no_line_of_the_log(
    web: Web, caplog: pytest.LogCaptureFixture
) -> None:
    came = web.rest._came
    for _ in range(5):
        with socket.create_connection(("127.0.0.1", web.rest_port), LONG) as one:
            one.sendall(HEAD + b'Content-Length: 999\r\n\r\n{"ins')
    eventually(lambda: web.rest._came >= came + 5, lambda: "all to have come")
    web.check_unharmed()
    assert not caplog.records
