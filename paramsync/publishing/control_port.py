"""The trainer's gRPC port: publish now, status, watch. Translates, calls, and maps errors."""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn, Protocol

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from paramsync.errors import BusyError, SettingsError
from paramsync.publishing import read_timeout
from paramsync.publishing.admissions import Admissions
from paramsync.publishing.metrics import Meter
from paramsync.publishing.read_timeout import ReadTimeoutInterceptor
from paramsync.rpc import addresses, settings
from paramsync.rpc.access import Access
from paramsync.rpc.connection_limit import ConnectionLimit
from paramsync.rpc.server import UNFORESEEN, code_of, of_version, one_line, options
from paramsync.rpc.tls import ServerTls
from paramsync.store.store import lock_owner
from paramsync.v1 import sync_pb2, sync_pb2_grpc
from paramsync.version import Version

if TYPE_CHECKING:
    from paramsync.publishing.publisher import Publisher

MOST_WATCHING = 8  # each holds a thread of the server
MOST_UNREAD = 1000  # versions that one may leave unread


class Watcher:
    """One caller that hears of each version once committed; `fell_behind` where it was dropped as too slow."""

    def __init__(self) -> None:
        self._versions: queue.SimpleQueue[Version | None] = queue.SimpleQueue()
        self.fell_behind = False

    def next(self) -> Version | None:
        """The next version, as soon as there is one; None at the end."""
        return self._versions.get()

    def end(self) -> None:
        """Nothing comes after what is waiting."""
        self._versions.put(None)

    def tell(self, version: Version) -> None:
        """Never blocks."""
        self.fell_behind = self.fell_behind or self._versions.qsize() >= MOST_UNREAD
        self._versions.put(None if self.fell_behind else version)


