"""Clients that break HTTP/2 or gRPC, or go to their limits, against a real server: others are answered meanwhile.

What each fault is answered with is decided, and tested case by case, in tests/http2 and in test_grpc_wire.
"""

from __future__ import annotations

import gzip
import random
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import grpc
import pytest
from tensorflow_serving.apis import predict_pb2

from paramsync.http2 import frames
from paramsync.http2.frames import (
    CONTINUATION,
    DATA,
    HEADERS,
    INITIAL_WINDOW_SIZE,
    PADDED,
    PREFACE,
    frame,
    window_update,
)
from paramsync.http2.hpack import encoded
from paramsync.v1 import sync_pb2
from tests.http2 import wire
from tests.http2.wire import data
from tests.support import http2_client as http2
from tests.support.echoes import Echoes
from tests.support.http2_client import PREDICT, Http2Client, literals, prefixed, request, request_fields, rst_stream
from tests.support.inferencers import LONG, Process, of_gated
from tests.support.programs import eventually
from tests.support.published import GATED_OPS, Gated, Publisher

pytestmark = pytest.mark.slow

MB = 1 << 20
PROTOCOL_ERROR, FLOW_CONTROL_ERROR, FRAME_SIZE_ERROR, REFUSED_STREAM, COMPRESSION_ERROR = 1, 3, 6, 7, 9
ENHANCE_YOUR_CALM = 11
OK, INVALID, DEADLINE, EXHAUSTED, UNIMPLEMENTED, INTERNAL = 0, 3, 4, 8, 12, 13
GROWTH = 256 * MB  # that any attack may cost, and allocators keep
STREAM = "/inference.GRPCInferenceService/ModelStreamInfer"


def repeated(count: int) -> predict_pb2.PredictRequest:
    """As many numbers, of which one is sent."""
    message = predict_pb2.PredictRequest(output_filter=["x"])
    message.model_spec.name, message.model_spec.signature_name = "m", "shaped"
    message.inputs["x"].dtype = 1
    message.inputs["x"].tensor_shape.dim.add(size=count)
    message.inputs["x"].float_val.append(1.0)
    return message


ASKED = repeated(2).SerializeToString()
OPEN = request(1, PREDICT)
REST = data(1, prefixed(ASKED), end=True)
BLOCK = literals(request_fields(PREDICT))


