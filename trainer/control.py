"""The trainer's gRPC port: publish now, status, watch. Translates, calls, and maps errors."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import NoReturn

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from paramsync.errors import PublishError, RequestError, SettingsError
from paramsync.v1 import sync_pb2, sync_pb2_grpc
from paramsync.version import Version
from trainer import watchers
from trainer.meter import Meter
from trainer.publisher import Publisher
from trainer.watchers import Watchers

_SERVICE = sync_pb2.DESCRIPTOR.services_by_name["Publisher"].full_name
_THREADS = 2 * watchers.MOST
_GRACE = 2.0  # seconds that calls have to end when the port is closed
_CODES = {
    RequestError: grpc.StatusCode.FAILED_PRECONDITION,
    PublishError: grpc.StatusCode.INTERNAL,
    CancelledError: grpc.StatusCode.CANCELLED,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Training:
    """What there is to tell once training has begun. `total_steps` is None where it goes on until it is stopped."""

    publisher: Publisher
    meter: Meter
    device: str
    total_steps: int | None
    steps_per_epoch: int


class Control:
    """Answers from the moment it is made; healthy while training goes on."""

    def __init__(self, host: str, port: int, *, store: Path) -> None:
        """Port 0 is any free one. Raises SettingsError for an address that cannot be had."""
        self._service = _Service(store)
        self._health = health.HealthServicer()
        self._set_healthy(False)
        self._server = grpc.server(
            ThreadPoolExecutor(_THREADS, thread_name_prefix="control"),
            options=[("grpc.so_reuseport", 0)],  # a second server on the same port is an error
            maximum_concurrent_rpcs=_THREADS,
        )
        sync_pb2_grpc.add_PublisherServicer_to_server(self._service, self._server)
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self._server)
        reflection.enable_server_reflection((_SERVICE, health.SERVICE_NAME, reflection.SERVICE_NAME), self._server)
        try:
            bound = self._server.add_insecure_port(f"{host}:{port}")
        except RuntimeError as error:
            raise SettingsError(
                f"control port {host}:{port} cannot be listened on: it is taken or no address of this machine; "
                "give another --control-port or --host"
            ) from error
        self.address = f"{host}:{bound}"
        self._server.start()

    def training_begins(self, training: Training) -> None:
        """From here on, status tells of this, and Publish works."""
        training.publisher.subscribe(self._service.watchers.tell)
        self._service.training = training
        self._set_healthy(True)

    def training_ends(self) -> None:
        """Training has stopped; the last version may still be on its way."""
        self._set_healthy(False)
        self._service.stopping = True

    def close(self) -> None:
        """End the watches, let other calls finish, close the port."""
        self._service.watchers.close()
        self._health.enter_graceful_shutdown()
        self._server.stop(_GRACE).wait()

    def _set_healthy(self, healthy: bool) -> None:
        status = health_pb2.HealthCheckResponse
        for name in ("", _SERVICE):
            self._health.set(name, status.SERVING if healthy else status.NOT_SERVING)


class _Service(sync_pb2_grpc.PublisherServicer):
    def __init__(self, store: Path) -> None:
        self._store = store
        self.training: Training | None = None
        self.stopping = False
        self.watchers = Watchers()

    def GetStatus(
        self, request: sync_pb2.GetPublisherStatusRequest, context: grpc.ServicerContext
    ) -> sync_pb2.PublisherStatus:
        training = self.training
        states = sync_pb2.PublisherStatus
        if training is None:
            return sync_pb2.PublisherStatus(state=states.STARTING, store=str(self._store))
        publishing = training.publisher.status()
        return sync_pb2.PublisherStatus(
            state=states.STOPPING if self.stopping else states.TRAINING,
            store=str(self._store),
            device=training.device,
            step=training.meter.step,
            total_steps=training.total_steps,
            steps_per_epoch=training.steps_per_epoch,
            loss=training.meter.loss,
            steps_per_second=training.meter.steps_per_second,
            published=None if publishing.published is None else _on_the_wire(publishing.published),
            publishes=publishing.publishes,
            skipped=publishing.skipped,
            last_error=publishing.last_error or "",
        )

    def Publish(self, request: sync_pb2.PublishRequest, context: grpc.ServicerContext) -> sync_pb2.Version:
        training = self.training
        if training is None:
            _abort(context, grpc.StatusCode.UNAVAILABLE, "training has not begun yet; try again in a few seconds")
        with _errors_answered(context):
            future = training.publisher.request()
            context.add_callback(partial(_cancel, future))  # a caller that leaves gives its thread back
            return _on_the_wire(future.result())

    def Watch(
        self, request: sync_pb2.WatchPublisherRequest, context: grpc.ServicerContext
    ) -> Iterator[sync_pb2.Version]:
        watcher = self.watchers.add()
        if watcher is None:
            _abort(
                context, grpc.StatusCode.RESOURCE_EXHAUSTED, f"{watchers.MOST} watch already; one has to leave first"
            )
        try:
            if not context.add_callback(watcher.end):
                watcher.end()
            context.send_initial_metadata(())  # tells the caller that no version is missed from here on
            while (version := watcher.next()) is not None:
                yield _on_the_wire(version)
        finally:
            self.watchers.remove(watcher)
        if watcher.fell_behind:
            _abort(context, grpc.StatusCode.RESOURCE_EXHAUSTED, f"left {watchers.MOST_WAITING} versions unread")


def _cancel(future: Future[Version]) -> None:
    future.cancel()


@contextmanager
def _errors_answered(context: grpc.ServicerContext) -> Iterator[None]:
    try:
        yield
    except tuple(_CODES) as error:
        _abort(context, _CODES[type(error)], str(error))


def _abort(context: grpc.ServicerContext, code: grpc.StatusCode, text: str) -> NoReturn:
    context.abort(code, text)
    raise AssertionError(text)  # abort raises: for the type checker


def _on_the_wire(version: Version) -> sync_pb2.Version:
    return sync_pb2.Version(
        number=version.number,
        step=version.step,
        prefix=version.prefix,
        graph=version.graph,
        step_done_at=version.step_done_at,
        snapshot_at=version.snapshot_at,
        committed_at=version.committed_at or 0.0,
        bytes=version.bytes,
        metrics=version.metrics,
    )
