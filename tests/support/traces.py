"""An OpenTelemetry collector (OTLP by gRPC), and the environment that makes programs use it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import grpc
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2, trace_service_pb2_grpc


@dataclass(frozen=True)
class Seen:
    """A span that the collector has received."""

    service: str
    name: str
    trace: str
    id: str
    parent: str
    begin: int
    end: int
    failed: bool
    attributes: dict[str, Any]


class Collector(trace_service_pb2_grpc.TraceServiceServicer):  # type: ignore[misc, unused-ignore]
    def __init__(self) -> None:
        self.address = ""
        self.stop: Callable[[], object] = lambda: None
        self._spans: list[Seen] = []
        self._changed = threading.Condition()

    def Export(self, request: Any, context: Any) -> Any:
        with self._changed:
            for resource in request.resource_spans:
                service = _values(resource.resource.attributes)["service.name"]
                for scope in resource.scope_spans:
                    self._spans += [
                        Seen(
                            service,
                            span.name,
                            span.trace_id.hex(),
                            span.span_id.hex(),
                            span.parent_span_id.hex(),
                            span.start_time_unix_nano,
                            span.end_time_unix_nano,
                            span.status.code == span.status.STATUS_CODE_ERROR,
                            _values(span.attributes),
                        )
                        for span in scope.spans
                    ]
            self._changed.notify_all()
        return trace_service_pb2.ExportTraceServiceResponse()

    def wait(self, enough: Callable[[list[Seen]], bool], seconds: float = 60.0) -> list[Seen]:
        """Wait until the spans are `enough`, and return all of them."""
        with self._changed:
            assert self._changed.wait_for(lambda: enough(self._spans), seconds), self._spans
            return list(self._spans)

    @property
    def environment(self) -> dict[str, str]:
        """Variables that make a program send its spans here quickly, and give up quickly if it cannot."""
        return {
            "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://{self.address}",
            "OTEL_EXPORTER_OTLP_TIMEOUT": "1",
            "OTEL_BSP_SCHEDULE_DELAY": "100",
        }


@contextmanager
def collector() -> Iterator[Collector]:
    server, servicer = grpc.server(ThreadPoolExecutor(2)), Collector()
    trace_service_pb2_grpc.add_TraceServiceServicer_to_server(servicer, server)  # type: ignore[no-untyped-call]
    servicer.address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    servicer.stop = lambda: server.stop(None).wait()
    server.start()
    try:
        yield servicer
    finally:
        servicer.stop()


def _values(attributes: Any) -> dict[str, Any]:
    return {one.key: getattr(one.value, one.value.WhichOneof("value")) for one in attributes}
