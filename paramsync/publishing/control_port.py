"""The trainer's gRPC port: answers GetStatus, Publish and Watch, by grpcio's own server."""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn, Protocol

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from paramsync.errors import BusyError, NotAllowedError, SettingsError
from paramsync.publishing.metrics import Meter
from paramsync.publishing.write_behind import PublisherStatus
from paramsync.rpc import addresses, settings
from paramsync.rpc.access import Access, Caller, Effect, effect_of
from paramsync.rpc.server import UNFORESEEN, code_of, of_value, one_line, options, request_text
from paramsync.rpc.tls import ServerTls
from paramsync.store.store import lock_owner
from paramsync.v1 import sync_pb2, sync_pb2_grpc
from paramsync.version import Version

MOST_WATCHING = 8  # the most callers of Watch at once
MOST_SERVERS = 64  # the most callers of Watch for versions in the bucket; each server is one caller
MOST_PUBLISHING = 4  # the most callers that wait for a publication
MOST_UNREAD = 1000  # the most versions that a caller of Watch may leave unread
_MOST_CALLS = 32 + MOST_SERVERS  # each call has a thread; gRPC refuses more calls with RESOURCE_EXHAUSTED
_MESSAGE_BYTES = 1 << 18  # requests and answers are small
_GRACE = 2.0  # seconds for calls to end when the port is closed
_SERVICE = sync_pb2.DESCRIPTOR.services_by_name["Publisher"].full_name

_log = logging.getLogger("paramsync.trainer")
UnreadVersions = queue.SimpleQueue[Version | BusyError | None]


class Publishing(Protocol):
    """The part of Publisher that the port uses. A protocol, because `publisher` imports this module."""

    meter: Meter

    def status(self) -> PublisherStatus: ...
    def request(self) -> Future[Version]: ...
    def subscribe(self, listener: Callable[[Version], None], *, in_bucket: bool = False) -> None: ...


