"""Makes OpenTelemetry spans of a publication. Imported only if the training program has imported OpenTelemetry."""

from __future__ import annotations

import time
from collections.abc import Callable

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.trace import SpanKind, StatusCode
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from paramsync.version import Version

_LONG = 200  # the most characters of an error


def traced(version: Version, context: Context | None, write: Callable[[str], Version]) -> Version:
    """Call `write` with a traceparent, within a span whose parent is in `context`. Runs on the writing thread."""
    tracer, began = trace.get_tracer("paramsync"), time.time()
    attributes = {"paramsync.version": version.number, "paramsync.step": version.step}
    publish = tracer.start_span("publish", context, SpanKind.PRODUCER, attributes, start_time=_ns(version.step_done_at))
    inside = trace.set_span_in_context(publish)

    def stage(name: str, start: float, end: float) -> None:
        tracer.start_span(name, inside, start_time=_ns(start)).end(_ns(end))

    carrier: dict[str, str] = {}
    TraceContextTextMapPropagator().inject(carrier, inside)
    try:
        stage("snapshot", version.step_done_at, version.snapshot_at)
        written = write(carrier.get("traceparent", ""))
        committed = began if written.committed_at is None else written.committed_at
        publish.set_attributes({"paramsync.bytes": written.bytes, "paramsync.bytes_written": written.bytes_written})
        stage("write", began, committed)
        stage("commit", committed, time.time())
    except Exception as error:
        publish.set_status(StatusCode.ERROR, str(error)[:_LONG])
        raise
    finally:
        publish.end()
    return written


def _ns(seconds: float) -> int:
    return int(seconds * 1e9)
