"""Clients that break HTTP/2 or gRPC, or go to their limits: each gets what they say, and others are answered."""

from __future__ import annotations

import gzip
import socket
import statistics
import struct
import threading
import time
import zlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import unquote

import pytest
from grpc_health.v1 import health_pb2

from paramsync.v1 import sync_pb2
from tests.hostile.test_hostile_clients import memory, repeated
from tests.support import http2_client as http2
from tests.support.echoes import Echoes
from tests.support.frames import PREDICT, frame
from tests.support.http2_client import (
    CONTINUATION,
    DATA,
    END_HEADERS,
    END_STREAM,
    HEADERS,
    INITIAL_WINDOW_SIZE,
    PADDED,
    PREFACE,
    PRIORITY,
    RST_STREAM,
    SETTINGS,
    WINDOW_UPDATE,
    Http2Client,
    data,
    literals,
    prefixed,
    request,
    request_fields,
    rst_stream,
    window_update,
)  # fmt: skip
from tests.support.inferencers import LONG, Process, of_gated
from tests.support.programs import eventually
from tests.support.published import GATED_OPS, Gated, Publisher

pytestmark = pytest.mark.slow

MB = 1 << 20
NO_ERROR, PROTOCOL_ERROR, INTERNAL_ERROR, FLOW_CONTROL_ERROR = 0, 1, 2, 3
STREAM_CLOSED, FRAME_SIZE_ERROR, REFUSED_STREAM, CANCEL, COMPRESSION_ERROR = 5, 6, 7, 8, 9
ENHANCE_YOUR_CALM = 11
OK, CANCELLED, UNKNOWN, INVALID, DEADLINE = 0, 1, 2, 3, 4
EXHAUSTED, UNIMPLEMENTED, INTERNAL, UNAVAILABLE = 8, 12, 13, 14
GROWTH = 256 * MB  # that any attack may cost, and allocators keep
SLOWER = 2000  # times: of a millisecond, seconds, as attackers are threads of this process
STREAM = "/inference.GRPCInferenceService/ModelStreamInfer"
FAULTS = {INVALID, INTERNAL, UNKNOWN}  # which of them gRPC leaves to the server
HEALTH = "/grpc.health.v1.Health/Check"
ASKED = repeated(2).SerializeToString()


@pytest.fixture(scope="module")
def attacked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Process]:
    """A server of `m`, which gives back what it is given, and of `slow`, which waits for a file."""
    folder = tmp_path_factory.mktemp("attacked")
    echoes, publisher = Echoes(folder / "m"), Publisher(folder / "slow")
    echoes.publish(4)
    publisher.publish(5, kind=Gated)
    models = (word for name in ("m", "slow") for word in ("--model", f"{name}={folder / name}"))
    allowed = (word for op in GATED_OPS for word in ("--allow-op", op))
    program = Process(*models, *allowed, "--rest-port", "0", "--workers", "1")
    program.connect()
    for name in ("m", "slow"):
        list(program.sync.Sync(sync_pb2.SyncRequest(model=name), timeout=LONG))
    for count in range(1, 50):
        program.predict(repeated(count), timeout=LONG)
    yield program
    program.close()
    echoes.close()
    publisher.close()
    assert "Traceback" not in "".join(program.lines)


@contextmanager
def others_are_answered(attacked: Process) -> Iterator[int]:
    """While within, and after, and memory does not grow for good. Gives the port."""
    port = int(attacked.address.rpartition(":")[2])
    before, worker = memory(attacked), attacked.workers
    usual = statistics.median(_seconds(attacked) for _ in range(20))
    over = threading.Event()

    def call() -> list[float]:
        seconds = [_seconds(attacked)]
        while not over.is_set() or len(seconds) < 3:
            seconds.append(_seconds(attacked))
        return seconds

    with ThreadPoolExecutor(1) as threads:
        calling = threads.submit(call)
        try:
            yield port
        finally:
            over.set()
        assert statistics.median(calling.result()) < SLOWER * usual
    assert attacked.workers == worker
    eventually(lambda: memory(attacked) < before + GROWTH, lambda: f"{memory(attacked)} to be {before}")
    _seconds(attacked)


def _seconds(attacked: Process) -> float:
    """Which a call of another client takes."""
    began = time.perf_counter()
    answer = attacked.predict(repeated(2), timeout=LONG)
    assert list(answer.outputs["x"].float_val) == [1.0, 1.0]
    return time.perf_counter() - began


