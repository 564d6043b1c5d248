"""A server as a process, and a fast client that shows which version answers."""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import grpc
import numpy as np

from paramsync.cli.programs import Child
from paramsync.errors import CallError
from paramsync.rpc import tensor_proto
from paramsync.v1 import serving_pb2

MODEL = "bench"
PREDICT = "/tensorflow.serving.PredictionService/Predict"
_PATIENCE = 120.0  # seconds for a start or an answer: importing TensorFlow and making the first graph take long
_END = 30.0
_AGAIN = 0.02
_BETWEEN_CALLS = 0.001  # seconds: a caller that never pauses takes processor time from the measured processes
OPTIONS = (
    ("grpc.enable_http_proxy", 0),
    ("grpc.max_receive_message_length", -1),
    ("grpc.use_local_subchannel_pool", 1),
)


class Served:
    """One process of `python -m PROGRAM`, which logs its addresses when it is ready. One thread owns it."""

    def __init__(self, program: str, arguments: Sequence[str], *, log: Path) -> None:
        self._child = Child(program, arguments, log=log)
        self.addresses = self._ready()
        self._channel = grpc.insecure_channel(self.addresses["predictions"], options=OPTIONS)
        self._predict = self._channel.unary_unary(PREDICT, bytes, bytes)

    @classmethod
    def inferencer(cls, store: Path, *arguments: str) -> Served:
        """Start an inferencer that serves this store."""
        ports = ("--port", "0", "--control-port", "0", "--rest-port", "0")
        log = store.with_name(f"{store.name}-{time.monotonic_ns()}.log")
        return cls("inferencer", ["--model", f"{MODEL}={store}", *ports, *arguments], log=log)

    @property
    def pid(self) -> int:
        return self._child.pid

    @property
    def family(self) -> list[int]:
        """The ids of the process and all its descendants."""
        pids = [self.pid]
        for pid in pids:
            for children in Path("/proc").glob(f"{pid}/task/*/children"):
                with contextlib.suppress(OSError):  # it has ended
                    pids += map(int, children.read_text().split())
        return pids

    def ask(self, request: bytes) -> serving_pb2.PredictResponse:
        """Send a request and return the answer. Raises grpc.RpcError."""
        return serving_pb2.PredictResponse.FromString(self._predict(request, timeout=_PATIENCE))

    def ask_until(self, request: bytes, version: int) -> None:
        """Ask again, a millisecond after each answer, until an answer comes from this version or a newer version."""
        deadline = time.monotonic() + _PATIENCE
        pause = threading.Event()
        while time.monotonic() < deadline and not self._child.ended:
            try:
                if self.ask(request).model_spec.version.value >= version:
                    return
                pause.wait(_BETWEEN_CALLS)
            except grpc.RpcError as error:
                if error.code() is not grpc.StatusCode.UNAVAILABLE:  # no version serves yet
                    raise
                pause.wait(_AGAIN)
        said = self._child.last_lines()
        raise CallError(f"version {version} was not served; the end of the server's log:\n{said}", "DEADLINE_EXCEEDED")

    def close(self) -> None:
        self._channel.close()
        self._child.end()
        self._child.wait(_END)

    def __enter__(self) -> Served:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _ready(self) -> Mapping[str, str]:
        deadline = time.monotonic() + _PATIENCE
        while time.monotonic() < deadline and not self._child.ended:
            if addresses := self._child.addresses():
                return addresses
            threading.Event().wait(_AGAIN)
        self._child.end()
        raise CallError(self._child.wait(_END) or f"{self._child.program} was not ready in time", "UNAVAILABLE")


def request(inputs: Mapping[str, np.ndarray], model: str = MODEL) -> bytes:
    """Return a serialized PredictRequest of TensorFlow Serving's protocol."""
    message = serving_pb2.PredictRequest(model_spec=serving_pb2.ModelSpec(name=model))
    for name, array in inputs.items():
        message.inputs[name].CopyFrom(tensor_proto.from_array(array))
    return message.SerializeToString()


def say_ready(program: str, address: str) -> None:
    """Log the line by which `Served` knows that the process is ready."""
    sys.stderr.write(f"{program} ready: predictions {address}\n")
    sys.stderr.flush()