class Resumable(Protocol):
    """The saved state from which training resumes after a crash."""

    saved: int | None
    """The last saved step."""
    error: str | None
    """Why the last save failed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Training:
    """The training that the port reports once it has begun.

    None stands for training without an end (`total_steps`), a job without epochs (`steps_per_epoch`), and training
    whose state is not saved (`state`).
    """

    publisher: Publishing
    device: str
    total_steps: int | None = None
    steps_per_epoch: int | None = None
    state: Resumable | None = None


class ControlPort(sync_pb2_grpc.PublisherServicer):
    """Answers calls from its construction to `close`. Its health is SERVING while training goes on."""

    def __init__(
        self,
        host: str,
        port: int,
        *,
        store: Path,
        address: str | None = None,
        option: str = "--control-port",
        access: Access | None = None,
        tls: ServerTls | None = None,
    ) -> None:
        """Port 0 means any free port. `access` decides who may call; by default it uses the environment's tokens.

        `address` is the address of the bucket to which the versions of `store` are copied, if any.

        Raises SettingsError, which names `option`, if the server cannot listen on the port.
        """
        access = Access(host=host, tokens=settings.tokens()) if access is None else access
        if type(port) is not int or not 0 <= port <= addresses.LAST_PORT:  # otherwise gRPC would choose another port
            raise SettingsError(f"{option}: expected a port from 0 to {addresses.LAST_PORT}, found {port!r:.80}")
        self.training: Training | None = None
        """The training that has begun; None before."""
        self._store = store
        self._shown = str(store) if address is None else address
        self._stopping = False
        self._watchers = Watchers(MOST_WATCHING)
        self._watchers_of_bucket = Watchers(MOST_SERVERS)
        self._has_bucket = address is not None
        self._publishing = threading.BoundedSemaphore(MOST_PUBLISHING)
        self._health = health.HealthServicer()
        self._set_healthy(False)
        self._server = grpc.server(
            ThreadPoolExecutor(_MOST_CALLS, thread_name_prefix="control"),
            interceptors=[_Admission(access)],
            options=options(_MESSAGE_BYTES),
            maximum_concurrent_rpcs=_MOST_CALLS,
        )
        sync_pb2_grpc.add_PublisherServicer_to_server(self, self._server)
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

    def training_begins(self, training: Training) -> None:
        """Report this training from now on, and accept Publish."""
        training.publisher.subscribe(self._watchers.put)
        if self._has_bucket:
            training.publisher.subscribe(self._watchers_of_bucket.put, in_bucket=True)
        self.training = training
        self._set_healthy(True)

    def training_ends(self) -> None:
        """Report that training has stopped. The last version may still be being written."""
        self._set_healthy(False)
        self._stopping = True

    def close(self) -> None:
        """End all calls of Watch, let other calls finish, and close the port."""
        self._watchers.close()
        self._watchers_of_bucket.close()
        self._health.enter_graceful_shutdown()
        self._server.stop(_GRACE).wait()

    def _set_healthy(self, healthy: bool) -> None:
        status = health_pb2.HealthCheckResponse
        for name in ("", _SERVICE):
            self._health.set(name, status.SERVING if healthy else status.NOT_SERVING)

    # Calls ------------------------------------------------------------------------------------------------------------

    def GetStatus(
        self, request: sync_pb2.GetPublisherStatusRequest, context: grpc.ServicerContext
    ) -> sync_pb2.PublisherStatus:
        training = self.training
        states = sync_pb2.PublisherStatus
        if training is None:
            return sync_pb2.PublisherStatus(state=states.STARTING, store=self._shown, publisher=lock_owner(self._store))
        publishing, meter, state = training.publisher.status(), training.publisher.meter, training.state
        version = publishing.published
        return sync_pb2.PublisherStatus(
            state=states.STOPPING if self._stopping else states.TRAINING,
            store=self._shown,
            device=training.device,
            step=meter.step,
            total_steps=training.total_steps,
            steps_per_epoch=training.steps_per_epoch,
            loss=meter.loss,
            steps_per_second=meter.steps_per_second,
            published=None if version is None else of_value(sync_pb2.Version, version),
            publishes=publishing.publishes,
            skipped=publishing.skipped,
            last_error=publishing.last_error or "",
            refused=publishing.refused,
            stall_seconds=meter.stall,
            publish_seconds=None if version is None else (version.committed_at or 0.0) - version.snapshot_at,
            saved_step=None if state is None else state.saved,
            state_error=(state and state.error) or "",
            held_back=publishing.held_back or "",
            publisher=lock_owner(self._store),
            bucket=None if publishing.bucket is None else of_value(sync_pb2.Bucket, publishing.bucket),
        )

    def Publish(self, request: sync_pb2.PublishRequest, context: grpc.ServicerContext) -> sync_pb2.Version:
        training = self.training
        if training is None:
            _abort(context, grpc.StatusCode.UNAVAILABLE, "training has not begun yet; try again in a few seconds")
        with _errors_answered(context), self._publishing_place():
            future = training.publisher.request()

            def leave() -> None:
                future.cancel()

            if not context.add_callback(leave):  # `add_callback` returns False if the caller is already gone
                leave()
            return of_value(sync_pb2.Version, future.result())

    def Watch(
        self, request: sync_pb2.WatchPublisherRequest, context: grpc.ServicerContext
    ) -> Iterator[sync_pb2.Version]:
        if request.in_bucket and not self._has_bucket:
            _abort(context, grpc.StatusCode.FAILED_PRECONDITION, f"this trainer publishes to {self._shown}, no bucket")
        watchers = self._watchers_of_bucket if request.in_bucket else self._watchers
        with _errors_answered(context):
            unread = watchers.add()
        try:
            if not context.add_callback(lambda: unread.put(None)):
                unread.put(None)
            context.send_initial_metadata(())  # tells the caller that it misses no later version
            while (version := unread.get()) is not None:
                if isinstance(version, BusyError):
                    _abort_with(context, version)
                yield of_value(sync_pb2.Version, version)
        finally:
            watchers.remove(unread)

    @contextmanager
    def _publishing_place(self) -> Iterator[None]:
        """Count a caller that waits for a publication. Raises BusyError if too many wait already."""
        if not self._publishing.acquire(blocking=False):
            raise BusyError(f"{MOST_PUBLISHING} wait for a publication already; try again when one is answered")
        try:
            yield
        finally:
            self._publishing.release()


class Watchers:
    """The callers of Watch, each with a queue of the versions that the caller has not read yet. Used from any thread.

    A queue ends with None, or with the error of a caller that left too many versions unread.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._lock = threading.Lock()
        self._queues: set[UnreadVersions] = set()
        self._closed = False

    def add(self) -> UnreadVersions:
        """Add a caller, and return its queue. Raises BusyError if there are too many callers."""
        with self._lock:
            if len(self._queues) >= self._most:
                raise BusyError(f"{self._most} watch already; one has to leave first")
            unread: UnreadVersions = queue.SimpleQueue()
            self._queues.add(unread)
            if self._closed:
                unread.put(None)
        return unread

    def remove(self, unread: UnreadVersions) -> None:
        with self._lock:
            self._queues.discard(unread)

    def put(self, version: Version) -> None:
        """Put a version into all queues. Never blocks."""
        with self._lock:
            for unread in [*self._queues]:
                if unread.qsize() < MOST_UNREAD:
                    unread.put(version)
                else:
                    unread.put(BusyError(f"left {MOST_UNREAD} versions unread"))
                    self._queues.remove(unread)

    def close(self) -> None:
        """End all calls, also later calls. Callers can still read their unread versions."""
        with self._lock:
            self._closed = True
            for unread in self._queues:
                unread.put(None)