def in_frames(stream: int, content: bytes, size: int = 16_000) -> bytes:
    """All that a call sends."""
    parts = [content[at : at + size] for at in range(0, len(content), size)]
    return b"".join([data(stream, part) for part in parts[:-1]]) + data(stream, parts[-1], end=True)


def whole(content: bytes = ASKED, *, compressed: int = 0, **changes: str | None) -> bytes:
    """All of call 1, whose headers are the usual ones but for these."""
    return http2.headers(1, literals(request_fields(PREDICT, **changes))) + in_frames(
        1, prefixed(content, compressed=compressed)
    )


def called(client: Http2Client, stream: int) -> None:
    """It still gets what it asks properly."""
    client.send(request(stream, PREDICT) + data(stream, prefixed(ASKED), end=True))
    response = client.response(stream)
    assert (response.status, len(response.messages)) == (OK, 1), (response, client.code, client.text)


# What ends a connection -----------------------------------------------------------------------------------------------

OPEN = request(1, PREDICT)
REST = data(1, prefixed(ASKED), end=True)
BLOCK = literals(request_fields(PREDICT))
BREAKING = {
    "DATA of no stream": (data(0, b"x"), {PROTOCOL_ERROR}),
    "DATA of a stream that did not begin": (data(5, b"x"), {PROTOCOL_ERROR, STREAM_CLOSED}),
    "HEADERS of no stream": (request(0, PREDICT), {PROTOCOL_ERROR}),
    "HEADERS of a stream of the server": (request(2, PREDICT), {PROTOCOL_ERROR}),
    "HEADERS of a number below one that was used": (
        request(5, HEALTH) + request(3, HEALTH), {PROTOCOL_ERROR, STREAM_CLOSED},
    ),
    "RST_STREAM of no stream": (rst_stream(0), {PROTOCOL_ERROR}),
    "RST_STREAM of a stream that did not begin": (rst_stream(9), {PROTOCOL_ERROR}),
    "RST_STREAM of three bytes": (OPEN + frame(RST_STREAM, 0, 1, b"abc"), {FRAME_SIZE_ERROR}),
    "SETTINGS of a stream": (frame(SETTINGS, 0, 1, b""), {PROTOCOL_ERROR}),
    "SETTINGS of five bytes": (frame(SETTINGS, 0, 0, b"12345"), {FRAME_SIZE_ERROR}),
    "an acknowledgement with content": (frame(SETTINGS, http2.ACK, 0, bytes(6)), {FRAME_SIZE_ERROR}),
    "a window of 2^31": (http2.settings({INITIAL_WINDOW_SIZE: 1 << 31}), {FLOW_CONTROL_ERROR}),
    "frames of 100 bytes": (http2.settings({http2.MAX_FRAME_SIZE: 100}), {PROTOCOL_ERROR}),
    "ENABLE_PUSH of 2": (http2.settings({http2.ENABLE_PUSH: 2}), {PROTOCOL_ERROR}),
    "PUSH_PROMISE": (OPEN + frame(http2.PUSH_PROMISE, END_HEADERS, 1, bytes(4) + BLOCK), {PROTOCOL_ERROR}),
    "PING of seven bytes": (http2.ping(b"1234567"), {FRAME_SIZE_ERROR}),
    "PING of a stream": (frame(http2.PING, 0, 1, bytes(8)), {PROTOCOL_ERROR}),
    "GOAWAY of a stream": (frame(http2.GOAWAY, 0, 1, bytes(8)), {PROTOCOL_ERROR}),
    "WINDOW_UPDATE of three bytes": (frame(WINDOW_UPDATE, 0, 0, b"abc"), {FRAME_SIZE_ERROR}),
    "WINDOW_UPDATE of nothing": (window_update(0, 0), {PROTOCOL_ERROR}),
    "a window of more than 2^31": (window_update(0, 2**31 - 1) * 2, {FLOW_CONTROL_ERROR}),
    "CONTINUATION of nothing": (frame(CONTINUATION, END_HEADERS, 1, BLOCK), {PROTOCOL_ERROR}),
    "another frame within headers": (frame(HEADERS, 0, 1, BLOCK) + http2.ping(), {PROTOCOL_ERROR}),
    "CONTINUATION of another stream": (
        frame(HEADERS, 0, 1, BLOCK[:9]) + frame(CONTINUATION, END_HEADERS, 3, BLOCK[9:]), {PROTOCOL_ERROR},
    ),
    "a frame of 16 MB": (b"\xff\xff\xff" + frame(DATA, 0, 1)[3:], {FRAME_SIZE_ERROR}),
    "more padding than frame": (OPEN + frame(DATA, PADDED, 1, b"\xffabc"), {PROTOCOL_ERROR}),
    "more padding than headers": (frame(HEADERS, PADDED | END_HEADERS, 1, b"\xff" + BLOCK[:9]), {PROTOCOL_ERROR}),
    "an index that no table has": (http2.headers(1, b"\xff\xff\x0f"), {COMPRESSION_ERROR}),
    "an integer without an end": (http2.headers(1, b"\x7f" + b"\xff" * 10_000), {COMPRESSION_ERROR}),
    "a Huffman code that is none": (http2.headers(1, b"\x00\x84\xff\xff\xff\xff\x01a"), {COMPRESSION_ERROR}),
    "a table larger than was allowed": (http2.headers(1, http2.integer(1 << 20, 5, 0x20) + BLOCK), {COMPRESSION_ERROR}),
    "a change of the table behind a field": (http2.headers(1, BLOCK + b"\x20"), {COMPRESSION_ERROR}),
}  # fmt: skip


