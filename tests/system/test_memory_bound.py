"""What docs/under-load.md says of memory, shown: clients that take as much as they can, and the kernel's own limit."""

from __future__ import annotations

import http.client
import socket
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path

import grpc
import numpy as np
import pytest
from tensorflow_serving.apis import predict_pb2

from paramsync.kserve import open_inference_pb2 as kserve_pb2
from paramsync.rpc import tensor_proto
from paramsync.v1 import sync_pb2
from tests.support import http2_client
from tests.support.confined import charged, confined, peak, peak_from_now
from tests.support.echoes import Echoes
from tests.support.http2_client import PREDICT, connected
from tests.support.inferencers import LONG, Process
from tests.support.programs import eventually

MB = 1 << 20
MOST = 64  # megabytes of --max-message-mb, as it is by itself
JSON = 15 * MB  # just below the cap on JSON bodies
WORKERS = 2
BOUND = (26 + 6 * WORKERS) * MOST * MB + 128 * MB * WORKERS  # docs/under-load.md
KSERVE = "/inference.GRPCInferenceService"
AT_ONCE = 16
USED = 40  # connections that had calls
OPTIONS = [("grpc.max_send_message_length", -1), ("grpc.max_receive_message_length", -1),
           ("grpc.use_local_subchannel_pool", 1)]  # fmt: skip


