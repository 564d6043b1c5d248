"""The trace span of copying a version into or out of a bucket, a child of the span of the version's publication."""

from __future__ import annotations

import sys
from typing import Literal

from paramsync.remote.bucket_status import Copied


def trace_copy(name: Literal["upload", "download"], copied: Copied) -> None:
    """Make the span, if this program makes traces and the publication was traced.

    An upload begins with the commit in the trainer's local store, a download when the mirror begins to fetch.
    """
    if "opentelemetry.trace" not in sys.modules or not copied.traceparent:
        return
    from opentelemetry import trace
    from opentelemetry.context import Context
    from opentelemetry.trace import SpanKind
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    is_upload = name == "upload"
    begin = copied.published_at if is_upload else copied.here_at - copied.seconds
    end = copied.here_at if copied.in_bucket_at is None or not is_upload else copied.in_bucket_at
    attributes: dict[str, str | int] = {
        "paramsync.version": copied.number,
        "paramsync.way": copied.way,
        "paramsync.bytes": copied.size,
        "paramsync.bytes_copied": copied.bytes,
    }
    parent = TraceContextTextMapPropagator().extract({"traceparent": copied.traceparent}, Context())
    kind = SpanKind.PRODUCER if is_upload else SpanKind.CONSUMER
    span = trace.get_tracer("paramsync").start_span(name, parent, kind, attributes, start_time=int(begin * 1e9))
    span.end(int(end * 1e9))