def test_what_breaks_a_connection_ends_it_with_its_code(attacked: Process) -> None:
    found = {}
    with others_are_answered(attacked) as port:
        for name, (content, _) in BREAKING.items():
            with Http2Client(port) as client:
                client.send(content)
                found[name] = client.closed()
    assert {name: code for name, code in found.items() if code not in BREAKING[name][1]} == {}


NO_HTTP2 = {
    "HTTP/1.1": b"GET / HTTP/1.1\r\nHost: here\r\n\r\n",
    "an upgrade": b"GET / HTTP/1.1\r\nHost: here\r\nConnection: Upgrade\r\nUpgrade: h2c\r\n\r\n",
    "zeros": bytes(100),
    "TLS": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(506),
    "a preface with one wrong byte": PREFACE[:-1] + b"x",
    "no SETTINGS": PREFACE + http2.ping(),
    "an acknowledgement in place of SETTINGS": PREFACE + frame(SETTINGS, http2.ACK, 0),
}


@pytest.mark.parametrize("kind", NO_HTTP2)
def test_what_is_no_http2_is_shut_out(attacked: Process, kind: str) -> None:
    with others_are_answered(attacked) as port, Http2Client(port, preface=False) as client:
        client.send(NO_HTTP2[kind])
        assert client.closed() in (None, PROTOCOL_ERROR)


def test_half_open_connections_and_halves_of_prefaces_keep_nobody_out(attacked: Process) -> None:
    with others_are_answered(attacked) as port:
        clients = [Http2Client(port, preface=False) for _ in range(200)]
        for number, client in enumerate(clients):
            client.send(PREFACE[: number % len(PREFACE)])
            if number % 2:
                client.socket.shutdown(socket.SHUT_WR)
        for client in clients[1::2]:
            assert client.closed() in (None, PROTOCOL_ERROR)
        for client in clients:
            client.socket.close()


# What ends a stream ---------------------------------------------------------------------------------------------------

