"""A real server on its own ports, and stock clients that call it. Only its workers are processes of their own."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
import tensorflow as tf
from grpc_health.v1 import health_pb2, health_pb2_grpc
from tensorflow_serving.apis import model_service_pb2_grpc, predict_pb2, prediction_service_pb2_grpc

from inferencer.settings.settings import ModelSettings, Ports, Settings
from inferencer.supervisor.server import Server
from inferencer.supervisor.template import Template
from paramsync.graphs.graph import Graph
from paramsync.status import Status
from paramsync.store.store import Store
from paramsync.v1 import sync_pb2 as pb
from paramsync.v1 import sync_pb2_grpc
from tests.support.programs import PATIENCE
from tests.support.published import GATED_OPS

LONG = 30.0
OPTIONS = [("grpc.max_send_message_length", -1), ("grpc.max_receive_message_length", -1)]
SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING


class Shows(grpc.UnaryUnaryClientInterceptor, grpc.UnaryStreamClientInterceptor):  # type: ignore[type-arg]
    """Shows a token with each call by gRPC."""

    def __init__(self, token: str) -> None:
        self._header = ("authorization", f"Bearer {token}")

    def intercept_unary_unary(self, continuation: Callable[..., Any], details: Any, request: Any) -> Any:
        return continuation(details._replace(metadata=[*(details.metadata or ()), self._header]), request)

    def intercept_unary_stream(self, continuation: Callable[..., Any], details: Any, request: Any) -> Any:
        return self.intercept_unary_unary(continuation, details, request)


class Running:
    """One server whose models have the names of their stores' folders. `settings` are fields of Settings.

    The server has one worker, so that a test knows which worker answers.
    """

    def __init__(self, *stores: Path, **settings: Any) -> None:
        models = tuple(ModelSettings(name=path.name, store=path, allowed=GATED_OPS) for path in stores)
        chosen = {"models": models, "port": 0, "rest_port": 0, "control_port": 0, "poll_seconds": 60.0,
                  "workers": 1, **settings}  # fmt: skip
        self.stores = stores
        self.settings = Settings(**chosen)
        self._drained = False
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        try:
            self.server, (self.port, self.rest_port, self.control_port) = self.call(self._start, seconds=PATIENCE)
        except BaseException:
            self.close()
            raise
        self.predictions = grpc.insecure_channel(f"127.0.0.1:{self.port}", OPTIONS)
        self.control = grpc.insecure_channel(f"127.0.0.1:{self.control_port}", OPTIONS)
        self._make_stubs()

    def show(self, token: str) -> None:
        """Show this token with every gRPC call from now on."""
        shows = Shows(token)
        self.predictions = grpc.intercept_channel(self.predictions, shows)
        self.control = grpc.intercept_channel(self.control, shows)
        self._make_stubs()

    def _make_stubs(self) -> None:
        self.prediction_service = prediction_service_pb2_grpc.PredictionServiceStub(self.predictions)
        self.model_service = model_service_pb2_grpc.ModelServiceStub(self.predictions)
        self.sync = sync_pb2_grpc.SyncStub(self.control)

    async def _start(self) -> tuple[Any, Ports]:
        server = Server(self.settings, _template())
        return server, await server.start()

    def call(self, function: Callable[[], Any], *, seconds: float = LONG) -> Any:
        """Run a coroutine on the server's event loop, and return its result."""
        return asyncio.run_coroutine_threadsafe(function(), self._loop).result(seconds)

    def drain(self, *, quiet_seconds: float = 0.01) -> None:
        self._drained = True
        self.call(partial(self.server.drain, quiet_seconds=quiet_seconds))

    def close(self) -> None:
        for channel in (getattr(self, "predictions", None), getattr(self, "control", None)):
            if channel is not None:
                channel.close()
        if hasattr(self, "server") and not self._drained:
            self.drain(quiet_seconds=0.0)  # ends the server's threads: later tests count threads and descriptors
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(LONG)
        self._loop.close()

    def status(self, model: str = "m") -> Status:
        status: Status = self.server.models.find(model).status()
        return status

    def graph(self, model: str = "m") -> Graph:
        """Return the graph of the serving version, read from the store."""
        status = self.status(model)
        assert status.serving is not None
        return Graph.from_bytes(Store(status.store).graph_file(status.serving.graph).read_bytes(), allowed=GATED_OPS)

    def health(self, service: str = "", *, control: bool = False) -> int:
        stub = health_pb2_grpc.HealthStub(self.control if control else self.predictions)
        return int(stub.Check(health_pb2.HealthCheckRequest(service=service), timeout=LONG).status)


@cache
def _template() -> Template:
    """Return the template that all servers of this process share, because importing TensorFlow takes long."""
    return Template()


def synced(running: Running, **request: Any) -> list[pb.SyncProgress]:
    return list(running.sync.Sync(pb.SyncRequest(model="m", **request), timeout=LONG))


def request(model: str = "m", *, version: int | None = None, **inputs: Any) -> predict_pb2.PredictRequest:
    message = predict_pb2.PredictRequest()
    message.model_spec.name = model
    if version is not None:
        message.model_spec.version.value = version
    for name, value in (inputs or {"x": np.ones([1, 2], np.float32)}).items():
        message.inputs[name].CopyFrom(tf.make_tensor_proto(value))
    return message


def refused(call: Callable[..., Any], message: Any, timeout: float = LONG) -> tuple[grpc.StatusCode, str]:
    with pytest.raises(grpc.RpcError) as raised:
        call(message, timeout=timeout)
    return raised.value.code(), raised.value.details() or ""


def seen(answer: predict_pb2.PredictResponse) -> list[float]:
    return list(answer.outputs["seen"].float_val)
