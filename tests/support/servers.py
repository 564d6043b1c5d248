"""Real gRPC servers of our services that do what a test needs: refuse, wait for ever, or end too early."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent import futures
from contextlib import contextmanager
from typing import Any

import grpc

from paramsync import errors
from paramsync.v1 import serving_pb2, sync_pb2_grpc
from paramsync.v1 import sync_pb2 as pb

SERVING = pb.ModelStatus(
    model="digits",
    store="/store",
    state=pb.ModelStatus.SERVING,
    published=pb.Version(number=421, step=421, committed_at=1000.0),
    serving=pb.Version(number=420, step=420, committed_at=999.0),
    resident=[419, 420],
    labels={"stable": 419},
    quarantined=[pb.Quarantine(number=421, reason="[not finite] dense/kernel", since=1000.0)],
    lag_seconds=12.0,
    lag_steps=1,
    rollback_to=419,
    rollback_served=True,
)
TRAINING = pb.PublisherStatus(
    state=pb.PublisherStatus.TRAINING, device="CPU", step=7, steps_per_epoch=100, steps_per_second=412.0,
    published=pb.Version(number=6, step=6, committed_at=1000.0), publishes=3,
)  # fmt: skip
WORKERS = [
    pb.WorkerStatus(number=0, state=pb.WorkerStatus.ANSWERING, since=998.0, pid=41, private_bytes=30_000_000),
    pb.WorkerStatus(number=1, state=pb.WorkerStatus.ENDED, since=999.0, restarts=3),
]
NEVER, CORRUPT, ENDS_EARLY = 1, 2, 3  # versions whose sync never ends, is refused, or ends too early

_FLOAT32 = 1


class Sync(sync_pb2_grpc.SyncServicer):
    """A server of `digits` in version 420, or of models with these statuses."""

    def __init__(self, *statuses: pb.ModelStatus) -> None:
        self.statuses = statuses or (SERVING,)
        """May be changed; setting `changed` tells a watching caller."""
        self.changed = threading.Event()
        self.restoring = threading.Event()

    def GetStatus(self, request: pb.GetStatusRequest, context: grpc.ServicerContext) -> pb.GetStatusResponse:
        self._check(request.model, context)
        return pb.GetStatusResponse(models=self.statuses, workers=WORKERS)

    def Sync(self, request: pb.SyncRequest, context: grpc.ServicerContext) -> Iterator[pb.SyncProgress]:
        self._check(request.model, context)
        number = request.version if request.HasField("version") else SERVING.serving.number
        if request.fresh:
            yield pb.SyncProgress(phase=pb.SyncProgress.PUBLISHING)
        yield pb.SyncProgress(phase=pb.SyncProgress.LOOKING, version=number)
        yield pb.SyncProgress(phase=pb.SyncProgress.VERIFYING, version=number, bytes_done=5, bytes_total=10)
        self.restoring.set()
        if number == NEVER:
            _until_the_caller_leaves(context)
        elif number == CORRUPT:
            context.abort(grpc.StatusCode.FAILED_PRECONDITION, "version 2 was refused: not finite")
        elif number != ENDS_EARLY:
            named = [status for status in self.statuses if request.model in ("", status.model)]
            yield pb.SyncProgress(phase=pb.SyncProgress.DONE, version=number, status=named[0])

    def Watch(self, request: pb.WatchRequest, context: grpc.ServicerContext) -> Iterator[pb.Event]:
        yield pb.Event(kind=pb.Event.SWAPPED, model="digits", version=SERVING.serving, at=999.5)
        while context.is_active():
            if self.changed.wait(0.02):
                self.changed.clear()
                yield pb.Event(kind=pb.Event.SWAPPED, model="digits", version=self.statuses[0].serving, at=999.5)

    def Pin(self, request: pb.PinRequest, context: grpc.ServicerContext) -> pb.ModelStatus:
        self._check(request.model, context)
        return pb.ModelStatus(model=request.model, serving=SERVING.serving, pinned=request.version)

    def Rollback(self, request: pb.RollbackRequest, context: grpc.ServicerContext) -> pb.ModelStatus:
        self._check(request.model, context)
        number = request.version if request.HasField("version") else 418
        return pb.ModelStatus(model=request.model, serving=pb.Version(number=number), pinned=number)

    def Label(self, request: pb.LabelRequest, context: grpc.ServicerContext) -> pb.ModelStatus:
        self._check(request.model, context)
        return pb.ModelStatus(model=request.model, labels={**SERVING.labels, request.label: request.version})

    def Unlabel(self, request: pb.UnlabelRequest, context: grpc.ServicerContext) -> pb.ModelStatus:
        self._check(request.model, context)
        return pb.ModelStatus(model=request.model)

    def ReplaceWorkers(
        self, request: pb.ReplaceWorkersRequest, context: grpc.ServicerContext
    ) -> Iterator[pb.ReplacedWorker]:
        yield pb.ReplacedWorker(number=0, before=41, after=43)
        _until_the_caller_leaves(context)  # as if the other worker never started

    def _check(self, model: str, context: grpc.ServicerContext) -> None:
        known = [status.model for status in self.statuses]
        if model not in ("", *known):
            context.abort(grpc.StatusCode.NOT_FOUND, str(errors.UnknownModelError(model, known)))

    def Unpin(self, request: pb.UnpinRequest, context: grpc.ServicerContext) -> pb.ModelStatus:
        self._check(request.model, context)
        return SERVING


class Publisher(sync_pb2_grpc.PublisherServicer):
    def GetStatus(self, request: pb.GetPublisherStatusRequest, context: grpc.ServicerContext) -> pb.PublisherStatus:
        return TRAINING

    def Publish(self, request: pb.PublishRequest, context: grpc.ServicerContext) -> pb.Version:
        return pb.Version(number=7, step=7)

    def Watch(self, request: pb.WatchPublisherRequest, context: grpc.ServicerContext) -> Iterator[pb.Version]:
        yield from (pb.Version(number=number) for number in (5, 6, 7))


def add_sync(server: grpc.Server) -> None:
    sync_pb2_grpc.add_SyncServicer_to_server(Sync(), server)


def add_models(*statuses: pb.ModelStatus) -> Callable[[grpc.Server], None]:
    """A function that adds an inferencer's service for these models to a server."""
    return lambda server: sync_pb2_grpc.add_SyncServicer_to_server(Sync(*statuses), server)