BAD_STREAMS = {
    "no method": (http2.headers(1, literals(request_fields(PREDICT, _method=None))), {PROTOCOL_ERROR}),
    "no scheme": (http2.headers(1, literals(request_fields(PREDICT, _scheme=None))), {PROTOCOL_ERROR}),
    "no path": (http2.headers(1, literals(request_fields(PREDICT, _path=None))), {PROTOCOL_ERROR}),
    "an empty path": (request(1, ""), {PROTOCOL_ERROR}),
    "two paths": (http2.headers(1, literals([(":path", "/a"), *request_fields(PREDICT)])), {PROTOCOL_ERROR}),
    "a late pseudo-header": (
        http2.headers(1, literals([*request_fields(PREDICT, _path=None), (":path", PREDICT)])), {PROTOCOL_ERROR},
    ),
    "a pseudo-header of responses": (
        http2.headers(1, literals([(":status", "200"), *request_fields(PREDICT)])), {PROTOCOL_ERROR},
    ),
    "an upper-case name": (http2.headers(1, literals([*request_fields(PREDICT), ("Te", "x")])), {PROTOCOL_ERROR}),
    "a field of connections": (request(1, PREDICT, connection="close"), {PROTOCOL_ERROR}),
    "te: gzip": (request(1, PREDICT, te="gzip"), {PROTOCOL_ERROR}),
    "an end of line in a value": (request(1, PREDICT, a="b\r\nc: d"), {PROTOCOL_ERROR}),
    "less content than content-length": (
        request(1, PREDICT, content_length="900") + data(1, prefixed(b""), end=True), {PROTOCOL_ERROR},
    ),
    "more content than content-length": (
        request(1, PREDICT, content_length="3") + data(1, prefixed(ASKED)), {PROTOCOL_ERROR},
    ),
    "content-length of letters": (request(1, PREDICT, content_length="many"), {PROTOCOL_ERROR}),
    "a window of nothing more": (OPEN + window_update(1, 0), {PROTOCOL_ERROR}),
    "a window of more than 2^31": (OPEN + window_update(1, 2**31 - 1) * 2, {FLOW_CONTROL_ERROR}),
    "trailers that are not the end": (OPEN + http2.headers(1, literals([("a", "b")])), {PROTOCOL_ERROR}),
    "a pseudo-header as a trailer": (OPEN + http2.headers(1, literals([(":path", "/")]), end=True), {PROTOCOL_ERROR}),
}  # fmt: skip


def test_what_breaks_a_stream_ends_that_stream_alone(attacked: Process) -> None:
    found = {}
    with others_are_answered(attacked) as port:
        for name, (content, _) in BAD_STREAMS.items():
            with Http2Client(port) as client:
                client.send(content)
                found[name] = client.response(1).code
                called(client, 3)
    assert {name: code for name, code in found.items() if code not in BAD_STREAMS[name][1]} == {}


def test_more_content_than_the_windows_allow_is_an_error_of_flow_control(attacked: Process) -> None:
    unread = request(1, STREAM) + data(1, prefixed(b"", size=60 * MB))  # only what a call takes up is made up for
    with others_are_answered(attacked) as port, Http2Client(port) as client:
        client.send(unread)
        client.flood(data(1, bytes(16_000)) * 10, 1000)
        assert FLOW_CONTROL_ERROR in (client.response(1).code, client.code)


# What gRPC refuses ----------------------------------------------------------------------------------------------------

CALLS = {
    "no such service": (request(1, "/none.Service/Method", end=True), {UNIMPLEMENTED}),
    "no such method": (request(1, "/tensorflow.serving.PredictionService/Nothing", end=True), {UNIMPLEMENTED}),
    "a path of 10 KB": (request(1, "/" + "a" * 10_000, end=True), {UNIMPLEMENTED}),
    "a path that is none": (request(1, "nothing", end=True), {UNIMPLEMENTED}),
    "no message": (request(1, PREDICT, end=True), {INVALID, INTERNAL, UNIMPLEMENTED}),
    "an empty message": (whole(b""), {INVALID}),
    "a message that is no protobuf": (whole(b"\xff" * 50), {INVALID}),
    "a message too long to come": (OPEN + data(1, prefixed(b"", size=2**32 - 1)), {EXHAUSTED}),
    "less message than its length": (OPEN + data(1, prefixed(ASKED, size=len(ASKED) + 1), end=True), FAULTS),
    "a length cut in two": (OPEN + data(1, b"\0\0\0", end=True), FAULTS),
    "a flag of 7": (whole(compressed=7), FAULTS),
    "compressed without an encoding": (whole(gzip.compress(ASKED), compressed=1), FAULTS),
    "an unknown encoding": (whole(b"a", compressed=1, grpc_encoding="lz4"), {UNIMPLEMENTED}),
    "gzip that is none": (
        whole(b"not gzip", compressed=1, grpc_encoding="gzip"), FAULTS,
    ),
    "gzip that is cut": (
        whole(gzip.compress(ASKED)[:-9], compressed=1, grpc_encoding="gzip"),
        FAULTS,
    ),
    "gzip of 65 MB": (
        whole(gzip.compress(bytes(65 * MB)), compressed=1, grpc_encoding="gzip"),
        {EXHAUSTED},
    ),
    "a time of -1": (whole(grpc_timeout="-1S"), FAULTS),
    "a time of nine digits": (whole(grpc_timeout="123456789S"), FAULTS),
    "a time without a unit": (whole(grpc_timeout="1"), FAULTS),
    "a time that is over": (request(1, PREDICT, grpc_timeout="0n"), {DEADLINE}),
    "metadata that is no base64": (whole(a_bin="?!"), FAULTS),
    "headers of 20 KB": (whole(a="b" * 20_000), {EXHAUSTED}),
}  # fmt: skip