_HANDLERS = {
    (False, False): grpc.unary_unary_rpc_method_handler,
    (False, True): grpc.unary_stream_rpc_method_handler,
    (True, True): grpc.stream_stream_rpc_method_handler,
}


class _Admission(grpc.ServerInterceptor):  # type: ignore[type-arg]  # takes no type argument at run time
    """Refuses calls that `access` does not allow, and logs each call that changes something. Safe from any thread."""

    def __init__(self, access: Access) -> None:
        self._access = access

    def intercept_service(self, continuation: Callable[[Any], Any], handler_call_details: Any) -> Any:
        handler = continuation(handler_call_details)
        method = handler_call_details.method.lstrip("/")
        effect = effect_of(method)
        if handler is None or not self._access.looks_at(effect):
            return handler
        answer = handler.unary_unary or handler.unary_stream or handler.stream_stream
        check = self._access.check if effect is Effect.CHANGES else self._access.check_read

        def call(request: Any, context: Any) -> Any:
            caller = Caller.of_grpc(context, context.peer())
            try:
                check(method, caller)
            except NotAllowedError as error:
                _abort_with(context, error)
            if effect is not Effect.CHANGES:
                return answer(request, context)
            with self._access.audited(method, caller, request_text(request)) as change:
                try:
                    return answer(request, context)
                except Exception:
                    change.why = str(context.details() or "")  # an abort's exception has no text
                    raise

        handler_of = _HANDLERS[handler.request_streaming, handler.response_streaming]
        return handler_of(call, handler.request_deserializer, handler.response_serializer)


@contextmanager
def _errors_answered(context: grpc.ServicerContext) -> Iterator[None]:
    try:
        yield
    except Exception as error:  # noqa: BLE001, the edge
        _abort_with(context, error)


def _abort_with(context: grpc.ServicerContext, error: Exception) -> NoReturn:
    code = code_of(error)
    if code is None:
        _log.error("a call failed in a way nobody foresaw", exc_info=error)
        _abort(context, grpc.StatusCode.INTERNAL, UNFORESEEN)
    _abort(context, code, one_line(str(error)))


def _abort(context: grpc.ServicerContext, code: grpc.StatusCode, text: str) -> NoReturn:
    context.abort(code, text)
    raise AssertionError(text)  # for the type checker: abort raises
