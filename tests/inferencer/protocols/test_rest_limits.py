"""Bodies and clients beyond what is allowed: what they get, and that the server is unharmed."""

from __future__ import annotations

import contextlib
import json
import resource
import socket
import threading
import zlib
from collections.abc import Iterator

import numpy as np
import pytest

from tests.support.http import MB, Got, call, check_unharmed, small_limits
from tests.support.in_process import InProcess
from tests.support.programs import eventually
from tests.support.running import LONG

PREDICT = "/v1/models/plain:predict"


@pytest.fixture(scope="module")
def web(tmp_path_factory: pytest.TempPathFactory) -> Iterator[InProcess]:
    with small_limits(tmp_path_factory.mktemp("web")) as web:
        yield web


@pytest.fixture(autouse=True)
def unharmed(web: InProcess) -> Iterator[None]:
    yield
    check_unharmed(web)


def exchange(web: InProcess, content: bytes) -> Got:
    """What the server says to these bytes, after which it ends the connection."""
    with socket.create_connection(("127.0.0.1", web.rest_port), LONG) as one:
        one.settimeout(LONG)
        one.sendall(content)
        parts = []
        while part := one.recv(1 << 16):
            parts.append(part)
    head, _, body = b"".join(parts).partition(b"\r\n\r\n")
    return Got(int(head.split()[1]) if head else 0, {}, body)


HEAD = b"POST /v1/models/plain:predict HTTP/1.1\r\nHost: localhost\r\n"


@pytest.mark.parametrize(
    "message",
    [
        HEAD + b"Content-Length: %d\r\n\r\n" % (5 * MB),
        HEAD + b"Content-Length: %d\r\nExpect: 100-continue\r\n\r\n" % (1 << 60),
        HEAD + b"Transfer-Encoding: chunked\r\n\r\n" + (b"100000\r\n" + b" " * MB + b"\r\n") * 5,
    ],
    ids=["said", "said beforehand", "in chunks"],
)
def test_a_body_that_is_too_large_is_refused_before_it_is_held(web: InProcess, message: bytes) -> None:
    got = exchange(web, message)
    assert (got.status, "body: expected at most 4194304 bytes, found" in got.error) == (413, True)