class Watchers:
    """All callers that watch now. Used from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._watchers: set[Watcher] = set()
        self._closed = False

    def add(self) -> Watcher:
        """One more. Raises BusyError where there are as many as may be."""
        with self._lock:
            if len(self._watchers) >= MOST_WATCHING:
                raise BusyError(f"{MOST_WATCHING} watch already; one has to leave first")
            watcher = Watcher()
            self._watchers.add(watcher)
            if self._closed:
                watcher.end()
        return watcher

    def remove(self, watcher: Watcher) -> None:
        with self._lock:
            self._watchers.discard(watcher)

    def tell(self, version: Version) -> None:
        """Tell all of them. Never blocks."""
        with self._lock:
            for watcher in self._watchers:
                watcher.tell(version)
            self._watchers = {watcher for watcher in self._watchers if not watcher.fell_behind}

    def close(self) -> None:
        """End what everyone hears."""
        with self._lock:
            self._closed = True
            for watcher in self._watchers:
                watcher.end()


_SERVICE = sync_pb2.DESCRIPTOR.services_by_name["Publisher"].full_name
MOST_PUBLISHING = 4  # callers that wait for a publication; each holds a thread of the server
_THREADS = MOST_WATCHING + MOST_PUBLISHING + 4 + read_timeout.MOST  # four are for calls that are answered at once
_MOST_CALLS = 2 * _THREADS  # some wait for a thread until the oldest silent call is given up
_MESSAGE_BYTES = 1 << 18  # of requests, which say hardly anything, and of answers
_GRACE = 2.0  # seconds that calls have to end when the port is closed

_log = logging.getLogger("paramsync.trainer")


@dataclass(frozen=True, slots=True, kw_only=True)
class Training:
    """What the port tells of once training has begun.

    `total_steps` is None where it goes on until it is stopped, `steps_per_epoch` where the job has no epochs, `state`
    where none is saved.
    """

    publisher: Publisher
    meter: Meter
    device: str
    total_steps: int | None = None
    steps_per_epoch: int | None = None
    state: Resumable | None = None


class Resumable(Protocol):
    """The state that training would resume from after a crash."""

    saved: int | None
    """The step that was saved last."""
    error: str | None
    """Why the last one was not."""


class ControlPort:
    """Answers from the moment it is made; healthy while training goes on."""

    def __init__(
        self,
        host: str,
        port: int,
        *,
        store: Path,
        option: str = "--control-port",
        access: Access | None = None,
        tls: ServerTls | None = None,
    ) -> None:
        """Port 0 is any free one. `access` says who may call; without it the tokens of the environment do.

        Raises SettingsError for an address that cannot be had, which names the option.
        """
        access = Access(host=host, tokens=settings.tokens()) if access is None else access
        if type(port) is not int or not 0 <= port <= addresses.LAST_PORT:  # gRPC takes another port for these
            raise SettingsError(f"{option}: expected a port from 0 to {addresses.LAST_PORT}, found {port!r:.80}")
        self._service = _Service(store)
        self._health = health.HealthServicer()
        self._set_healthy(False)
        self._connections = ConnectionLimit()
        self._arrivals = ReadTimeoutInterceptor(self._connections)
        self._server = grpc.server(
            ThreadPoolExecutor(_THREADS, thread_name_prefix="control"),
            interceptors=[self._arrivals, Admissions(access)],
            options=options(_MESSAGE_BYTES),
            maximum_concurrent_rpcs=_MOST_CALLS,
        )
        sync_pb2_grpc.add_PublisherServicer_to_server(self._service, self._server)
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self._server)
        reflection.enable_server_reflection((_SERVICE, health.SERVICE_NAME, reflection.SERVICE_NAME), self._server)
        try:
            if tls is None:
                bound = self._server.add_insecure_port(addresses.address(host, port))
            else:
                bound = self._server.add_secure_port(addresses.address(host, port), tls.grpc_credentials())
        except RuntimeError as error:
            raise addresses.refused(host, port, option) from error
        self.address = addresses.address(host, bound)
        self._server.start()
        if advice := access.advice or access.in_plain(tls=tls is not None):
            _log.warning("control port: %s", advice)
        self._connections.start(bound)

    @property
    def training(self) -> Training | None:
        """The training that has begun; None before."""
        return self._service.training

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
        self._connections.close()

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
        self._publishing = threading.BoundedSemaphore(MOST_PUBLISHING)

    def GetStatus(
        self, request: sync_pb2.GetPublisherStatusRequest, context: grpc.ServicerContext
    ) -> sync_pb2.PublisherStatus:
        training = self.training
        states = sync_pb2.PublisherStatus
        if training is None:
            return sync_pb2.PublisherStatus(
                state=states.STARTING, store=str(self._store), publisher=lock_owner(self._store)
            )
        publishing, state = training.publisher.status(), training.state
        version = publishing.published
        return sync_pb2.PublisherStatus(
            state=states.STOPPING if self.stopping else states.TRAINING,
            store=str(self._store),
            device=training.device,
            step=training.meter.step,
            total_steps=training.total_steps,
            steps_per_epoch=training.steps_per_epoch,
            loss=training.meter.loss,
            steps_per_second=training.meter.steps_per_second,
            published=None if version is None else of_version(version),
            publishes=publishing.publishes,
            skipped=publishing.skipped,
            last_error=publishing.last_error or "",
            refused=publishing.refused,
            stall_seconds=training.meter.stall,
            publish_seconds=None if version is None else (version.committed_at or 0.0) - version.snapshot_at,
            saved_step=None if state is None else state.saved,
            state_error=(state and state.error) or "",
            held_back=publishing.held_back or "",
            publisher=lock_owner(self._store),
        )

    def Publish(self, request: sync_pb2.PublishRequest, context: grpc.ServicerContext) -> sync_pb2.Version:
        training = self.training
        if training is None:
            _abort(context, grpc.StatusCode.UNAVAILABLE, "training has not begun yet; try again in a few seconds")
        with _errors_answered(context), self._one_publishing():
            future = training.publisher.request()

            def leave() -> None:
                future.cancel()

            if not context.add_callback(leave):  # a caller that leaves gives its thread back; this one has left
                leave()
            return of_version(future.result())

    def Watch(
        self, request: sync_pb2.WatchPublisherRequest, context: grpc.ServicerContext
    ) -> Iterator[sync_pb2.Version]:
        with _errors_answered(context):
            watcher = self.watchers.add()
        try:
            if not context.add_callback(watcher.end):
                watcher.end()
            context.send_initial_metadata(())  # tells the caller that no version is missed from here on
            while (version := watcher.next()) is not None:
                yield of_version(version)
        finally:
            self.watchers.remove(watcher)
        if watcher.fell_behind:
            _abort(context, grpc.StatusCode.RESOURCE_EXHAUSTED, f"left {MOST_UNREAD} versions unread")

    @contextmanager
    def _one_publishing(self) -> Iterator[None]:
        """Count a caller that waits for a publication. Raises BusyError where there are as many as may be."""
        if not self._publishing.acquire(blocking=False):
            raise BusyError(f"{MOST_PUBLISHING} wait for a publication already; try again when one is answered")
        try:
            yield
        finally:
            self._publishing.release()


@contextmanager
def _errors_answered(context: grpc.ServicerContext) -> Iterator[None]:
    try:
        yield
    except Exception as error:  # noqa: BLE001, the edge
        code = code_of(error)
        if code is None:
            _log.exception("a call failed in a way nobody foresaw")
            _abort(context, grpc.StatusCode.INTERNAL, UNFORESEEN)
        _abort(context, code, one_line(str(error)))


def _abort(context: grpc.ServicerContext, code: grpc.StatusCode, text: str) -> NoReturn:
    context.abort(code, text)
    raise AssertionError(text)  # abort raises: for the type checker