def test_what_is_no_call_gets_a_status_and_the_connection_stays(attacked: Process) -> None:
    found = {}
    with others_are_answered(attacked) as port:
        for name, (content, _) in CALLS.items():
            with Http2Client(port) as client:
                client.send(content)
                response = client.response(1)
                found[name] = response.status
                assert response.fields.get(":status") == "200", name
                assert response.code in (None, NO_ERROR), name
                called(client, 3)
    assert {name: status for name, status in found.items() if status not in CALLS[name][1]} == {}


FINE = {
    "metadata in base64": whole(a_bin="AAEC", b_bin="AAE,AAEC", c="d"),
    "a type with a format": whole(content_type="application/grpc+proto"),
    "the longest time": whole(grpc_timeout="99999999H"),
    "gzip": whole(gzip.compress(ASKED), compressed=1, grpc_encoding="gzip"),
    "deflate": whole(zlib.compress(ASKED), compressed=1, grpc_encoding="deflate"),
    "plain beside an encoding": whole(grpc_encoding="gzip"),
    "trailers": OPEN + data(1, prefixed(ASKED)) + http2.headers(1, literals([("a", "b")]), end=True),
    "empty DATA at the end": OPEN + data(1, prefixed(ASKED)) + data(1, b"", end=True),
    "padding": OPEN + frame(DATA, PADDED | END_STREAM, 1, b"\x07" + prefixed(ASKED) + bytes(7)),
    "a priority in headers": frame(HEADERS, END_HEADERS | 0x20, 1, b"\0\0\0\0\x10" + BLOCK) + REST,
    "headers in pieces of a byte": b"".join(
        [frame(HEADERS, 0, 1, b""), *(frame(CONTINUATION, 0, 1, BLOCK[at : at + 7]) for at in range(0, len(BLOCK), 7)),
         frame(CONTINUATION, END_HEADERS, 1), data(1, prefixed(ASKED), end=True)]
    ),
    "a name of Huffman's code": http2.headers(1, BLOCK + b"\x00\x88\x25\xa8\x49\xe9\x5b\xa9\x7d\x7f\x01v") + REST,
    "frames of unknown kinds": frame(77, 255, 0, b"?") + OPEN + frame(78, 0, 1, b"?") + REST,
    "an unknown setting": http2.settings({0x99: 1}) + OPEN + REST,
    "a field without a name of HTTP": whole(a="ü"),
}  # fmt: skip


def test_what_is_unusual_and_allowed_is_answered(attacked: Process) -> None:
    found = {}
    with others_are_answered(attacked) as port:
        for name, content in FINE.items():
            with Http2Client(port) as client:
                client.send(content)
                response = client.response(1)
                found[name] = (response.status, len(response.messages), client.code)
    assert {name: result for name, result in found.items() if result != (OK, 1, None)} == {}


@pytest.mark.parametrize(
    ("changes", "status"),
    [({"_method": "GET"}, "405"), ({"content_type": "text/html"}, "415"), ({"content_type": None}, "415"),
     ({"content_type": "application/grpc-web"}, "415")],
)  # fmt: skip
def test_what_is_http_and_no_grpc_gets_a_status_of_http(
    attacked: Process, changes: dict[str, str | None], status: str
) -> None:
    with others_are_answered(attacked) as port, Http2Client(port) as client:
        client.send(request(1, PREDICT, end=True, **changes))
        response = client.response(1)
        assert response.fields[":status"] == status or response.status in (UNIMPLEMENTED, INVALID, UNKNOWN)
        called(client, 3)


def test_the_text_of_a_status_is_ascii_and_percent_encoded(attacked: Process) -> None:
    unknown = repeated(1)
    unknown.model_spec.name = "näme\r\n 100%"
    with others_are_answered(attacked) as port, Http2Client(port) as client:
        client.send(OPEN + data(1, prefixed(unknown.SerializeToString()), end=True))
        text = client.response(1).fields["grpc-message"]
        assert text.isascii()
        assert text.isprintable()
        assert "%25" in text
        assert "näme" in unquote(text)


