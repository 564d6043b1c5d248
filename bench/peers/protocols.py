"""How each system is asked, and what it answers: an array becomes a request that is ready, an answer an array."""

from __future__ import annotations

import abc
import base64
import json
import urllib.request
from pathlib import Path
from typing import Any, ClassVar

import grpc
import numpy as np
from google.protobuf.wrappers_pb2 import BytesValue

from bench.h2load import Target
from bench.served import MODEL, PREDICT, request
from paramsync.kserve import open_inference_pb2 as kserve
from paramsync.rpc import tensor_proto
from paramsync.v1 import serving_pb2

Array = np.ndarray[Any, Any]
_OPTIONS = (("grpc.enable_http_proxy", 0), ("grpc.use_local_subchannel_pool", 1))
_SECONDS = 10.0
_FRAME = 5  # bytes in front of a message of gRPC


class Protocol(abc.ABC):
    """One input `x`, one output `y`, a row for each row."""

    title: ClassVar[str]

    @abc.abstractmethod
    def target(self, address: str, x: Array, body: Path) -> Target:
        """What the load generator sends; `body` is the file for it. Asks once, to know how long answers are."""

    @abc.abstractmethod
    def ask(self, address: str, x: Array) -> Array:
        """Raises OSError or grpc.RpcError."""


class _Grpc(Protocol):
    method: ClassVar[str]

    @abc.abstractmethod
    def encode(self, x: Array) -> bytes: ...

    @abc.abstractmethod
    def decode(self, answer: bytes) -> Array: ...

    def target(self, address: str, x: Array, body: Path) -> Target:
        message = self.encode(x)
        return Target.grpc(address, self.method, message, body, answer=_FRAME + len(self._call(address, message)))

    def ask(self, address: str, x: Array) -> Array:
        return self.decode(self._call(address, self.encode(x)))

    def _call(self, address: str, message: bytes) -> bytes:
        with grpc.insecure_channel(address, options=_OPTIONS) as channel:
            answer: bytes = channel.unary_unary(self.method, bytes, bytes)(message, timeout=_SECONDS)
        return answer


class TfServing(_Grpc):
    title = "gRPC, TensorFlow Serving's Predict"
    method = PREDICT

    def encode(self, x: Array) -> bytes:
        return request({"x": x})

    def decode(self, answer: bytes) -> Array:
        outputs = serving_pb2.PredictResponse.FromString(answer).outputs
        return tensor_proto.to_arrays(outputs, "output")["y"]


class KServe(_Grpc):
    title = "gRPC, KServe's ModelInfer, raw contents"
    method = "/inference.GRPCInferenceService/ModelInfer"

    def encode(self, x: Array) -> bytes:
        message = kserve.ModelInferRequest(model_name=MODEL, raw_input_contents=[x.tobytes()])
        message.inputs.add(name="x", datatype="FP32" if x.dtype == np.float32 else "INT32", shape=x.shape)
        return bytes(message.SerializeToString())

    def decode(self, answer: bytes) -> Array:
        response = kserve.ModelInferResponse.FromString(answer)
        return np.frombuffer(response.raw_output_contents[0], np.float32).reshape(response.outputs[0].shape)


class KServeBytes(_Grpc):
    """Numbers one by one, which is how MLServer reads FP32, are slower."""

    title = "gRPC, KServe's ModelInfer, rows as BYTES"
    method = KServe.method

    def encode(self, x: Array) -> bytes:
        message = kserve.ModelInferRequest(model_name=MODEL)
        message.inputs.add(name="x", datatype="BYTES", shape=[1]).contents.bytes_contents.append(x.tobytes())
        return bytes(message.SerializeToString())

    def decode(self, answer: bytes) -> Array:
        [output] = kserve.ModelInferResponse.FromString(answer).outputs
        return np.frombuffer(output.contents.bytes_contents[0], np.float32).reshape(output.shape)


class Bytes(_Grpc):
    title = "gRPC, a method of its own, bytes to bytes"
    method = "/bench.Network/Predict"

    def encode(self, x: Array) -> bytes:
        return BytesValue(value=x.tobytes()).SerializeToString()

    def decode(self, answer: bytes) -> Array:
        return np.frombuffer(BytesValue.FromString(answer).value, np.float32)


class Json(Protocol):
    title = "HTTP/1.1, JSON with rows as base64"
    _path = "/predict"
    _headers: ClassVar = {"content-type": "application/json"}

    def target(self, address: str, x: Array, body: Path) -> Target:
        body.write_bytes(self._encode(x))
        return Target(f"http://{address}{self._path}", body, self._headers, answer=len(self._call(address, x)))

    def ask(self, address: str, x: Array) -> Array:
        return np.frombuffer(base64.b64decode(json.loads(self._call(address, x))["y"]), np.float32)

    def _encode(self, x: Array) -> bytes:
        return json.dumps({"x": base64.b64encode(x.tobytes()).decode()}).encode()

    def _call(self, address: str, x: Array) -> bytes:
        asked = urllib.request.Request(f"http://{address}{self._path}", self._encode(x), self._headers)
        with urllib.request.urlopen(asked, timeout=_SECONDS) as answer:
            content: bytes = answer.read()
        return content
