"""Every protocol by which predictions are asked for, behind one face, each by a client of its own kind."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, final

import grpc
import numpy as np
import tensorflow as tf
from tensorflow_serving.apis import predict_pb2

from paramsync.kserve import open_inference_pb2 as kserve
from tests.support.http import call
from tests.support.kserve import method
from tests.support.running import LONG, Running

_Array = np.ndarray[Any, Any]
_OF_HTTP = {
    400: "INVALID_ARGUMENT", 404: "NOT_FOUND", 413: "RESOURCE_EXHAUSTED", 429: "RESOURCE_EXHAUSTED",
    503: "UNAVAILABLE", 504: "DEADLINE_EXCEEDED",
}  # fmt: skip


@dataclass(frozen=True)
class Refused(Exception):
    code: str
    text: str


class Protocol(ABC):
    def __init__(self, running: Running) -> None:
        self._running = running

    @abstractmethod
    def ask(
        self, x: _Array, *, model: str = "m", name: str = "x", version: int | None = None, label: str = ""
    ) -> tuple[list[float], int]:
        """What `seen` holds, and the version that the answer names. Raises Refused."""

    @abstractmethod
    def nonsense(self) -> None:
        """Send what is no request. Raises Refused."""


def _called(function: Any, message: Any) -> Any:
    try:
        return function(message, timeout=LONG)
    except grpc.RpcError as error:
        raise Refused(error.code().name, error.details() or "") from error


@final
class TfServing(Protocol):
    """PredictionService of TensorFlow Serving."""

    def ask(
        self, x: _Array, *, model: str = "m", name: str = "x", version: int | None = None, label: str = ""
    ) -> tuple[list[float], int]:
        message = predict_pb2.PredictRequest()
        message.model_spec.name = model
        if version is not None:
            message.model_spec.version.value = version
        if label:
            message.model_spec.version_label = label
        message.inputs[name].CopyFrom(tf.make_tensor_proto(x))
        answer = _called(self._running.prediction_service.Predict, message)
        return list(answer.outputs["seen"].float_val), answer.model_spec.version.value

    def nonsense(self) -> None:
        _called(
            self._running.predictions.unary_unary("/tensorflow.serving.PredictionService/Predict", bytes, bytes),
            b"\xff\xff\xff",
        )


@final
class KServe(Protocol):
    """The Open Inference Protocol by gRPC. Labels go where versions do."""

    def ask(
        self, x: _Array, *, model: str = "m", name: str = "x", version: int | None = None, label: str = ""
    ) -> tuple[list[float], int]:
        asked = label or ("" if version is None else str(version))
        message = kserve.ModelInferRequest(model_name=model, model_version=asked, raw_input_contents=[x.tobytes()])
        datatype = {"float32": "FP32", "int64": "INT64"}[x.dtype.name]
        message.inputs.add(name=name, datatype=datatype, shape=x.shape)
        answer = _called(method(self._running, "ModelInfer"), message)
        (at,) = (at for at, output in enumerate(answer.outputs) if output.name == "seen")
        return np.frombuffer(answer.raw_output_contents[at], np.float32).tolist(), int(answer.model_version)

    def nonsense(self) -> None:
        _called(
            self._running.predictions.unary_unary("/inference.GRPCInferenceService/ModelInfer", bytes, bytes),
            b"\xff\xff\xff",
        )


@final
class KServeHttp(Protocol):
    """The Open Inference Protocol by HTTP, its tensors as JSON."""

    def _post(self, path: str, body: Any) -> Any:
        got = call(self._running.rest_port, "POST", path, body)
        if got.status != 200:
            raise Refused(_OF_HTTP[got.status], got.error)
        return got

    def ask(
        self, x: _Array, *, model: str = "m", name: str = "x", version: int | None = None, label: str = ""
    ) -> tuple[list[float], int]:
        asked = label or ("" if version is None else str(version))
        datatype = {"float32": "FP32", "int64": "INT64"}[x.dtype.name]
        tensor = {"name": name, "datatype": datatype, "shape": x.shape, "data": x.ravel().tolist()}
        got = self._post(f"/v2/models/{model}{f'/versions/{asked}' if asked else ''}/infer", {"inputs": [tensor]})
        [seen] = (output["data"] for output in got.json["outputs"] if output["name"] == "seen")
        return seen, int(got.json["model_version"])

    def nonsense(self) -> None:
        self._post("/v2/models/m/infer", b'{"inputs": [')


@final
class Rest(Protocol):
    """TensorFlow Serving's REST API. The version is in the headers."""

    def _post(self, path: str, body: Any) -> Any:
        got = call(self._running.rest_port, "POST", path, body)
        if got.status != 200:
            raise Refused(_OF_HTTP[got.status], got.error)
        return got

    def ask(
        self, x: _Array, *, model: str = "m", name: str = "x", version: int | None = None, label: str = ""
    ) -> tuple[list[float], int]:
        which = f"/labels/{label}" if label else "" if version is None else f"/versions/{version}"
        got = self._post(f"/v1/models/{model}{which}:predict", {"inputs": {name: x.tolist()}})
        return got.json["outputs"]["seen"], int(got.headers[VERSION_HEADER])

    def nonsense(self) -> None:
        self._post("/v1/models/m:predict", b'{"instances": [')


VERSION_HEADER = "Paramsync-Version"
PROTOCOLS: tuple[type[Protocol], ...] = (TfServing, KServe, KServeHttp, Rest)
