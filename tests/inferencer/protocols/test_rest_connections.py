"""Many connections at once to the HTTP port, and such on which no HTTP comes: what each of them is told."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from tests.support.http import Got, call, check_unharmed, small_limits
from tests.support.in_process import InProcess
from tests.support.programs import eventually
from tests.support.running import LONG

HEALTH = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"


@pytest.fixture(scope="module")
def web(tmp_path_factory: pytest.TempPathFactory) -> Iterator[InProcess]:
    with small_limits(tmp_path_factory.mktemp("web"), patience=LONG) as web:
        yield web


@pytest.fixture(autouse=True)
def unharmed(web: InProcess) -> Iterator[None]:
    yield
    eventually(lambda: not len(web.rest._connections), lambda: "all connections to be over")
    check_unharmed(web)


def connected(web: InProcess, stack: ExitStack) -> socket.socket:
    one = stack.enter_context(socket.create_connection(("127.0.0.1", web.rest_port), LONG))
    one.settimeout(LONG)
    return one


def told(one: socket.socket) -> Got:
    """The first answer on a connection."""
    content = b""
    while True:
        head, end, body = content.partition(b"\r\n\r\n")
        headers = dict(line.split(": ", 1) for line in head.decode().split("\r\n")[1:])
        if end and len(body) >= int(headers["Content-Length"]):
            return Got(int(head.split()[1]), headers, body)
        part = one.recv(1 << 16)
        assert part, f"closed after {content!r}"
        content += part


def test_of_a_burst_of_connections_each_is_answered_or_told_that_there_are_too_many(web: InProcess) -> None:
    with ExitStack() as stack:
        burst = []
        for _ in range(1500):
            burst.append(connected(web, stack))
            burst[-1].sendall(HEALTH)  # at once: one that says nothing for long may be closed for another one
        answers = [told(client) for client in burst]
    refused = [got for got in answers if "as many connections as there may be; try again" in got.error]
    assert len(answers) - len(refused) >= 1024  # more where some were over before others came
    for got in answers:  # those that are health's too: the model `empty` serves nothing
        assert (got.status, got.headers["Content-Type"]) == (503, "application/json")
    assert all(got.headers["Connection"] == "close" for got in refused)


def test_connections_that_say_nothing_make_room_for_those_that_do(
    web: InProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("inferencer.protocols.http.connections._MOST", 4)
    with ExitStack() as stack:
        for _ in range(4):
            connected(web, stack)

        def status() -> int:
            with ExitStack() as briefly:
                one = connected(web, briefly)
                one.sendall(HEALTH.replace(b"healthz", b"v1/models/plain"))
                return told(one).status

        eventually(lambda: status() == 200, lambda: "one that says nothing to make room")


def test_connections_that_wait_for_nothing_make_room_for_new_ones(
    web: InProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("inferencer.protocols.http.connections._MOST", 4)
    monkeypatch.setattr("inferencer.protocols.http.connections._BRIEFLY", 1000)
    asked = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"
    with ExitStack() as stack:
        for _ in range(12):  # each was answered, and is kept by a client that says nothing more
            one = connected(web, stack)
            one.sendall(asked)
            assert one.recv(1 << 16).startswith(b"HTTP/1.1 503")  # a model of this server is empty
            threading.Event().wait(0.01)  # longer than a thousandth of the patience
        check_unharmed(web)


def test_a_connection_on_which_something_came_does_not_make_room(
    web: InProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("inferencer.protocols.http.connections._MOST", 1)
    monkeypatch.setattr("inferencer.protocols.http.connections._MORE", 0)
    with ExitStack() as stack:
        first = connected(web, stack)
        first.sendall(HEALTH)
        for _ in range(20):
            assert told(connected(web, stack)).status == 503
        assert "not serving yet" in told(first).error


@pytest.mark.parametrize(
    "content",
    [
        b"\x00\x01\x02",
        b"GET",
        b"POST /v1/models/plain:predict HTTP/1.1\r\nContent-Length: x",
        b"GET /healthz HTTP/1.1\r\nContent-Length: 1\r\nTransfer-Encoding: chunked",
        b"GET /" + b"x" * 10_000 + b" HTTP/1.1",
        b"GET / HTTP/1.1\r\nX: " + b"x" * 10_000,
        b"GET / HTTP/1.1" + b"\r\nX: x" * 1000,
        b"GET / HTTP/1.1",
        b"GET nowhere HTTP/1.1\r\nHost: localhost",
        b"\x16\x03\x01" * 100,
    ],
    ids=[
        "bytes",
        "a word",
        "no length",
        "two lengths",
        "a long path",
        "a long header",
        "many headers",
        "no host",
        "no path",
        "TLS",
    ],
)
def test_what_is_no_http_gets_our_error_and_names_no_library(
    web: InProcess, content: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    with ExitStack() as stack:
        one = connected(web, stack)
        one.sendall(content + b"\r\n\r\n")
        got = told(one)
    assert (got.status, got.headers["Content-Type"], got.headers["Server"]) == (400, "application/json", "paramsync")
    assert got.error.startswith("request: expected HTTP/1.1")
    assert not caplog.records


def test_health_is_told_while_all_connections_are_busy(web: InProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("inferencer.protocols.http.connections._MOST", 4)
    monkeypatch.setattr("inferencer.protocols.http.connections._MORE", 2)
    with ExitStack() as stack:
        for _ in range(4):  # a request of each came, and its body does not
            connected(web, stack).sendall(
                b"POST /v1/models/plain:predict HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\n"
            )
        eventually(lambda: len(web.rest._connections._silent) == 0, lambda: "all of them to be read")
        for path, text in (("/healthz", "not serving yet: empty"), ("/v1/models/plain", "as many connections as")):
            got = call(web.rest_port, "GET", path)
            assert (got.status, text in got.error) == (503, True), got.error


@pytest.mark.parametrize("path", ["/metrics", "/v2/models/plain/stats"])
def test_the_supervisor_gets_few_questions_even_from_many_callers_that_leave(web: InProcess, path: str) -> None:
    asked, came = len(web.asked), web.rest._came
    web.counted.clear()
    with ExitStack() as stack:
        for _ in range(20):
            connected(web, stack).sendall(f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
        eventually(lambda: web.rest._came == came + 20, lambda: f"20 requests: {web.rest._came - came}")
    eventually(lambda: not len(web.rest._connections), lambda: "all callers to be gone")
    assert len(web.asked) == asked + 4
    web._loop.call_soon_threadsafe(web.counted.set)
    assert call(web.rest_port, "GET", "/metrics").status == 200
