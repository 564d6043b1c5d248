"""A server that a simple loop keeps up to date, as people write it: `python -m bench.loops KIND FOLDER ...`."""

from __future__ import annotations

import argparse
import sys
import threading
from collections.abc import Callable, Mapping
from concurrent import futures
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import tensorflow as tf

from bench import arrays
from bench.model import Model
from bench.served import say_ready
from paramsync.rpc import tensor_proto
from paramsync.v1 import serving_pb2

_PAUSE = 0.001  # seconds between two looks at the folder: most people's loops wait longer
_THREADS = 4


class SaverLoop:
    """Restores `latest_checkpoint` with `Saver.restore` into the serving session."""

    def __init__(self, folder: Path, shapes: list[tuple[int, int]]) -> None:
        v1 = tf.compat.v1
        self.version = 0
        self._folder = folder
        self._latest: str | None = None
        with tf.Graph().as_default() as graph:
            variables = [v1.get_variable(f"part_{at}", shape) for at, shape in enumerate(shapes)]
            self._x = v1.placeholder(tf.float32, [None])
            self._y = self._x * tf.add_n([variable[0, 0] for variable in variables])
            self._saver = v1.train.Saver()
            self._session = v1.Session(graph=graph)
            self._session.run(v1.global_variables_initializer())

    def look(self) -> None:
        """Restore the newest version, if it is new. Only one thread calls this."""
        latest = tf.train.latest_checkpoint(str(self._folder))
        if latest is not None and latest != self._latest:
            with self._session.graph.as_default():
                self._saver.restore(self._session, latest)
            self._latest = latest
            self.version = int(latest.rpartition("-")[2])

    def predict(self, x: np.ndarray) -> Mapping[str, np.ndarray]:
        return {"y": self._session.run(self._y, {self._x: x})}


class SavedModelLoop:
    """Loads the newest numbered SavedModel while the previous one serves."""

    def __init__(self, folder: Path, shapes: list[tuple[int, int]]) -> None:
        self.version = 0
        self._folder = folder
        self._serving: Any = Model([np.zeros((1, 1), np.float32)])  # answers until the first version is saved
        self.look()

    def look(self) -> None:
        """Load the newest version, if it is new. Only one thread calls this."""
        numbers = [int(path.name) for path in self._folder.iterdir() if path.name.isdecimal()]
        if numbers and max(numbers) > self.version:
            self._serving = tf.saved_model.load(str(self._folder / str(max(numbers))))
            self.version = max(numbers)

    def predict(self, x: np.ndarray) -> Mapping[str, np.ndarray]:
        if hasattr(self._serving, "serve"):  # an export of Keras takes rows
            return {"y": self._serving.serve(tf.constant(x.reshape(-1, 1))).numpy()}
        return {name: tensor.numpy() for name, tensor in self._serving(tf.constant(x)).items()}


_KINDS: dict[str, Callable[[Path, list[tuple[int, int]]], Any]] = {"saver": SaverLoop, "savedmodel": SavedModelLoop}


def _serve(loop: Any) -> None:
    """Answer, and look for the newest version again and again, until the process is ended."""

    def answer(content: bytes, context: grpc.ServicerContext) -> bytes:
        version = loop.version
        request = serving_pb2.PredictRequest.FromString(content)
        outputs = loop.predict(tensor_proto.to_arrays(request.inputs, "input")["x"])
        response = serving_pb2.PredictResponse(model_spec=request.model_spec)
        response.model_spec.version.value = version
        for name, array in outputs.items():
            response.outputs[name].CopyFrom(tensor_proto.from_array(array))
        return response.SerializeToString()

    server = grpc.server(futures.ThreadPoolExecutor(_THREADS))
    methods = {"Predict": grpc.unary_unary_rpc_method_handler(answer)}
    server.add_generic_rpc_handlers(
        (grpc.method_handlers_generic_handler("tensorflow.serving.PredictionService", methods),)
    )
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    say_ready("bench.loops", f"127.0.0.1:{port}")
    bell = threading.Event()
    while True:
        try:
            loop.look()
        except (tf.errors.OpError, OSError, ValueError) as error:  # removed while it was read: a newer version exists
            sys.stderr.write(f"bench.loops looks again: {error}\n")
        bell.wait(_PAUSE)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.loops")
    parser.add_argument("kind", choices=_KINDS)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--bytes", type=int, required=True)
    parser.add_argument("--tensors", type=int, required=True)
    given = parser.parse_args()
    _serve(_KINDS[given.kind](given.folder, arrays.shapes(given.bytes, given.tensors)))


if __name__ == "__main__":
    main()