def test_content_of_calls_that_are_refused_is_made_up_for(attacked: Process) -> None:
    with others_are_answered(attacked) as port, Http2Client(port) as client:
        for stream in range(1, 101, 2):  # each with 1 MB, and the connection's window has 16
            path = PREDICT if stream % 4 == 1 else STREAM
            client.send(request(stream, path) + data(stream, prefixed(b"", size=2 * MB)))
            client.send(data(stream, bytes(16_000)) * 50 + data(stream, b"", end=True))
            assert client.response(stream).status in (INVALID, INTERNAL)
        called(client, 101)


# What wears a server out ----------------------------------------------------------------------------------------------

FLOODS = {
    "SETTINGS": http2.settings({INITIAL_WINDOW_SIZE: 65535}),
    "SETTINGS that move windows": http2.settings({INITIAL_WINDOW_SIZE: 1}) + http2.settings({INITIAL_WINDOW_SIZE: 9}),
    "PING": http2.ping(),
    "answers to no PING": frame(http2.PING, http2.ACK, 0, bytes(8)),
    "PRIORITY": frame(PRIORITY, 0, 1, b"\0\0\0\0\x10"),
    "WINDOW_UPDATE": window_update(1, 1),
    "WINDOW_UPDATE of the connection": window_update(0, 1),
    "empty DATA": data(1, b""),
    "DATA of a byte": data(1, b"\0"),
    "DATA of padding": frame(DATA, PADDED, 1, b"\x03abc"),
    "unknown frames": frame(99, 0, 1, b"abc"),
    "GOAWAY": http2.goaway(),
}


@pytest.mark.parametrize("kind", FLOODS)
def test_a_flood_of_frames_that_carry_nothing_ends_its_connection(attacked: Process, kind: str) -> None:
    with others_are_answered(attacked) as port, Http2Client(port, window=1, connection_window=0) as client:
        client.send(request(1, STREAM))
        client.flood(FLOODS[kind] * 1000, 1000)
        assert client.closed() == ENHANCE_YOUR_CALM


def test_calls_that_are_reset_as_they_come_end_their_connection(attacked: Process) -> None:
    with others_are_answered(attacked) as port, Http2Client(port) as client:
        for first in range(1, 200_000, 200):
            calls = (request(one, PREDICT) + rst_stream(one) for one in range(first, first + 200, 2))
            if client.flood(b"".join(calls), 1) is not None:
                break
        assert client.closed() == ENHANCE_YOUR_CALM


def test_calls_that_a_client_has_the_server_reset_end_their_connection(attacked: Process) -> None:
    with others_are_answered(attacked) as port, Http2Client(port) as client:
        for first in range(1, 200_000, 200):
            calls = (request(one, PREDICT) + window_update(one, 0) for one in range(first, first + 200, 2))
            if client.flood(b"".join(calls), 1) is not None:
                break
        assert client.closed() == ENHANCE_YOUR_CALM


@pytest.mark.parametrize("size", [0, 1, 1000])
def test_headers_that_go_on_for_ever_end_their_connection(attacked: Process, size: int) -> None:
    block = literals([("a", "b" * 5000)]) * 20
    with others_are_answered(attacked) as port, Http2Client(port) as client:
        client.send(frame(HEADERS, 0, 1, BLOCK))
        parts = [block[at : at + size] for at in range(0, size * 100, size)] if size else [b""] * 100
        client.flood(b"".join(frame(CONTINUATION, 0, 1, part) for part in parts), 100)
        assert client.closed() == ENHANCE_YOUR_CALM


def test_small_headers_that_unfold_to_much_end_their_connection(attacked: Process) -> None:
    entry = b"\x40" + http2.string(b"x") + http2.string(b"y" * 3900)
    block = BLOCK + entry + b"\xbe" * 16_000  # 62 MB
    with others_are_answered(attacked) as port:
        for _ in range(20):
            with Http2Client(port) as client:
                client.send(frame(HEADERS, END_HEADERS, 1, block))
                assert client.closed() in (ENHANCE_YOUR_CALM, COMPRESSION_ERROR)


