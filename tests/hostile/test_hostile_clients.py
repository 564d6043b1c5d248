"""Clients that mean harm, against a real inferencer: others are answered, and memory comes back."""

from __future__ import annotations

import random
import socket
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
import pytest
from tensorflow_serving.apis import predict_pb2

from tests.support.frames import PREDICT, connected, headers, message, reset
from tests.support.inferencers import LONG, Process
from tests.support.programs import eventually

MB = 1 << 20
SLACK = 128 * MB  # which allocators keep; TensorFlow's own keeps 72 of them for what it computes


def repeated(count: int) -> predict_pb2.PredictRequest:
    """So many numbers, of which one is sent."""
    message = predict_pb2.PredictRequest(output_filter=["x"])
    message.model_spec.name, message.model_spec.signature_name = "m", "shaped"
    message.inputs["x"].dtype = 1
    message.inputs["x"].tensor_shape.dim.add(size=count)
    message.inputs["x"].float_val.append(1.0)
    return message


def memory(program: Process, what: str = "VmRSS") -> int:
    """Of its worker, in bytes."""
    lines = Path(f"/proc/{program.workers[0]}/status").read_text().splitlines()
    return int(next(one for one in lines if one.startswith(what)).split()[1]) * 1024


def check_answered(echoing: Process) -> None:
    for count in range(1, 50):
        answer = echoing.predict(repeated(count), timeout=LONG)
        assert list(answer.outputs["x"].float_val) == [1.0] * count


@pytest.mark.slow
def test_a_hundred_clients_that_never_read_large_answers_hold_up_nobody(echoing: Process) -> None:
    check_answered(echoing)
    before = memory(echoing)
    port = int(echoing.address.rpartition(":")[2])
    content = repeated(2 * MB).SerializeToString()  # 8 MB back
    clients = [connected(port, window=1000) for _ in range(100)]
    for one in clients:
        one.sendall(headers(1) + message(1, content))
    eventually(lambda: memory(echoing) > before + 100 * MB, lambda: "answers that wait to be read")
    check_answered(echoing)
    assert memory(echoing, "VmHWM") < before + 8 * 64 * MB * 3  # what waits, as numbers, as a message and as sent
    for one in clients:
        one.close()
    eventually(lambda: memory(echoing) < before + SLACK, lambda: f"{memory(echoing)} to be {before}")
    check_answered(echoing)


BODIES = [b'{"instances":[[1]]}', b"{", b'{"x":1}', b"[1]"]


@pytest.mark.slow
def test_thousands_of_bad_requests_leave_memory_as_it_was(echoing: Process) -> None:
    source = random.Random(1)
    port, http = (int(one.rpartition(":")[2]) for one in (echoing.address, echoing.http_address))
    good = repeated(1).SerializeToString()

    def send(port: int, content: bytes, *, wait: bool) -> None:
        with socket.create_connection(("127.0.0.1", port), LONG) as one:
            one.sendall(content)
            while wait and one.recv(1 << 16):
                pass

    def call(path: str, content: bytes, timeout: float = LONG) -> None:
        with pytest.raises(grpc.RpcError):
            echoing.predictions.unary_unary(path, bytes, bytes)(content, timeout=timeout)

    def named() -> None:
        unknown = repeated(1)
        unknown.model_spec.name = f"nobody{source.randrange(10**9)}"
        call(PREDICT, unknown.SerializeToString())

    def torn() -> None:
        with connected(port) as one:
            one.sendall(headers(1) + message(1, good, most=source.randrange(len(good))))

    head = "POST /v1/models/m:predict HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: {}\r\n\r\n"

    def http_bad() -> None:
        body = source.choice(BODIES)
        send(http, head.format(len(body)).encode() + body, wait=True)

    kinds: list[Callable[[], None]] = [
        named,
        torn,
        http_bad,
        lambda: call(PREDICT, b"\xff" + source.randbytes(300)),
        lambda: call(f"/a/b{source.randrange(10**9)}", b""),
        lambda: call(PREDICT, good[:-3] + b"\xff"),
        lambda: send(http, head.format(999).encode() + b'{"ins', wait=False),
        lambda: send(port, source.randbytes(100), wait=False),
        lambda: echoing.predict.future(repeated(MB)).cancel(),
    ]
    for _ in range(500):
        source.choice(kinds)()
    check_answered(echoing)
    before = memory(echoing)
    for _ in range(2000):
        source.choice(kinds)()
    check_answered(echoing)
    eventually(lambda: memory(echoing) < before + 32 * MB, lambda: f"{memory(echoing)} to be {before}")
    assert "Traceback" not in "".join(echoing.lines)


@pytest.mark.slow
def test_a_client_that_opens_and_resets_calls_delays_others_by_no_more_than_seconds(echoing: Process) -> None:
    check_answered(echoing)
    over = threading.Event()

    def attack() -> int:
        sent = 0
        with connected(int(echoing.address.rpartition(":")[2])) as client:
            client.settimeout(LONG)
            while not over.is_set():
                streams = range(2 * sent + 1, 2 * sent + 401, 2)
                client.sendall(b"".join(headers(one) + reset(one) for one in streams))
                sent += len(streams)
        return sent

    with ThreadPoolExecutor(1) as threads:
        attacking = threads.submit(attack)
        try:
            for _ in range(100):
                echoing.predict(repeated(1), timeout=5.0)
        finally:
            over.set()
        assert attacking.result() > 1000
    check_answered(echoing)
