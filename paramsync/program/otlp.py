"""Exports spans by OTLP on a thread of its own, so that making a span never waits. Logs a failing collector once."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Sequence

from opentelemetry import trace
from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult

_END_SECONDS = 3.0  # time to export the last spans; the rest is lost
_log = logging.getLogger("paramsync.traces")


def start_exporting() -> Callable[[], None]:
    """Set this process's tracer provider, and return a function that shuts the provider down.

    Raises ValueError for environment variables that OpenTelemetry cannot use.
    """
    words = _LastWords()
    theirs = logging.getLogger("opentelemetry")
    theirs.addHandler(words)
    theirs.propagate = False  # OpenTelemetry logs each failure and each retry
    provider = TracerProvider(resource=Resource.create({"process.pid": os.getpid()}), shutdown_on_exit=False)
    provider.add_span_processor(BatchSpanProcessor(_Exporter(OTLPSpanExporter(), words)))
    trace.set_tracer_provider(provider)

    def end() -> None:
        # the shutdown may take half a minute
        ending = threading.Thread(target=provider.shutdown, name="traces", daemon=True)
        ending.start()
        ending.join(_END_SECONDS)

    return end


class _LastWords(logging.Handler):
    """Keeps the last line that OpenTelemetry logged."""

    text = ""

    def emit(self, record: logging.LogRecord) -> None:
        self.text = record.getMessage()


class _Exporter(SpanExporter):
    """Logs once when spans begin to be lost, and once when the collector accepts them again. Belongs to one thread."""

    def __init__(self, exporter: SpanExporter, words: _LastWords) -> None:
        self._exporter = exporter
        self._words = words
        self._failing = False

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        try:
            result = self._exporter.export(spans)
        except Exception as error:  # noqa: BLE001, any error loses spans and nothing else
            self._words.text = repr(error)
            result = SpanExportResult.FAILURE
        failed = result is not SpanExportResult.SUCCESS
        if failed and not self._failing:
            _log.warning("traces are lost until the collector takes them: %.300s", self._words.text)
        elif self._failing and not failed:
            _log.info("the collector takes traces again")
        self._failing = failed
        return result

    def shutdown(self) -> None:
        self._exporter.shutdown()
