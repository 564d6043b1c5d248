"""The loops people write to keep a server up to date, as a server: `python -m bench.loops KIND FOLDER ...`."""

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
from bench.publishing import KINDS as NETWORKS
from bench.served import said_ready
from paramsync.rpc import tensor_proto
from paramsync.v1 import serving_pb2

_MANY_LOOKS = 0.001  # seconds between two, for a loop that is to lose no time by waiting
_THREADS = 4


class Loop:
    """What serves, and how the newest version is found and brought in. `look` belongs to one thread."""

    version = 0

    def look(self) -> None:
        raise NotImplementedError

    def predict(self, x: np.ndarray) -> Mapping[str, np.ndarray]:
        raise NotImplementedError


class SaverLoop(Loop):
    """`latest_checkpoint`, then `Saver.restore` into the session that serves."""

    def __init__(self, folder: Path, size: int, tensors: int) -> None:
        v1 = tf.compat.v1
        self._folder = folder
        self._latest: str | None = None
        with tf.Graph().as_default() as graph:
            variables = [v1.get_variable(f"part_{at}", shape) for at, shape in enumerate(arrays.shapes(size, tensors))]
            self._x = v1.placeholder(tf.float32, [None])
            self._y = self._x * tf.add_n([one[0, 0] for one in variables])
            self._saver = v1.train.Saver()
            self._session = v1.Session(graph=graph)
            self._session.run(v1.global_variables_initializer())

    def look(self) -> None:
        latest = tf.train.latest_checkpoint(str(self._folder))
        if latest is not None and latest != self._latest:
            with self._session.graph.as_default():
                self._saver.restore(self._session, latest)
            self._latest = latest
            self.version = int(latest.rpartition("-")[2])

    def predict(self, x: np.ndarray) -> Mapping[str, np.ndarray]:
        return {"y": self._session.run(self._y, {self._x: x})}


class AssignLoop(Loop):
    """`latest_checkpoint`, then every variable assigned while requests read them."""

    def __init__(self, folder: Path, size: int, tensors: int) -> None:
        self._folder = folder
        self._latest: str | None = None
        self._module = NETWORKS["embedding"](size)

    def look(self) -> None:
        latest = tf.train.latest_checkpoint(str(self._folder))
        if latest is not None and latest != self._latest:
            tf.train.Checkpoint(model=self._module).restore(latest).expect_partial()
            self._latest = latest
            self.version = int(latest.rpartition("-")[2])

    def predict(self, x: np.ndarray) -> Mapping[str, np.ndarray]:
        return {name: one.numpy() for name, one in self._module(tf.constant(x)).items()}


class SavedModelLoop(Loop):
    """The newest numbered SavedModel, loaded beside the one that serves."""

    def __init__(self, folder: Path, size: int, tensors: int) -> None:
        self._folder = folder
        self._serving: Any = Model([np.zeros((1, 1), np.float32)])  # until there is one
        self.look()

    def look(self) -> None:
        numbers = [int(one.name) for one in self._folder.iterdir() if one.name.isdecimal()]
        if numbers and max(numbers) > self.version:
            self._serving = tf.saved_model.load(str(self._folder / str(max(numbers))))
            self.version = max(numbers)

    def predict(self, x: np.ndarray) -> Mapping[str, np.ndarray]:
        if hasattr(self._serving, "serve"):  # what Keras exports takes rows
            return {"y": self._serving.serve(tf.constant(x.reshape(-1, 1))).numpy()}
        return {name: one.numpy() for name, one in self._serving(tf.constant(x)).items()}


KINDS: dict[str, Callable[[Path, int, int], Loop]] = {
    "saver": SaverLoop,
    "assign": AssignLoop,
    "savedmodel": SavedModelLoop,
}


def serve(loop: Loop, *, poll_seconds: float) -> None:
    """Answer, and look for the newest version each `poll_seconds`, until the process is ended."""

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
    said_ready("bench.loops", f"127.0.0.1:{port}")
    bell = threading.Event()
    trouble = ""
    while True:
        try:
            loop.look()
        except (tf.errors.OpError, OSError, ValueError) as error:  # removed while it was read: there is a newer one
            if str(error) != trouble:
                trouble = str(error)
                sys.stderr.write(f"bench.loops looks again: {trouble}\n")
        bell.wait(poll_seconds or _MANY_LOOKS)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.loops")
    parser.add_argument("kind", choices=KINDS)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--bytes", type=int, required=True)
    parser.add_argument("--tensors", type=int, default=2)
    parser.add_argument("--poll-seconds", type=float, default=0.0)
    found = parser.parse_args()
    serve(KINDS[found.kind](found.folder, found.bytes, found.tensors), poll_seconds=found.poll_seconds)


if __name__ == "__main__":
    main()
