"""Clients that mean harm, against a real inferencer: others are answered, and memory comes back."""

from __future__ import annotations

import random
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import grpc
import pytest
from tensorflow_serving.apis import predict_pb2

from paramsync.v1 import sync_pb2 as pb
from tests.echoes import Echoes
from tests.frames import PREDICT, connected, headers, message
from tests.inferencers import LONG, Process
from tests.programs import eventually

MB = 1 << 20
SLACK = 200 * MB  # which allocators keep


@pytest.fixture
def program(tmp_path: Path) -> Iterator[Process]:
    """A server of model `m`, which gives back what it is given."""
    echoes = Echoes(tmp_path / "m")
    echoes.publish(4)
    program = Process("--model", f"m={tmp_path / 'm'}", "--rest-port", "0")
    program.connect()
    list(program.sync.Sync(pb.SyncRequest(), timeout=LONG))
    yield program
    program.close()
    echoes.close()


def repeated(count: int) -> predict_pb2.PredictRequest:
    """So many numbers, of which one is sent."""
    message = predict_pb2.PredictRequest(output_filter=["x"])
    message.model_spec.name, message.model_spec.signature_name = "m", "shaped"
    message.inputs["x"].dtype = 1
    message.inputs["x"].tensor_shape.dim.add(size=count)
    message.inputs["x"].float_val.append(1.0)
    return message


def memory(program: Process, what: str = "VmRSS") -> int:
    """In bytes."""
    lines = Path(f"/proc/{program.process.pid}/status").read_text().splitlines()
    return int(next(one for one in lines if one.startswith(what)).split()[1]) * 1024


def check_answered(program: Process) -> None:
    for count in range(1, 50):
        answer = program.predict(repeated(count), timeout=LONG)
        assert list(answer.outputs["x"].float_val) == [1.0] * count


@pytest.mark.slow
def test_a_hundred_clients_that_never_read_large_answers_hold_up_nobody(program: Process) -> None:
    check_answered(program)
    before = memory(program)
    port = int(program.address.rpartition(":")[2])
    content = repeated(2 * MB).SerializeToString()  # 8 MB back
    clients = [connected(port, window=1000) for _ in range(100)]
    for one in clients:
        one.sendall(headers(1) + message(1, content))
    eventually(lambda: memory(program) > before + 100 * MB, lambda: "answers that wait to be read")
    check_answered(program)
    assert memory(program, "VmHWM") < before + 8 * 64 * MB * 3  # what waits, as numbers, as a message and as sent
    for one in clients:
        one.close()
    eventually(lambda: memory(program) < before + SLACK, lambda: f"{memory(program)} to be {before}")
    check_answered(program)


BODIES = [b'{"instances":[[1]]}', b"{", b'{"x":1}', b"[1]"]


@pytest.mark.slow
def test_thousands_of_bad_requests_leave_memory_as_it_was(program: Process) -> None:
    source = random.Random(1)
    port, http = (int(one.rpartition(":")[2]) for one in (program.address, program.http_address))
    good = repeated(1).SerializeToString()

    def send(port: int, content: bytes, *, wait: bool) -> None:
        with socket.create_connection(("127.0.0.1", port), LONG) as one:
            one.sendall(content)
            while wait and one.recv(1 << 16):
                pass

    def call(path: str, content: bytes, timeout: float = LONG) -> None:
        with pytest.raises(grpc.RpcError):
            program.predictions.unary_unary(path, bytes, bytes)(content, timeout=timeout)

    def named() -> None:
        unknown = repeated(1)
        unknown.model_spec.name = f"nobody{source.randrange(10**9)}"
        call(PREDICT, unknown.SerializeToString())

    def torn() -> None:
        with connected(port) as one:
            one.sendall(headers(1) + message(1, good, most=source.randrange(len(good))))

    head = "POST /v1/models/m:predict HTTP/1.1\r\nHost: a\r\nConnection: close\r\nContent-Length: {}\r\n\r\n"

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
        lambda: program.predict.future(repeated(MB)).cancel(),
    ]
    for _ in range(500):
        source.choice(kinds)()
    check_answered(program)
    before = memory(program)
    for _ in range(2000):
        source.choice(kinds)()
    check_answered(program)
    eventually(lambda: memory(program) < before + 32 * MB, lambda: f"{memory(program)} to be {before}")
    assert "Traceback" not in "".join(program.lines)