def test_a_body_for_a_file_of_the_page_is_not_read(web: InProcess) -> None:
    with socket.create_connection(("127.0.0.1", web.rest_port), LONG) as one:
        one.sendall(b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n")  # and no body
        assert one.recv(1 << 16).startswith(b"HTTP/1.1 405")


def test_open_pages_do_not_keep_a_server_from_ending(web: InProcess) -> None:
    came = []
    for path in ("/", "/api/state", "/v1/models/plain"):
        before = web.rest._came
        assert call(web.rest_port, "GET", path).status == 200
        came.append(web.rest._came - before)
    assert came == [0, 0, 1]


def packed(content: bytes, encoding: str, *, times: int = 1) -> bytes:
    form = {"gzip": 31, "deflate": 15, "raw": -15}[encoding]
    one = zlib.compressobj(9, wbits=form)
    parts = [one.compress(content) for _ in range(times)]
    return b"".join(parts) + one.flush()


GOOD = json.dumps({"instances": [[1, 2]] * 30_000}).encode()


@pytest.mark.parametrize(
    ("said", "form"),
    [("gzip", "gzip"), ("GZIP", "gzip"), ("x-gzip", "gzip"), ("deflate", "deflate"), ("deflate", "raw")],
)
def test_a_body_may_come_packed(web: InProcess, said: str, form: str) -> None:
    for content in (GOOD[:14] + b"[[1, 2]]}", GOOD):
        got = call(web.rest_port, "POST", PREDICT, packed(content, form), Content_Encoding=said)
        assert (got.status, got.json["predictions"][0]) == (200, [4.0, 8.0])
    assert call(web.rest_port, "POST", PREDICT, GOOD, Content_Encoding="identity").status == 200


@pytest.mark.parametrize("form", ["gzip", "deflate"])
def test_a_small_body_that_unfolds_to_a_large_one_is_refused(web: InProcess, form: str) -> None:
    bombs = [packed(b" " * MB, form, times=times) for times in (3, 128)]
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    small, large = (call(web.rest_port, "POST", PREDICT, bomb, Content_Encoding=form) for bomb in bombs)
    assert (small.status, large.status) == (413, 413)
    expected = f"body: expected at most 1048576 bytes, or 100 times the {len(bombs[0])} that came, found "
    assert small.error.startswith(expected)
    assert small.error.endswith("when it was unpacked")
    assert "expected at most 4194304 bytes" in large.error
    heavy = packed(np.random.default_rng(0).bytes(100_000) + b" " * (5 * MB), form)
    got = call(web.rest_port, "POST", PREDICT, heavy, Content_Encoding=form)
    assert (got.status, "expected at most 4194304 bytes" in got.error) == (413, True)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 64 << 10


@pytest.mark.parametrize("encoding", ["br", "zstd", "compress", "gzip, gzip", "nonsense"])
def test_an_encoding_that_is_not_known_is_refused_by_name(web: InProcess, encoding: str) -> None:
    got = call(web.rest_port, "POST", PREDICT, b'{"instances": [[1, 2]]}', Content_Encoding=encoding)
    expected = f"Content-Encoding: expected gzip, deflate or none, found '{encoding}'"
    assert (got.status, got.error, got.headers["Accept-Encoding"]) == (415, expected, "gzip, deflate")


def counted(web: InProcess, code: str) -> float:
    """Requests by REST to the model `plain` that ended with it."""
    text = call(web.rest_port, "GET", "/metrics").body.decode()
    return sum(
        float(line.rpartition(" ")[2])
        for line in text.splitlines()
        if line.startswith("paramsync_requests_total{") and 'model="plain"' in line and f'code="{code}"' in line
    )


@pytest.mark.parametrize(
    ("message", "status", "code"),
    [
        (b"Content-Length: %d\r\n\r\n" % (5 * MB), 413, "RESOURCE_EXHAUSTED"),
        (b"Content-Length: 100\r\n\r\n{", 408, "DEADLINE_EXCEEDED"),
        (b"Content-Length: 2\r\nContent-Encoding: br\r\n\r\n{}", 415, "INVALID_ARGUMENT"),
        (b"Content-Length: 2\r\nContent-Encoding: gzip\r\n\r\n{}", 400, "INVALID_ARGUMENT"),
        (b"Content-Length: 2\r\n\r\n{]", 400, "INVALID_ARGUMENT"),
    ],
    ids=["too large", "too slow", "of no known encoding", "of another encoding", "of no JSON"],
)
def test_what_is_refused_early_is_counted_by_model_and_code(
    web: InProcess, message: bytes, status: int, code: str
) -> None:
    before = counted(web, code)
    head = HEAD.replace(b"Host", b"Connection: close\r\nHost")
    assert exchange(web, head + message).status == status
    assert counted(web, code) == before + 1


def test_a_comparison_that_nobody_waits_for_is_given_up(web: InProcess) -> None:
    asked = web.asked
    with socket.create_connection(("127.0.0.1", web.rest_port), LONG) as one:
        one.sendall(b"GET /api/diff?model=plain&old=1&new=2 HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
        begun = eventually(lambda: [each for each in asked if each[0] == "compare"], lambda: "it to be asked")
    assert begun[0][1:4] == ("plain", 1, 2)
    eventually(lambda: ("compare_no_more", begun[0][4]) in asked, lambda: "it to be given up")


def test_a_client_that_says_nothing_is_left(web: InProcess) -> None:
    assert exchange(web, b"POST /v1/mod").status == 0


def test_a_client_that_never_reads_is_left(web: InProcess) -> None:
    body = json.dumps({"inputs": {"count": [1], "said": ["a" * (4 * MB - 100)]}}).encode()  # and comes back twice
    head = HEAD.replace(b"plain", b"named")
    with socket.socket() as one:
        one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        one.settimeout(LONG)
        one.connect(("127.0.0.1", web.rest_port))
        one.sendall(head + b"Content-Length: %d\r\n\r\n" % len(body) + body)
        assert one.recv(1) == b"H"
        connections = web.rest._connections
        eventually(lambda: not len(connections), lambda: f"{len(connections)} to be given up")


def test_a_connection_that_is_asked_nothing_more_is_closed(web: InProcess) -> None:
    with socket.create_connection(("127.0.0.1", web.rest_port), LONG) as one:
        one.settimeout(LONG)
        one.sendall(b"GET /v1/models/plain HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert one.recv(1 << 16).startswith(b"HTTP/1.1 200")
        while one.recv(1 << 16):
            pass


@pytest.mark.parametrize(
    ("begins", "status"),
    [(b"POST /v1/models/plain:predict HTTP/1.1\r\nX: ", 0), (HEAD + b"Content-Length: 9999\r\n\r\n", 408)],
)
def test_a_client_that_sends_byte_by_byte_is_left(web: InProcess, begins: bytes, status: int) -> None:
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
