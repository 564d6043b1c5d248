"""Settings of both programs that come from the environment."""

from __future__ import annotations

import os

from paramsync.errors import SettingsError

from .service_manager import ServiceManager


def service_manager() -> ServiceManager:
    """Return the service manager of this process. Removes its address, so that child processes do not inherit it."""
    return ServiceManager(os.environ.pop("NOTIFY_SOCKET", None))


def traces_asked_for_by(service: str) -> str:
    """Return the variable of OpenTelemetry that asks for traces; "" if none does.

    `service` becomes this program's name in the traces, unless the environment sets another.

    Raises SettingsError for an exporter or protocol other than OTLP by gRPC.
    """
    given = os.environ.get
    if given("OTEL_SDK_DISABLED", "").lower() == "true" or given("OTEL_TRACES_EXPORTER") == "none":
        return ""
    asking = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_TRACES_EXPORTER")
    asked = next((name for name in asking if given(name)), "")
    if not asked:
        return ""
    only = (
        ("OTEL_TRACES_EXPORTER", "otlp"),
        ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "grpc"),
        ("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc"),
    )
    for name, expected in only:
        if given(name) not in (None, "", expected):
            raise SettingsError(f"{name}: expected {expected}, found {given(name)!r}")
    if "service.name=" not in given("OTEL_RESOURCE_ATTRIBUTES", ""):
        os.environ.setdefault("OTEL_SERVICE_NAME", service)
    return asked