def test_headers_that_change_the_table_each_time_are_answered(attacked: Process) -> None:
    with others_are_answered(attacked) as port, Http2Client(port) as client:
        for stream in range(1, 2001, 2):
            entry = b"\x40" + http2.string(b"x") + http2.string(str(stream).encode() * 500)
            client.send(http2.headers(stream, BLOCK + entry) + data(stream, prefixed(ASKED), end=True))
        assert {client.response(stream).status for stream in range(1, 2001, 2)} == {OK}


def test_of_two_thousand_calls_at_once_those_above_the_limit_are_refused_and_may_be_repeated(attacked: Process) -> None:
    streams = range(1, 4001, 2)
    with others_are_answered(attacked) as port, Http2Client(port) as client:
        client.send(b"".join(request(stream, PREDICT) for stream in streams))
        assert client.answers()
        most = client.settings[http2.MAX_CONCURRENT_STREAMS]
        client.send(b"".join(data(stream, prefixed(ASKED), end=True) for stream in streams))
        statuses = [client.response(stream).status for stream in streams[:most]]
        assert set(statuses) <= {OK, EXHAUSTED}  # where others' calls are open, too, the oldest without a message ends
        assert statuses.count(OK) > most // 2
        refused = [client.response(stream).code for stream in streams[most:]]
        assert set(refused) <= {REFUSED_STREAM, None}
        assert refused.count(REFUSED_STREAM) > len(refused) // 2
        called(client, 4001)


