"""Metrics of training and publishing for Prometheus: the page, and the port that answers GET /metrics."""

from __future__ import annotations

import contextlib
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any
from wsgiref.simple_server import WSGIRequestHandler, make_server

from prometheus_client import CollectorRegistry, make_wsgi_app
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.exposition import ThreadingWSGIServer
from prometheus_client.metrics_core import Metric

from paramsync.errors import NotAllowedError, UnauthenticatedError
from paramsync.program.prometheus import MetricsPage
from paramsync.rpc import addresses
from paramsync.rpc.access import Access, Caller, Effect, bearer, name_in
from paramsync.rpc.tls import ServerTls

if TYPE_CHECKING:
    from paramsync.publishing.control_port import Training

_CALLERS = 8  # most connections at a time, so that slow callers do not use up threads and descriptors


class TrainerMetrics(MetricsPage):
    """Computes the metrics of training and publishing at every scrape, on any thread."""

    def __init__(self, training: Callable[[], Training | None], *, clock: Callable[[], float] = time.time) -> None:
        """`training` returns the current training, or None if training has not begun."""
        self._training = training
        self._clock = clock
        super().__init__()

    def collect(self) -> Iterator[Metric]:
        training = self._training()
        if training is None:
            return
        meter, state, publishing = training.publisher.meter, training.state, training.publisher.status()
        failing = publishing.last_error is not None
        gauges = {
            "step": ("The step that training is at.", meter.step),
            "loss": ("Loss of the last step.", meter.loss),
            "last_stall_duration_seconds": ("How long the last publication held the thread that trains.", meter.stall),
            "publishing_failing": ("1 if the last publication failed or was refused, else 0.", failing),
            "saved_step": ("The step that training would resume at.", None if state is None else state.saved),
        }
        if (version := publishing.published) is not None:
            committed = version.committed_at or 0.0
            age, took = max(0.0, self._clock() - committed), committed - version.snapshot_at
            gauges |= {
                "published_version": ("The version that this process published last.", version.number),
                "published_step": ("Training step of the version published last.", version.step),
                "since_publication_seconds": ("Time since this process published a version.", age),
                "last_publish_duration_seconds": ("Duration of the last publication, until its commit.", took),
            }
        bucket = publishing.bucket
        if bucket is not None:
            now = self._clock()
            version_there = None if bucket.copied is None else bucket.copied.number
            waits = 0.0 if bucket.waiting_since is None else max(0.0, now - bucket.waiting_since)
            answer = None if bucket.answered_at is None else max(0.0, now - bucket.answered_at)
            gauges |= {
                "bucket_version": ("The version that came into the bucket last.", version_there),
                "bucket_lag_seconds": ("How long versions have waited for the bucket; 0 while none waits.", waits),
                "bucket_answer_age_seconds": ("Time since the bucket last answered.", answer),
                "bucket_lost": ("1 if another publisher has the bucket, or somebody emptied it, else 0.", bucket.over),
            }
        counters = {
            "steps": ("Steps trained by this process.", meter.step - meter.first),
            "publications": ("Versions published by this process.", publishing.publishes),
            "publications_skipped": ("Publications that a newer publication overtook.", publishing.skipped),
            "publications_failed": ("Publications that failed or were refused.", publishing.failed),
            "publications_refused": ("Publications refused because of NaN or infinity.", publishing.refused),
        }
        for name, (meaning, value) in gauges.items():
            if value is not None:
                yield GaugeMetricFamily(f"paramsync_trainer_{name}", meaning, value=float(value))
        for name, (meaning, count) in counters.items():
            yield CounterMetricFamily(f"paramsync_trainer_{name}", meaning, value=count)
        if bucket is not None:
            meaning = "Looks and commits that failed."
            yield CounterMetricFamily("paramsync_trainer_bucket_failures", meaning, value=bucket.failures)
            meaning = "Bytes of versions that went into the bucket."
            sent = CounterMetricFamily("paramsync_trainer_bucket_sent_bytes", meaning, labels=("way",))
            sent.add_metric(["whole"], bucket.whole_bytes)
            sent.add_metric(["delta"], bucket.delta_bytes)
            yield sent


class MetricsPort:
    """Serves a registry of metrics by prometheus_client's WSGI application. Listens from construction to `close`."""

    def __init__(
        self,
        host: str,
        port: int,
        registry: CollectorRegistry,
        *,
        access: Access | None = None,
        tls: ServerTls | None = None,
    ) -> None:
        """`access` decides who may read, by default every caller. Port 0 means any free port.

        Raises SettingsError if the port is taken or the address cannot be used.
        """
        addresses.check_port(host, port, "--metrics-port")
        family, *_, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]

        class Server(_Server):
            address_family = family

        application = _guarded(make_wsgi_app(registry), access or Access(host=host))
        try:
            self._server = make_server(str(address[0]), port, application, Server, handler_class=_Handler)
        except OSError as error:
            raise addresses.refused(host, port, "--metrics-port") from error
        if tls is not None:  # the handshake runs on each caller's thread, so that a silent caller does not block others
            self._server.socket = tls.http_context().wrap_socket(
                self._server.socket, server_side=True, do_handshake_on_connect=False
            )
        self.address = addresses.address(host, self._server.server_port)
        self._thread = threading.Thread(target=self._server.serve_forever, name="metrics", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class _Server(ThreadingWSGIServer):
    """Answers each caller on its own thread. A connection beyond `_CALLERS` ends the oldest connection."""

    def __init__(self, *arguments: Any) -> None:
        self._lock = threading.Lock()
        self._callers: dict[socket.socket, None] = {}  # the oldest first
        super().__init__(*arguments)

    def process_request(self, request: Any, client_address: Any) -> None:
        with self._lock:
            if len(self._callers) == _CALLERS:
                oldest = next(iter(self._callers))
                del self._callers[oldest]
                with contextlib.suppress(OSError):
                    oldest.shutdown(socket.SHUT_RDWR)  # its thread then reads an end of file, and closes the socket
            self._callers[request] = None
        super().process_request(request, client_address)

    def close_request(self, request: Any) -> None:
        with self._lock:
            self._callers.pop(request, None)
        super().close_request(request)

    def handle_error(self, *_: object) -> None:
        """Print no traceback for a caller that leaves, is silent or speaks no TLS."""


class _Handler(WSGIRequestHandler):
    timeout = 5.0  # seconds for each read and write

    def get_environ(self) -> dict[str, Any]:
        environ: dict[str, Any] = super().get_environ()
        if isinstance(self.connection, ssl.SSLSocket):
            environ["paramsync.certificate"] = self.connection.getpeercert()
        return environ

    def log_message(self, *_: object) -> None:
        """Log no requests."""


def _guarded(application: Callable[..., Iterable[bytes]], access: Access) -> Callable[..., Iterable[bytes]]:
    """Wrap the application. A caller that may not read, or that names another host, gets 401 or 403."""

    def answer(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        certificate = name_in(environ.get("paramsync.certificate"))
        caller = Caller(environ["REMOTE_ADDR"], bearer(environ.get("HTTP_AUTHORIZATION")), certificate)
        try:
            if access.looks_at(Effect.READS):
                access.check_read("GET /metrics", caller)
            access.check_host("GET /metrics", [environ.get("HTTP_HOST", "")])
        except UnauthenticatedError as error:
            start_response("401 Unauthorized", [("WWW-Authenticate", "Bearer")])
            return [f"{error}\n".encode()]
        except NotAllowedError as error:
            start_response("403 Forbidden", [("Content-Type", "text/plain; charset=utf-8")])
            return [f"{error}\n".encode()]
        return application(environ, start_response)

    return answer
