"""Turns traces on if OpenTelemetry's environment variables ask for them. Otherwise OpenTelemetry is not imported."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from paramsync.errors import SettingsError
from paramsync.program.packages import install

from .settings import traces_asked_for_by


def start(service: str) -> Callable[[], None] | None:
    """Start to export spans of this process, under the name `service` unless the environment sets another.

    Call this after forking, because it starts a thread. Returns a function that ends exporting within a few seconds, or
    None if the environment does not ask for traces. Raises SettingsError if the environment's variables cannot be used,
    or if OpenTelemetry is not installed.
    """
    asked = traces_asked_for_by(service)
    if not asked:
        return None
    try:
        from .otlp import start_exporting
    except ModuleNotFoundError as error:
        if not (error.name or "").startswith("opentelemetry"):
            raise
        text = f"{asked} asks for traces, and OpenTelemetry is not installed: {install('traces')}"
        raise SettingsError(f"{text}, or set OTEL_SDK_DISABLED=true") from error
    try:
        return start_exporting()
    except ValueError as error:
        raise SettingsError(f"an environment variable of OpenTelemetry's cannot be used: {error}") from error


@contextmanager
def exported(service: str) -> Iterator[bool]:
    """Export spans while the block runs; see `start`. Yields whether the environment asks for traces."""
    end = start(service)
    try:
        yield end is not None
    finally:
        if end is not None:
            end()
