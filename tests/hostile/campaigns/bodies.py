"""How long hostile requests hold a server's event loop: `python -m tests.hostile.campaigns.bodies [BYTES]`.

It ends with 1 where a kind of request holds it for more than 100 ms, by the median of its times.
"""

from __future__ import annotations

import asyncio
import base64
import gc
import json
import math
import statistics
import struct
import subprocess
import sys
import tempfile
import zlib
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
from tensorflow.core.example import example_pb2
from tensorflow.core.framework import tensor_pb2, tensor_shape_pb2
from tensorflow_serving.apis import (
    classification_pb2,
    get_model_metadata_pb2,
    inference_pb2,
    model_management_pb2,
    model_pb2,
    predict_pb2,
)

from paramsync.kserve import open_inference_pb2 as kserve_pb2
from paramsync.v1 import sync_pb2
from tests.support.hostile_bodies import KINDS, hostile

NONE = "no request"
_TICK = 0.001
MOST_SECONDS = 0.1  # JSON is parsed in one step: 10 ms for a MB of numbers, a few times that for tiny lists


def requests(size: int) -> dict[str, tuple[str, Callable[[], bytes], str]]:
    """The path, the body and the header that it needs, by what it is; each body of at most so many bytes."""
    plain, named = "/v1/models/plain:predict", "/v1/models/named:predict"
    found: dict[str, tuple[str, Callable[[], bytes], str]] = {NONE: ("/v1/models/none:predict", lambda: b"{}", "")}
    for kind in KINDS:
        found[kind] = (plain, partial(hostile, kind, size - 100), "")
        found[f"{kind}, as examples"] = ("/v1/models/plain:classify", partial(_examples, kind, size - 100), "")
    for kind in ("lists", "digits", "spaces", "keys, one twice"):
        found[f"{kind}, packed"] = (plain, partial(_packed, kind, size), "Content-Encoding: deflate")
    found["base64"] = (named, lambda: _base64(base64.b64encode(b"a" * (size // 2))), "")
    found["base64 in lines"] = (named, lambda: _base64(base64.encodebytes(b"a" * (size // 2))), "")
    found["a long answer"] = (named, lambda: _inputs([1], ["\n" * (size // 2 - 50)]), "")
    found["rows of strings"] = (named, lambda: _inputs([1] * (size // 12), ["ab"] * (size // 12)), "")
    found["answers"] = (plain, lambda: b'{"instances": [' + (b"[7,9]," * (size // 6 - 10))[:-1] + b"]}", "")
    found["a long signature"] = (
        plain,
        lambda: b'{"instances": [1], "signature_name": "' + b"a " * (size // 3) + b'"}',
        "",
    )
    return found | _kserve_requests(size)


def _kserve_requests(size: int) -> dict[str, tuple[str, Callable[[], bytes], str]]:
    """The same of KServe's protocol by HTTP."""
    plain, named = "/v2/models/plain/infer", "/v2/models/named/infer"
    one = {"name": "x", "datatype": "FP32", "shape": [1, 2], "data": [1, 2]}

    def body(**fields: Any) -> bytes:
        return json.dumps(fields, separators=(",", ":")).encode()

    def of_rows(count: int, **tensor: Any) -> bytes:
        return body(inputs=[{"name": "x", "datatype": "FP32", "shape": [count, 2], **tensor}])

    def of_strings(count: int) -> bytes:
        strings = {"name": "said", "datatype": "BYTES", "shape": [count], "data": ["ab"] * count}
        return body(inputs=[strings, {"name": "count", "datatype": "INT64", "shape": [count], "data": [1] * count}])

    rows = size // 16
    head = of_rows(rows, parameters={"binary_data_size": 8 * rows})
    length = f"Inference-Header-Content-Length: {len(head)}"
    return {
        "v2": (plain, lambda: of_rows(size // 6, data=[7] * (size // 6 * 2)), ""),
        "v2, rows": (plain, lambda: of_rows(size // 9, data=[[7, 9]] * (size // 9)), ""),
        "v2, strings": (named, lambda: of_strings(size // 12), ""),
        "v2, binary": (plain, lambda: head + np.ones(2 * rows, np.float32).tobytes(), length),
        "v2, binary answers": (
            plain,
            lambda: body(
                parameters={"binary_data_output": True}, inputs=[{**one, "shape": [rows, 2], "data": [1] * 2 * rows}]
            ),
            "",
        ),
        "v2, many inputs": (plain, lambda: body(inputs=[one] * (size // 64)), ""),
        "v2, no inputs": (plain, lambda: body(inputs=[{}] * (size // 4)), ""),
        "v2, many outputs": (plain, lambda: body(inputs=[one], outputs=[{"name": "y"}] * (size // 16)), ""),
        "v2, many parameters": (
            plain,
            lambda: body(inputs=[{**one, "parameters": {f"p{at}": 1 for at in range(size // 16)}}]),
            "",
        ),
        "v2, many dimensions": (plain, lambda: body(inputs=[{**one, "shape": [1] * (size // 3)}]), ""),
        "v2, a long id": (plain, lambda: body(id="\n" * (size // 3), inputs=[one]), ""),
        "v2, nothing that counts": (plain, lambda: body(inputs=[one], other=[[1, "a", {}]] * (size // 16)), ""),
        "v2, to load": (
            "/v2/repository/models/plain/load",
            lambda: body(parameters={f"p{at}": 1 for at in range(size // 16)}),
            "",
        ),
    }


def calls(size: int) -> dict[str, tuple[str, Callable[[], bytes]]]:
    """The same by gRPC: the method and the message."""
    count = size // 12
    floats = np.ones([count, 2], np.float32)
    service = "/tensorflow.serving.PredictionService"
    predict, classify = f"{service}/Predict", f"{service}/Classify"
    infer = "/inference.GRPCInferenceService/ModelInfer"
    sync = "/paramsync.v1.Sync"
    spec = model_pb2.ModelSpec(name="plain")
    tensor = tensor_pb2.TensorProto

    def predicted(name: str = "plain", **inputs: tensor_pb2.TensorProto) -> bytes:
        message = predict_pb2.PredictRequest(model_spec=model_pb2.ModelSpec(name=name), inputs=inputs)
        return bytes(message.SerializeToString())

    def shaped(*sizes: int, **values: Any) -> tensor_pb2.TensorProto:
        shape = tensor_shape_pb2.TensorShapeProto(
            dim=[tensor_shape_pb2.TensorShapeProto.Dim(size=one) for one in sizes]
        )
        return tensor(tensor_shape=shape, **values)

    def example(features: int) -> example_pb2.Example:
        found = example_pb2.Example()
        for at in range(features):
            found.features.feature[f"f{at}"].float_list.value.append(1.0)
        return found

    def classified(*examples: example_pb2.Example) -> bytes:
        found = classification_pb2.ClassificationRequest(model_spec=spec)
        found.input.example_list.examples.extend(examples)
        return bytes(found.SerializeToString())

    def inferred(**fields: Any) -> bytes:
        return bytes(kserve_pb2.ModelInferRequest(model_name="plain", **fields).SerializeToString())

    def described(*sizes: int, **contents: Any) -> kserve_pb2.ModelInferRequest.InferInputTensor:
        return kserve_pb2.ModelInferRequest.InferInputTensor(name="x", datatype="FP32", shape=sizes, **contents)

    unpacked = b"".join(b"\x2d\0\0\x80\x3f" for _ in range(count))  # of float_val, each with its tag

    def unpacked_tensor() -> bytes:
        body = shaped(count // 2, 2, dtype=1).SerializeToString() + unpacked
        entry = b"\x0a\x01x\x12" + _varint(len(body)) + body  # by hand: protobuf packs them
        head = predict_pb2.PredictRequest(model_spec=spec).SerializeToString()
        return bytes(head + b"\x12" + _varint(len(entry)) + entry)

    def configured() -> bytes:
        reloaded = model_management_pb2.ReloadConfigRequest()
        for at in range(size // 40):
            reloaded.config.model_config_list.config.add(name=f"m{at}", base_path="/nowhere")
        return bytes(reloaded.SerializeToString())

    return {
        NONE: (predict, lambda: predicted("none")),
        "tensor_content": (predict, lambda: predicted(x=shaped(count, 2, dtype=1, tensor_content=floats.tobytes()))),
        "float_val": (predict, lambda: predicted(x=shaped(count, 2, dtype=1, float_val=floats.reshape(-1)))),
        "float_val, not packed": (predict, unpacked_tensor),
        "strings": (
            predict,
            lambda: predicted(
                "named",
                count=shaped(1, dtype=9, int64_val=[1]),
                said=shaped(size // 5, dtype=7, string_val=[b"ab"] * (size // 5)),
            ),
        ),
        "many inputs": (predict, lambda: predicted(**{f"x{at}": tensor() for at in range(size // 16)})),
        "a long name": (predict, lambda: predicted("n" * (size - 20))),
        "many outputs": (
            predict,
            lambda: predict_pb2.PredictRequest(
                model_spec=spec, output_filter=[f"y{at}" for at in range(size // 10)]
            ).SerializeToString(),
        ),
        "dimensions": (predict, lambda: predicted(x=shaped(*[1] * (size // 6), dtype=1))),
        "one example of many features": (classify, lambda: classified(example(size // 32))),
        "many examples": (classify, lambda: classified(*[example(1)] * (size // 24))),
        "empty examples": (classify, lambda: classified(*[example_pb2.Example()] * (size // 3))),
        "regress many examples": (
            f"{service}/Regress",
            lambda: classified(*[example(1)] * (size // 24)),
        ),
        "many tasks": (
            f"{service}/MultiInference",
            lambda: inference_pb2.MultiInferenceRequest(
                tasks=[inference_pb2.InferenceTask(model_spec=spec, method_name="classify")] * (size // 32)
            ).SerializeToString(),
        ),
        "metadata fields": (
            f"{service}/GetModelMetadata",
            lambda: get_model_metadata_pb2.GetModelMetadataRequest(
                model_spec=spec, metadata_field=["signature_def"] * (size // 16)
            ).SerializeToString(),
        ),
        "a configuration of many models": ("/tensorflow.serving.ModelService/HandleReloadConfigRequest", configured),
        "raw": (infer, lambda: inferred(inputs=[described(count, 2)], raw_input_contents=[floats.tobytes()])),
        "contents": (
            infer,
            lambda: inferred(
                inputs=[described(count, 2, contents=kserve_pb2.InferTensorContents(fp32_contents=floats.reshape(-1)))]
            ),
        ),
        "many tensors": (infer, lambda: inferred(inputs=[described(1)] * (size // 16))),
        "many parameters": (
            infer,
            lambda: inferred(
                parameters={f"p{at}": kserve_pb2.InferParameter(bool_param=True) for at in range(size // 20)}
            ),
        ),
        "a stream": (
            infer.replace("ModelInfer", "ModelStreamInfer"),
            lambda: inferred(inputs=[described(count, 2)], raw_input_contents=[floats.tobytes()]),
        ),
        "a pin of a long name": (
            f"{sync}/Pin",
            lambda: sync_pb2.PinRequest(model="m" * (size - 20), version=1).SerializeToString(),
        ),
        "a long label": (
            f"{sync}/Label",
            lambda: sync_pb2.LabelRequest(model="plain", label="l" * (size - 40), version=4).SerializeToString(),
        ),
        "a sync of a long name": (
            f"{sync}/Sync",
            lambda: sync_pb2.SyncRequest(model="m" * (size - 20)).SerializeToString(),
        ),
    }


def _varint(number: int) -> bytes:
    found = b""
    while number > 127:
        found, number = found + bytes([number & 127 | 128]), number >> 7
    return found + bytes([number])


def _examples(kind: str, size: int) -> bytes:
    return hostile(kind, size).replace(b'"instances"', b'"examples"', 1)


def _packed(kind: str, size: int) -> bytes:
    return zlib.compress(hostile(kind, 64 * size))[:size]


def _base64(text: bytes) -> bytes:
    return _inputs([1], [{"b64": text.decode()}])


def _inputs(count: list[int], said: list[Any]) -> bytes:
    return json.dumps({"inputs": {"count": count, "said": said}}, separators=(",", ":")).encode()


class Longest:
    """The longest time between two ticks of an event loop, less the tick itself, and less what the machine's other
    processes took while the loop's thread was ready to run."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._last = perf_counter()
        self._delayed = math.inf  # until the first tick, which alone knows of its thread
        self.seconds = 0.0
        self._ended = False
        loop.call_soon_threadsafe(self._tick)

    def _tick(self) -> None:
        now, delayed = perf_counter(), _delayed()
        self.seconds = max(self.seconds, now - self._last - _TICK - max(0.0, delayed - self._delayed))
        self._last, self._delayed = now, delayed
        if not self._ended:
            self._loop.call_later(_TICK, self._tick)

    def close(self) -> None:
        self._ended = True

    def take(self) -> float:
        found, self.seconds = self.seconds, 0.0
        return found


def _delayed() -> float:
    """For how many seconds this thread has been ready and waited for a processor, all told; 0 where nobody counts."""
    with suppress(FileNotFoundError):
        return int(Path("/proc/thread-self/schedstat").read_text().split()[1]) / 1e9
    return 0.0


@contextmanager
def sender(script: str, *arguments: int) -> Iterator[Callable[[bytes, bytes], str]]:
    """Another process, so that what it does costs the server nothing. Sends a head and a body; returns the status."""
    command = [sys.executable, "-c", _READ + script, *map(str, arguments)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        pipe, answers = process.stdin, process.stdout

        def send(head: bytes, body: bytes) -> str:
            pipe.write(struct.pack("<qq", len(head), len(body)) + head + body)
            pipe.flush()
            return answers.readline().decode().strip()

        try:
            yield send
        finally:
            process.kill()


def holds(
    port: int, loop: asyncio.AbstractEventLoop, size: int, *, kinds: Collection[str] = (), times: int = 3
) -> dict[str, tuple[float, str]]:
    """For each kind of request by HTTP for how many seconds it held the loop, by the median, and its status.

    Among them is NONE, one to a model that there is none of: what is seen then comes from elsewhere.
    """
    found = {}
    with sender(_BY_HTTP, port) as send:
        for name, (path, made, header) in requests(size).items():
            if kinds and name not in (*kinds, NONE):
                continue
            body = made()
            assert len(body) <= size, name
            head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: {len(body)}\r\n"
            head += f"{header}\r\n" if header else ""
            found[name] = _held(loop, partial(send, head.encode() + b"\r\n", body), times)
    return found


def holds_by_grpc(
    ports: tuple[int, int], loop: asyncio.AbstractEventLoop, size: int, *, kinds: Collection[str] = (), times: int = 3
) -> dict[str, tuple[float, str]]:
    """The same by gRPC, at the ports for predictions and for control."""
    found = {}
    with sender(_BY_GRPC, *ports) as send:
        for name, (path, made) in calls(size).items():
            if kinds and name not in (*kinds, NONE):
                continue
            body = made()
            assert len(body) <= size, name
            found[name] = _held(loop, partial(send, path.encode(), body), times)
    return found


def _held(loop: asyncio.AbstractEventLoop, send: Callable[[], str], times: int) -> tuple[float, str]:
    longest, seconds, status = Longest(loop), [], ""
    for _ in range(times):
        longest.take()
        status = send()
        seconds.append(longest.take())
    longest.close()
    return statistics.median(seconds), status


_READ = """
import socket, struct, sys
def read():
    sizes = sys.stdin.buffer.read(16)
    if not sizes:
        sys.exit()
    return [sys.stdin.buffer.read(size) for size in struct.unpack("<qq", sizes)]
"""
_BY_HTTP = """
while True:
    head, body = read()
    with socket.create_connection(("127.0.0.1", int(sys.argv[1])), 60) as one:
        one.settimeout(60)
        one.sendall(head + body)
        parts = []
        while part := one.recv(1 << 20):
            parts.append(part)
    print(b"".join(parts).split(b" ", 2)[1].decode(), flush=True)
"""
_BY_GRPC = """
import grpc
predictions, control = (grpc.insecure_channel(f"127.0.0.1:{port}") for port in sys.argv[1:])
while True:
    path, body = read()
    channel = control if b"paramsync" in path else predictions
    try:
        channel.stream_stream(path.decode(), bytes, bytes)(iter([body]), timeout=60).next()
        code = "OK"
    except grpc.RpcError as error:
        code = error.code().name
    except StopIteration:
        code = "OK"
    print(code, flush=True)
"""


def main(size: int) -> int:
    from tests.support.http import small_limits

    sys.setswitchinterval(0.001)  # as the inferencer does
    with tempfile.TemporaryDirectory() as folder, small_limits(Path(folder), patience=60.0) as web:
        gc.freeze()  # and this
        found = holds(web.rest_port, web.loop, size)
        by_grpc = holds_by_grpc((web.port, web.control_port), web.loop, size)
        found |= {f"{name}, by gRPC": figures for name, figures in by_grpc.items()}
        for name, (seconds, status) in sorted(found.items(), key=lambda item: -item[1][0]):
            sys.stdout.write(f"{1000 * seconds:8.1f} ms  {status}  {name}\n")
    return int(any(seconds > MOST_SECONDS for seconds, _ in found.values()))


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]) if len(sys.argv) > 1 else 1 << 20))
