"""Traces: what turns them on, and what is said where they cannot be."""

from __future__ import annotations

import os
import re
import subprocess
import sys

import pytest

from paramsync.errors import SettingsError
from paramsync.program import traces
from paramsync.program.packages import install

_ENDPOINT = "OTEL_EXPORTER_OTLP_ENDPOINT"


@pytest.fixture(autouse=True)
def plain(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("OTEL_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("OTEL_SERVICE_NAME", "test")


@pytest.mark.parametrize(
    "given", [{}, {_ENDPOINT: "http://c:4317", "OTEL_SDK_DISABLED": "true"}, {"OTEL_TRACES_EXPORTER": "none"}]
)
def test_nothing_is_exported_unless_the_environment_asks_for_it(
    given: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    with traces.exported("test") as on:
        assert not on


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("OTEL_TRACES_EXPORTER", "zipkin", "OTEL_TRACES_EXPORTER: expected otlp, found 'zipkin'"),
        ("OTEL_EXPORTER_OTLP_PROTOCOL", "http/json", "OTEL_EXPORTER_OTLP_PROTOCOL: expected grpc, found 'http/json'"),
    ],
)
def test_what_cannot_be_exported_to_is_refused(
    name: str, value: str, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(_ENDPOINT, "http://collector:4317")
    monkeypatch.setenv(name, value)
    with pytest.raises(SettingsError, match=expected):
        traces.start("test")


def test_without_opentelemetry_one_line_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(_ENDPOINT, "http://collector:4317")
    monkeypatch.delitem(sys.modules, "paramsync.program.otlp", raising=False)
    monkeypatch.setitem(sys.modules, "opentelemetry", None)
    with pytest.raises(SettingsError, match=f"is not installed: {re.escape(install('traces'))}, or set OTEL_SDK"):
        traces.start("test")


def test_nothing_of_opentelemetry_is_imported_where_nobody_asked() -> None:
    script = (
        "import sys; from paramsync.program import traces; import paramsync.publishing.publisher,"
        " inferencer.program.start, inferencer.serving.metrics, inferencer.supervisor.server;"
        " assert traces.start('test') is None; sys.exit(any(name.startswith('opentelemetry') for name in sys.modules))"
    )
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0