def add_publisher(server: grpc.Server) -> None:
    sync_pb2_grpc.add_PublisherServicer_to_server(Publisher(), server)


def add_predictions(server: grpc.Server) -> None:
    """Models that return their inputs, as version 420: `digits` takes any dtype, `strict` only float32, and `cut off`
    leaves some bytes out."""
    method = grpc.unary_unary_rpc_method_handler(
        _predict, serving_pb2.PredictRequest.FromString, serving_pb2.PredictResponse.SerializeToString
    )
    service = "tensorflow.serving.PredictionService"
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, {"Predict": method}),))


@contextmanager
def serving(*add: Callable[[grpc.Server], Any], at: str = "127.0.0.1:0") -> Iterator[str]:
    """A server on a free port or at the address `at`; yields its address."""
    server = grpc.server(futures.ThreadPoolExecutor(8))
    for one in add:
        one(server)
    port = server.add_insecure_port(at)
    server.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        server.stop(None).wait()


def _predict(request: serving_pb2.PredictRequest, context: grpc.ServicerContext) -> serving_pb2.PredictResponse:
    if request.model_spec.name == "waiting":
        context.abort(grpc.StatusCode.UNAVAILABLE, "model 'waiting' is not serving: store /s is empty")
    if request.model_spec.name == "strict" and request.inputs["image"].dtype != _FLOAT32:
        context.abort(grpc.StatusCode.INVALID_ARGUMENT, "input 'image', dtype: expected float32,\n found another")
    answer = serving_pb2.PredictResponse(outputs=request.inputs, model_spec=request.model_spec)
    answer.model_spec.version.value = 420
    if request.model_spec.name == "cut off":
        answer.outputs["image"].tensor_content = answer.outputs["image"].tensor_content[:-1]
    return answer


def _until_the_caller_leaves(context: grpc.ServicerContext) -> None:
    left = threading.Event()
    if context.add_callback(left.set):
        left.wait()
