"""An emulation of TensorFlow Serving's way with versions: `python -m bench.peers.emulation FOLDER --port N`.

Once a second it looks for a SavedModel with a higher number, loads it beside the one that serves, warms it up, and then
serves it. TensorFlow Serving is written in C++ and answers faster than this: what it says of rates is not theirs.
"""

from __future__ import annotations

import argparse
import threading
from concurrent import futures
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import tensorflow as tf

from bench.served import PREDICT
from paramsync.rpc import tensor_proto
from paramsync.v1 import serving_pb2

_LOOK = 1.0  # seconds between two looks, the default of --file_system_poll_wait_seconds
_WARM_UPS = 5
_THREADS = 4


class Servable:
    """One SavedModel, warmed up."""

    def __init__(self, path: Path) -> None:
        self.version = int(path.name)
        self._model = tf.saved_model.load(str(path))
        self._function = self._model.signatures["serving_default"]
        [spec] = self._function.structured_input_signature[1].values()
        for _ in range(_WARM_UPS):
            self.predict(np.zeros([1, *spec.shape[1:]], spec.dtype.as_numpy_dtype))

    def predict(self, x: np.ndarray[Any, Any]) -> dict[str, np.ndarray[Any, Any]]:
        return {name: tensor.numpy() for name, tensor in self._function(x=tf.constant(x)).items()}


def serve(folder: Path, port: int) -> None:
    """Until the process is ended."""
    serving = Servable(_newest(folder))

    def answer(content: bytes, context: grpc.ServicerContext) -> bytes:
        servable = serving
        request = serving_pb2.PredictRequest.FromString(content)
        outputs = servable.predict(tensor_proto.to_arrays(request.inputs, "input")["x"])
        response = serving_pb2.PredictResponse(model_spec=request.model_spec)
        response.model_spec.version.value = servable.version
        for name, array in outputs.items():
            response.outputs[name].CopyFrom(tensor_proto.from_array(array))
        return response.SerializeToString()

    service, method = PREDICT.strip("/").split("/")
    server = grpc.server(futures.ThreadPoolExecutor(_THREADS))
    handler = grpc.unary_unary_rpc_method_handler(answer)
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, {method: handler}),))
    server.add_insecure_port(f"127.0.0.1:{port}")
    server.start()
    bell = threading.Event()
    while True:
        bell.wait(_LOOK)
        if int((path := _newest(folder)).name) > serving.version:
            serving = Servable(path)


def _newest(folder: Path) -> Path:
    return max((path for path in folder.iterdir() if path.name.isdecimal()), key=lambda path: int(path.name))


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.peers.emulation")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--port", type=int, required=True)
    told = parser.parse_args()
    serve(told.folder, told.port)


if __name__ == "__main__":
    main()
