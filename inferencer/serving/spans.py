"""Makes trace spans for requests, and for versions from their commit to serving. Imported only if traces are on."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import grpc
from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.trace import SpanKind, StatusCode
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from paramsync.status import Event, EventKind

if TYPE_CHECKING:
    from paramsync.following.follower import Follower

_W3C = TraceContextTextMapPropagator()
_LONG = 200  # most characters of a name or reason
_AT_FAULT = frozenset(  # statuses that are a server's errors, by OpenTelemetry's conventions
    ("UNKNOWN", "DEADLINE_EXCEEDED", "UNIMPLEMENTED", "INTERNAL", "UNAVAILABLE", "DATA_LOSS")
)


class RequestSpans:
    """Makes a span for each prediction, after its answer is sent. Lives on one event loop."""

    def __init__(self) -> None:
        self._tracer = trace.get_tracer("paramsync")

    def called(
        self,
        path: str,
        metadata: Any,
        *,
        model: str,
        signature: str,
        version: str,
        code: grpc.StatusCode,
        seconds: float,
    ) -> None:
        """Make the span of a gRPC call. `path` names the method; `metadata` come from the caller."""
        service, _, method = path.partition("/")
        names = {"rpc.system": "grpc", "rpc.service": service, "rpc.method": method}
        attributes = {**names, "rpc.grpc.status_code": code.value[0], **_of(model, signature, version)}
        self._span(path, dict(metadata), attributes, seconds, failed=code.name if code.name in _AT_FAULT else "")

    def requested(
        self, route: str, headers: Any, *, model: str, signature: str, version: str, status: int, seconds: float
    ) -> None:
        """Make the span of an HTTP request."""
        names = {"http.request.method": "POST", "http.route": route, "http.response.status_code": status}
        failed = str(status) if status >= 500 else ""
        self._span(f"POST {route}", headers, {**names, **_of(model, signature, version)}, seconds, failed=failed)

    def _span(self, name: str, carrier: Any, attributes: Mapping[str, Any], seconds: float, *, failed: str) -> None:
        end = time.time_ns()
        parent = _W3C.extract(carrier, Context())
        begin = end - int(seconds * 1e9)
        span = self._tracer.start_span(name, parent, SpanKind.SERVER, attributes, start_time=begin)
        if failed:
            span.set_attribute("error.type", failed)
            span.set_status(StatusCode.ERROR)
        span.end(end)


class VersionSpans:
    """Makes spans for a follower's versions, each in the trace of its publication. Runs on the follower's thread."""

    def __init__(self, follower: Follower[Any]) -> None:
        self._tracer = trace.get_tracer("paramsync")
        self._since = time.time()
        self._found: tuple[int, float] | None = None  # the version, and the time of the event
        self._restored: tuple[int, float, float] | None = None  # the version, and the restore's start and end
        self._subscription = follower.subscribe(self._hear)

    def _hear(self) -> None:
        for event in self._subscription.take():
            if event.kind is EventKind.FOUND:
                self._found = event.version.number, event.at
            elif event.kind is EventKind.RESTORED:
                self._restored = event.version.number, event.at - event.restore_seconds, event.at
            elif event.kind in (EventKind.SWAPPED, EventKind.QUARANTINED):
                self._ended(event)

    def _ended(self, event: Event) -> None:
        version, number = event.version, event.version.number
        found, restored, committed = self._found, self._restored, version.committed_at
        steps = []
        if found is not None and found[0] == number and committed is not None and committed >= self._since:
            steps.append(("notice", committed, max(committed, found[1])))
        swap_from = event.at - event.restore_seconds
        if restored is not None and restored[0] == number:
            steps.append(("restore", restored[1], restored[2]))
            swap_from = restored[2]
        if event.kind is EventKind.SWAPPED:
            steps.append(("swap", swap_from, event.at))
        began = min([event.at, *(start for _, start, _ in steps)])
        parent = _W3C.extract({"traceparent": version.traceparent}, Context())
        attributes = {**_of(event.model, "", str(number)), "paramsync.step": version.step}
        serve = self._tracer.start_span("serve", parent, SpanKind.CONSUMER, attributes, start_time=_ns(began))
        inside = trace.set_span_in_context(serve, Context())
        for name, start, end in steps:
            self._tracer.start_span(name, inside, start_time=_ns(start)).end(_ns(end))
        if event.kind is EventKind.QUARANTINED:
            serve.set_status(StatusCode.ERROR, event.reason[:_LONG])
        serve.end(_ns(event.at))
        self._found = self._restored = None


def _of(model: str, signature: str, version: str) -> dict[str, Any]:
    said: dict[str, Any] = {"paramsync.version": int(version)} if version else {}
    if model:
        said["paramsync.model"] = model[:_LONG]
    if signature:
        said["paramsync.signature"] = signature[:_LONG]
    return said


def _ns(seconds: float) -> int:
    return int(seconds * 1e9)