def tfs(size: int) -> bytes:
    found = predict_pb2.PredictRequest(output_filter=["version"])
    found.model_spec.name, found.model_spec.signature_name = "m", "shaped"
    found.inputs["x"].ParseFromString(tensor_proto.from_array(np.zeros(size // 4, np.float32)).SerializeToString())
    return bytes(found.SerializeToString())


def kserve(size: int) -> bytes:
    found = kserve_pb2.ModelInferRequest(model_name="m", raw_input_contents=[bytes(size)])
    found.parameters["signature"].string_param = "shaped"
    found.inputs.add(name="x", datatype="FP32", shape=[size // 4])
    found.outputs.add(name="version")
    return bytes(found.SerializeToString())


def repeated(size: int) -> bytes:
    """A small one that is answered by so many bytes."""
    found = predict_pb2.PredictRequest(output_filter=["x"])
    found.model_spec.name, found.model_spec.signature_name = "m", "shaped"
    found.inputs["x"].dtype = 1
    found.inputs["x"].tensor_shape.dim.add(size=size // 4)
    found.inputs["x"].float_val.append(1.0)
    return bytes(found.SerializeToString())


class Attacked:
    def __init__(self, program: Process) -> None:
        self._program = program
        self.port, self.rest = (int(one.rpartition(":")[2]) for one in (program.address, program.http_address))

    def call(self, path: str, content: bytes) -> str:
        with grpc.insecure_channel(self._program.address, OPTIONS) as channel:
            try:
                channel.unary_unary(path, bytes, bytes)(content, timeout=2 * LONG)
            except grpc.RpcError as error:
                return str(error.code().name)
        return "OK"

    def stream(self, content: bytes) -> str:
        with grpc.insecure_channel(self._program.address, OPTIONS) as channel:
            method = channel.stream_stream(
                f"{KSERVE}/ModelStreamInfer", bytes, kserve_pb2.ModelStreamInferResponse.FromString
            )
            try:
                [answer] = method(iter([content]), timeout=2 * LONG)
            except grpc.RpcError as error:
                return str(error.code().name)
        return "RESOURCE_EXHAUSTED" if answer.error_message else "OK"

    def post(self, content: bytes) -> str:
        connection = http.client.HTTPConnection("127.0.0.1", self.rest, timeout=2 * LONG)
        try:
            connection.request("POST", "/v1/models/m:predict", content)
            return str(connection.getresponse().status)
        except OSError:  # refused while it was sent, and not read
            return "429"
        finally:
            connection.close()

    @contextmanager
    def slow_readers(self, content: bytes, count: int) -> Iterator[None]:
        """Callers that read a kilobyte of their answers, by both protocols."""
        clients = [connected(self.port, window=1000) for _ in range(count)]
        for client in clients:
            client.sendall(http2_client.request(1) + http2_client.message(1, content))
        body = b'{"signature_name": "shaped", "inputs": [%s]}' % b",".join([b"0.25"] * (len(content) // 5))
        for _ in range(count):
            client = socket.create_connection(("127.0.0.1", self.rest), LONG)
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            with suppress(OSError):
                client.sendall(
                    b"POST /v1/models/m:predict HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % len(body)
                )
                client.sendall(body)
            clients.append(client)
        yield
        for client in clients:
            client.close()


@pytest.fixture
def attacked(tmp_path: Path) -> Iterator[tuple[Process, Attacked]]:
    """A server of which nothing was said but what it serves."""
    echoes = Echoes(tmp_path / "m")
    echoes.publish(4)
    program = Process("--model", f"m={tmp_path / 'm'}", "--rest-port", "0", "--workers", str(WORKERS))
    program.connect()
    list(program.sync.Sync(sync_pb2.SyncRequest(), timeout=LONG))
    yield program, Attacked(program)
    program.close()
    echoes.close()


@pytest.mark.promise
@pytest.mark.slow
def test_any_mix_of_requests_takes_no_more_memory_than_is_said(attacked: tuple[Process, Attacked]) -> None:
    program, attack = attacked
    large = (MOST - 4) * MB
    for _ in range(20):
        assert attack.call(PREDICT, tfs(1000)) == "OK"
    contents = {"tfs": tfs(large), "kserve": kserve(large), "small": repeated(large)}
    lists = b'{"inputs": [%s]}' % b",".join([b"[]"] * (JSON // 3))
    numbers = b'{"signature_name": "summed", "inputs": [%s]}' % b",".join([b"1.5"] * (JSON // 4))
    pids = program.workers
    before = peak_from_now(*pids)
    kinds: list[Callable[[], str]] = [
        lambda: attack.call(PREDICT, contents["tfs"]),
        lambda: attack.call(f"{KSERVE}/ModelInfer", contents["kserve"]),
        lambda: attack.stream(contents["kserve"]),
        lambda: attack.post(lists),
        lambda: attack.post(numbers),
    ]
    found: list[Counter[str]] = []
    with confined(*pids, more=BOUND) as by, ThreadPoolExecutor(AT_ONCE) as threads:
        for kind in kinds:  # each by itself, then all together beside callers that do not read
            found.append(Counter(threads.map(lambda _, kind=kind: kind(), range(AT_ONCE))))
        assert found[-1]["200"], found  # of bodies whose numbers take most of the memory, one at a time is answered
        with attack.slow_readers(contents["small"], 15):
            calls = [threads.submit(kinds[at % len(kinds)]) for at in range(2 * AT_ONCE)]
            assert healthy(attack), "".join(program.lines[-20:])
            found.append(Counter(call.result() for call in calls))
        assert program.workers == pids, "".join(program.lines[-20:])
        taken = charged(by) if by else peak(*pids) - before
        assert taken <= BOUND, (taken, BOUND, found)
        eventually(lambda: attack.call(PREDICT, contents["tfs"]) == "OK", lambda: str(found))
        eventually(lambda: attack.call(f"{KSERVE}/ModelInfer", contents["kserve"]) == "OK", lambda: str(found))
    allowed = {"OK", "RESOURCE_EXHAUSTED", "UNAVAILABLE", "CANCELLED", "200", "400", "413", "429", "503", "504"}
    assert set().union(*found) <= allowed, found
    assert "Traceback" not in "".join(program.lines)
    print(f"{taken / MB:.0f} MB of {BOUND / MB:.0f} {by}", found)  # noqa: T201, with -s


def healthy(attack: Attacked) -> bool:
    connection = http.client.HTTPConnection("127.0.0.1", attack.rest, timeout=LONG)
    try:
        connection.request("GET", "/healthz")
        return connection.getresponse().status == 200
    except OSError:
        return False
    finally:
        connection.close()