def memory(program: Process, what: str = "VmRSS") -> int:
    """Bytes of its worker."""
    lines = Path(f"/proc/{program.workers[0]}/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith(what)).split()[1]) * 1024


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
    """Another client calls all the while and afterwards, by the same worker, and memory comes back. Gives the port."""
    before, worker, over = memory(attacked), attacked.workers, threading.Event()

    def call() -> None:
        while True:
            answer = attacked.predict(repeated(2), timeout=LONG)
            assert list(answer.outputs["x"].float_val) == [1.0, 1.0]
            if over.is_set():
                return

    with ThreadPoolExecutor(1) as threads:
        calling = threads.submit(call)
        try:
            yield int(attacked.address.rpartition(":")[2])
        finally:
            over.set()
        calling.result()
    assert attacked.workers == worker
    eventually(lambda: memory(attacked) < before + GROWTH, lambda: f"{memory(attacked)} to be {before}")


def whole(content: bytes = ASKED, *, compressed: int = 0, **changes: str | None) -> bytes:
    """All of call 1, whose headers are the usual ones but for these."""
    message = prefixed(content, compressed=compressed)
    parts = [message[at : at + 16_000] for at in range(0, len(message), 16_000)]
    sent = [data(1, part, end=part is parts[-1]) for part in parts]
    return wire.headers(1, literals(request_fields(PREDICT, **changes))) + b"".join(sent)


def called(client: Http2Client, stream: int) -> None:
    """The client still gets what it asks properly."""
    client.send(request(stream, PREDICT) + data(stream, prefixed(ASKED), end=True))
    response = client.response(stream)
    assert (response.status, len(response.messages)) == (OK, 1), (response, client.code, client.text)


# Faults ---------------------------------------------------------------------------------------------------------------

BREAKING = {
    "DATA of a stream that did not begin": (data(5, b"x"), PROTOCOL_ERROR),
    "a frame of 16 MB": (b"\xff\xff\xff" + frame(DATA, 0, 1, b"")[3:], FRAME_SIZE_ERROR),
    "a window of more than 2^31": (window_update(0, 2**31 - 1) * 2, FLOW_CONTROL_ERROR),
    "a Huffman code that is none": (wire.headers(1, b"\x00\x84\xff\xff\xff\xff\x01a"), COMPRESSION_ERROR),
    "headers of many frames": (frame(HEADERS, 0, 1, BLOCK) + frame(CONTINUATION, 0, 1, b"") * 100, ENHANCE_YOUR_CALM),
    "headers that unfold to 62 MB": (
        wire.headers(1, BLOCK + b"\x40" + encoded(b"x", b"y" * 3900)[1:] + b"\xbe" * 16_000),
        ENHANCE_YOUR_CALM,
    ),
}
BAD_STREAMS = {
    "no path": (wire.headers(1, literals(request_fields(PREDICT, _path=None))), PROTOCOL_ERROR),
    "an end of line in a value": (request(1, PREDICT, a="b\r\nc: d"), PROTOCOL_ERROR),
    "more content than content-length": (request(1, PREDICT, content_length="3") + REST, PROTOCOL_ERROR),
    "a window of more than 2^31": (OPEN + window_update(1, 2**31 - 1) * 2, FLOW_CONTROL_ERROR),
}
CALLS = {
    "no such method": (request(1, "/" + "a" * 10_000, end=True), UNIMPLEMENTED),
    "no message": (request(1, PREDICT, end=True), INVALID),
    "a message that is no protobuf": (whole(b"\xff" * 50), INVALID),
    "a message too long to come": (OPEN + data(1, prefixed(b"", size=2**32 - 1)), EXHAUSTED),
    "less message than its length": (OPEN + data(1, prefixed(ASKED, size=len(ASKED) + 1), end=True), INVALID),
    "two messages": (OPEN + data(1, prefixed(ASKED) * 2, end=True), INVALID),
    "3,000 messages": (OPEN + data(1, prefixed(b"") * 3000), INVALID),
    "gzip that is cut": (whole(gzip.compress(ASKED)[:-9], compressed=1, grpc_encoding="gzip"), INVALID),
    "gzip of 65 MB": (whole(gzip.compress(bytes(65 * MB)), compressed=1, grpc_encoding="gzip"), EXHAUSTED),
    "a time that is over": (request(1, PREDICT, grpc_timeout="0n"), DEADLINE),
    "headers of 20 KB": (whole(a="b" * 20_000), EXHAUSTED),
}


def test_what_breaks_a_connection_ends_it_with_its_code(attacked: Process) -> None:
    found = {}
    with others_are_answered(attacked) as port:
        for name, (content, _) in BREAKING.items():
            with Http2Client(port) as client:
                client.send(content)
                found[name] = client.closed()
    assert found == {name: code for name, (_, code) in BREAKING.items()}


def test_what_breaks_a_stream_ends_that_stream_alone(attacked: Process) -> None:
    found = {}
    with others_are_answered(attacked) as port:
        for name, (content, _) in BAD_STREAMS.items():
            with Http2Client(port) as client:
                client.send(content)
                found[name] = client.response(1).code
                called(client, 3)
    assert found == {name: code for name, (_, code) in BAD_STREAMS.items()}


def test_what_is_no_call_gets_a_status_and_the_connection_stays(attacked: Process) -> None:
    found = {}
    with others_are_answered(attacked) as port:
        for name, (content, _) in CALLS.items():
            with Http2Client(port) as client:
                client.send(content)
                response = client.response(1)
                found[name] = response.status
                assert response.fields.get(":status") == "200", name
                called(client, 3)
    assert found == {name: status for name, (_, status) in CALLS.items()}


def test_what_is_no_http2_is_shut_out_and_half_open_connections_keep_nobody_out(attacked: Process) -> None:
    with others_are_answered(attacked) as port:
        for content in (b"GET / HTTP/1.1\r\nHost: here\r\n\r\n", b"\x16\x03\x01\x02\x00" + bytes(506), bytes(100)):
            with Http2Client(port, preface=False) as client:
                client.send(content)
                assert client.closed() in (None, PROTOCOL_ERROR)
        clients = [Http2Client(port, preface=False) for _ in range(200)]
        for number, client in enumerate(clients):
            client.send(PREFACE[: number % len(PREFACE)])
            if number % 2:
                client.socket.shutdown(socket.SHUT_WR)
        for client in clients[1::2]:
            assert client.closed() in (None, PROTOCOL_ERROR)
        for client in clients:
            client.socket.close()


def test_thousands_of_bad_requests_leave_memory_as_it_was(attacked: Process) -> None:
    source = random.Random(1)
    http = int(attacked.http_address.rpartition(":")[2])

    def refused(path: str, content: bytes) -> None:
        with pytest.raises(grpc.RpcError):
            attacked.predictions.unary_unary(path, bytes, bytes)(content, timeout=LONG)

    def send(port: int, content: bytes) -> None:
        with socket.create_connection(("127.0.0.1", port), LONG) as connection:
            connection.sendall(content)

    def named() -> None:
        unknown = repeated(1)
        unknown.model_spec.name = f"nobody{source.randrange(10**9)}"
        refused(PREDICT, unknown.SerializeToString())

    head = b"POST /v1/models/m:predict HTTP/1.1\r\nHost: localhost\r\nContent-Length: 999\r\n\r\n"
    with others_are_answered(attacked) as port:
        kinds: list[Callable[[], None]] = [
            named,
            lambda: refused(PREDICT, b"\xff" + source.randbytes(300)),
            lambda: refused(f"/a/b{source.randrange(10**9)}", b""),
            lambda: send(port, PREFACE + frames.settings({}) + whole()[: source.randrange(300)]),
            lambda: send(port, source.randbytes(100)),
            lambda: send(http, head + b'{"ins'),
            lambda: attacked.predict.future(repeated(MB)).cancel(),
        ]
        for _ in range(500):
            source.choice(kinds)()
        before = memory(attacked)
        for _ in range(2000):
            source.choice(kinds)()
    eventually(lambda: memory(attacked) < before + 32 * MB, lambda: f"{memory(attacked)} to be {before}")


# What wears a server out ----------------------------------------------------------------------------------------------

FLOODS = {
    "PING": http2.ping(),
    "SETTINGS that move windows": frames.settings({INITIAL_WINDOW_SIZE: 1}) + frames.settings({INITIAL_WINDOW_SIZE: 9}),
    "DATA of padding": frame(DATA, PADDED, 1, b"\x03abc"),
}


@pytest.mark.parametrize("kind", FLOODS)
def test_a_flood_of_frames_that_carry_nothing_ends_its_connection(attacked: Process, kind: str) -> None:
    with others_are_answered(attacked) as port, Http2Client(port, window=1, connection_window=0) as client:
        client.send(request(1, STREAM))
        client.flood(FLOODS[kind] * 1000, 1000)
        assert client.closed() == ENHANCE_YOUR_CALM


@pytest.mark.parametrize("end", [rst_stream, lambda stream: window_update(stream, 0)], ids=["reset", "faulty"])
def test_calls_that_end_as_they_come_end_their_connection(attacked: Process, end: Callable[[int], bytes]) -> None:
    with others_are_answered(attacked) as port, Http2Client(port) as client:
        for first in range(1, 200_000, 200):
            calls = (request(stream, PREDICT) + end(stream) for stream in range(first, first + 200, 2))
            if client.flood(b"".join(calls), 1) is not None:
                break
        assert client.closed() == ENHANCE_YOUR_CALM


def test_of_two_thousand_calls_at_once_those_above_the_limit_are_refused_and_may_be_repeated(attacked: Process) -> None:
    streams = range(1, 4001, 2)
    with others_are_answered(attacked) as port, Http2Client(port) as client:
        client.send(b"".join(request(stream, PREDICT) for stream in streams))
        assert client.answers()
        most = client.settings[frames.MAX_CONCURRENT_STREAMS]
        client.send(b"".join(data(stream, prefixed(ASKED), end=True) for stream in streams))
        statuses = {client.response(stream).status for stream in streams[:most]}
        assert statuses <= {OK, EXHAUSTED}  # where others' calls are open, too, the oldest without a message ends
        assert {client.response(stream).code for stream in streams[most:]} <= {REFUSED_STREAM, None}
        called(client, 4001)


# Windows and messages -------------------------------------------------------------------------------------------------


def test_answers_wait_for_windows_and_come_whole(attacked: Process) -> None:
    content = repeated(MB // 4).SerializeToString()  # 1 MB back
    with others_are_answered(attacked) as port, Http2Client(port, window=0) as client:
        for stream in range(1, 41, 2):
            client.send(request(stream, PREDICT) + data(stream, prefixed(content), end=True))
        assert client.answers()
        assert not any(response.content for response in client.responses.values())
        client.send(frames.settings({INITIAL_WINDOW_SIZE: 2**31 - 5000}))
        for stream in range(1, 41, 2):
            response = client.response(stream)
            assert (response.status, len(response.messages[0])) == (OK, len(response.content) - 5)


def test_a_hundred_clients_that_never_read_large_answers_hold_up_nobody(attacked: Process) -> None:
    content = repeated(2 * MB).SerializeToString()  # 8 MB back
    before = memory(attacked)
    with others_are_answered(attacked) as port:
        clients = [Http2Client(port, window=1000, receive_buffer=4096) for _ in range(100)]
        for client in clients:
            client.send(OPEN + data(1, prefixed(content), end=True) + http2.ping() * 2000)
        eventually(lambda: memory(attacked) > before + 100 * MB, lambda: "answers that wait to be read")
        assert memory(attacked, "VmHWM") < before + 8 * 64 * MB * 3  # what waits, as numbers, as a message and as sent
        for client in clients:
            client.socket.close()


def test_small_messages_that_unfold_to_the_largest_take_no_more_memory_than_large_ones(attacked: Process) -> None:
    bomb = prefixed(gzip.compress(b"\x7a\x80\x80\x80\x0f" + bytes(30 * MB)), compressed=1)
    before = memory(attacked)
    Path(f"/proc/{attacked.workers[0]}/clear_refs").write_text("5")
    with others_are_answered(attacked) as port, Http2Client(port) as client:
        for stream in range(1, 51, 2):
            client.send(request(stream, PREDICT, grpc_encoding="gzip"))
            for at in range(0, len(bomb), 16_000):
                client.send(data(stream, bomb[at : at + 16_000], end=at + 16_000 >= len(bomb)))
        assert {client.response(stream).status for stream in range(1, 51, 2)} <= {INVALID, EXHAUSTED, INTERNAL}
    assert memory(attacked, "VmHWM") < before + 12 * 64 * MB


# Clients that leave ---------------------------------------------------------------------------------------------------


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


def test_calls_over_at_once_and_a_connection_torn_leave_nothing(attacked: Process) -> None:
    with others_are_answered(attacked) as port:
        for torn in range(30):
            with Http2Client(port) as client:
                client.send(b"".join(request(stream, PREDICT) for stream in range(1, 400, 2)))
                client.send(b"".join(data(stream, prefixed(ASKED), end=True) for stream in range(1, 400, 2)))
                if torn % 2:
                    client.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