def test_answers_wait_for_windows_and_come_whole(attacked: Process) -> None:
    content = repeated(MB // 4).SerializeToString()  # 1 MB back
    with others_are_answered(attacked) as port, Http2Client(port, window=0) as client:
        for stream in range(1, 41, 2):
            client.send(request(stream, PREDICT) + data(stream, prefixed(content), end=True))
        assert client.answers()
        for stream in range(1, 41, 2):
            assert not client.responses.get(stream, http2.Response()).content
        client.send(http2.settings({INITIAL_WINDOW_SIZE: 100}))
        client.send(b"".join(window_update(stream, 1000) * 3 for stream in range(1, 41, 2)))
        client.send(http2.settings({INITIAL_WINDOW_SIZE: 2**31 - 5000}))
        for stream in range(1, 41, 2):
            response = client.response(stream)
            assert (response.status, len(response.messages[0])) == (OK, len(response.content) - 5)


def test_clients_that_read_nothing_at_all_hold_up_nobody(attacked: Process) -> None:
    content = repeated(MB).SerializeToString()
    with others_are_answered(attacked) as port:
        clients = [Http2Client(port, receive_buffer=4096) for _ in range(20)]
        for client in clients:
            for stream in range(1, 9, 2):
                client.send(request(stream, PREDICT) + data(stream, prefixed(content), end=True))
        for client in clients:
            client.send(http2.ping() * 2000)
        for client in clients:
            client.socket.close()


def test_answers_that_nobody_reads_take_no_memory_without_end(attacked: Process) -> None:
    path = "/tensorflow.serving.PredictionService/GetModelMetadata"
    asked = prefixed(b"\x0a\x03\x0a\x01m\x12\x0dsignature_def")
    before = memory(attacked)
    with others_are_answered(attacked) as port:
        clients = [Http2Client(port, window=0) for _ in range(20)]
        for client in clients:
            for stream in range(1, 2001, 2):
                client.send(request(stream, path) + data(stream, asked, end=True))
        for client in clients:
            client.answers()
        assert memory(attacked) < before + GROWTH
        for client in clients:
            client.socket.close()


# Messages that are odd ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [1, 2])
def test_a_message_in_frames_of_a_byte_or_two_is_answered(attacked: Process, size: int) -> None:
    unknown = b"\x82\x7d\xd0\x0f" + bytes(2000)  # a field
    content = prefixed(repeated(2).SerializeToString() + unknown)
    with others_are_answered(attacked) as port, Http2Client(port) as client:
        client.send(request(1, PREDICT))
        client.send(
            b"".join(data(1, content[at : at + size]) for at in range(0, len(content), size)) + data(1, b"", end=True)
        )
        assert client.response(1).status == OK, client.responses


def test_empty_messages_of_a_stream_are_each_answered(attacked: Process) -> None:
    with others_are_answered(attacked) as port, Http2Client(port) as client:
        client.send(request(1, STREAM))
        for _ in range(20):
            client.send(data(1, prefixed(b"") * 100))
        client.send(data(1, b"", end=True))
        response = client.response(1)
        assert (response.status, len(response.messages)) == (OK, 2000)


def test_of_a_call_with_one_message_a_second_one_is_refused(attacked: Process) -> None:
    with others_are_answered(attacked) as port, Http2Client(port) as client:
        client.send(OPEN + data(1, prefixed(ASKED)) + data(1, prefixed(ASKED), end=True))
        client.send(request(3, PREDICT) + data(3, prefixed(ASKED) + prefixed(b"") * 3000))
        client.send(request(5, PREDICT) + data(5, prefixed(ASKED)) + data(5, b"\0", end=True))
        responses = [client.response(stream) for stream in (1, 3, 5)]
        assert [(response.status, response.messages) for response in responses] == [(INVALID, [])] * 3
        called(client, 7)


def test_many_small_messages_that_unfold_to_the_largest_take_no_more_memory_than_large_ones(attacked: Process) -> None:
    bomb = prefixed(gzip.compress(b"\x7a\x80\x80\x80\x0f" + bytes(30 * MB)), compressed=1)
    before = memory(attacked)
    Path(f"/proc/{attacked.workers[0]}/clear_refs").write_text("5")
    with others_are_answered(attacked) as port, Http2Client(port) as client:
        for stream in range(1, 51, 2):
            client.send(request(stream, PREDICT, grpc_encoding="gzip"))
            for at in range(0, len(bomb), 16_000):
                client.send(data(stream, bomb[at : at + 16_000], end=at + 16_000 >= len(bomb)))
        statuses = {client.response(stream).status for stream in range(1, 51, 2)}
        assert statuses <= {INVALID, EXHAUSTED, INTERNAL}
    assert memory(attacked, "VmHWM") < before + 12 * 64 * MB


# Clients that leave ---------------------------------------------------------------------------------------------------


def test_a_client_that_goes_away_gets_the_answers_it_waits_for(attacked: Process) -> None:
    with others_are_answered(attacked) as port, Http2Client(port) as client:
        client.send(b"".join(request(stream, PREDICT) for stream in (1, 3, 5)) + http2.goaway())
        for stream in (1, 3, 5):
            client.send(data(stream, prefixed(ASKED), end=True))
        assert [client.response(stream).status for stream in (1, 3, 5)] == [OK] * 3


def test_a_call_that_is_reset_while_it_is_computed_ends_quietly(attacked: Process, tmp_path: Path) -> None:
    called_file, gate = tmp_path / "called", tmp_path / "gate"
    slow = of_gated(called_file, gate)
    slow.model_spec.name = "slow"
    content = prefixed(slow.SerializeToString())
    with others_are_answered(attacked) as port, Http2Client(port) as client:
        client.send(request(1, PREDICT) + data(1, content, end=True))
        eventually(called_file.exists, lambda: "the model to be called")
        client.send(rst_stream(1) + request(3, PREDICT) + data(3, content, end=True) + rst_stream(3))
        called(client, 5)
        gate.touch()
        client.send(request(7, PREDICT) + data(7, content, end=True))
        assert client.response(7).status == OK
        assert client.responses.get(1, http2.Response()).status is None


def test_what_comes_behind_a_message_is_refused_and_not_kept(attacked: Process) -> None:
    before = memory(attacked)
    with others_are_answered(attacked) as port, Http2Client(port) as client:
        for stream in range(1, 19, 2):
            client.send(request(stream, PREDICT) + data(stream, prefixed(ASKED)))
            client.send(data(stream, prefixed(b"", size=60 * MB)))
            for _ in range(3000):
                client.send(data(stream, bytes(16_000)))
        assert memory(attacked) < before + GROWTH  # of 430 MB
        assert {client.response(stream).status for stream in range(1, 19, 2)} == {INVALID}


def test_calls_over_at_once_and_a_connection_torn_leave_nothing(attacked: Process) -> None:
    with others_are_answered(attacked) as port:
        for torn in range(30):
            with Http2Client(port) as client:
                client.send(b"".join(request(stream, PREDICT) for stream in range(1, 400, 2)))
                client.send(b"".join(data(stream, prefixed(ASKED), end=True) for stream in range(1, 400, 2)))
                if torn % 2:
                    client.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    assert attacked.health.Check(health_pb2.HealthCheckRequest(), timeout=LONG).status == 1
