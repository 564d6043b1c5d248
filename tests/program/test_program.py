"""What both programs share: JSON logs, the service manager, traces, and the package to install."""

from __future__ import annotations

import json
import logging
import os
import re
import socket
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import paramsync
import paramsync.graphs
from paramsync.errors import SettingsError
from paramsync.program import settings, traces
from paramsync.program.json_lines import JsonLines
from paramsync.program.packages import install, requirement, with_tensorflow
from paramsync.program.service_manager import ServiceManager


def line(message: str, *arguments: object, **fields: Any) -> str:
    """Of a record that no logger has: pytest could not report text that is no Unicode."""
    record = logging.makeLogRecord(
        {"name": "paramsync.test", "levelname": "INFO", "msg": message, "args": arguments, **fields}
    )
    return JsonLines().format(record)


def test_a_record_is_one_line_with_what_is_known_of_it() -> None:
    first = json.loads(line("%s: version %d serves", "m", 7, model="m", version=7, step=None))
    time = first.pop("time")
    assert len(time) == len("2026-01-01T00:00:00.000Z")
    assert time.endswith("Z")
    assert first == {
        "level": "INFO", "logger": "paramsync.test", "message": "m: version 7 serves", "model": "m", "version": 7,
    }  # fmt: skip
    assert json.loads(line("no model")).keys() == {"time", "level", "logger", "message"}


def test_what_a_stranger_named_begins_no_line_and_hides_nothing() -> None:
    for name in ('m\n{"level": "ERROR"}', "\r\x1b[2K\x00", "\u2028\u2029\u202e", "\ud800", '"}', "\xe9" * 1000):
        text = line("%s: waits", name, model=name)
        assert text.isascii()
        assert text.isprintable()
        event = json.loads(text)
        assert [event["message"], event["model"], event["level"]] == [f"{name}: waits", name, "INFO"]


def test_an_exception_is_a_field() -> None:
    try:
        int("two\nlines")
    except ValueError:
        text = line("it failed", exc_info=sys.exc_info())
    assert "\n" not in text
    event = json.loads(text)
    assert event["message"] == "it failed"
    assert event["exception"].startswith("Traceback")
    assert event["exception"].endswith(r"'two\nlines'")


def test_what_python_itself_would_write_is_logged_too() -> None:
    script = """
import threading, warnings
from paramsync.program.process import start_logging
start_logging("json")
warnings.warn("old\\nways")
thread = threading.Thread(target=lambda: [].pop())
thread.start()
thread.join()
1 / 0
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False, timeout=60)
    warned, thread, ended = (json.loads(line) for line in done.stderr.splitlines())
    assert "old\nways" in warned["message"]
    assert (thread["level"], thread["exception"].splitlines()[-1]) == ("ERROR", "IndexError: pop from empty list")
    assert (ended["level"], ended["exception"].splitlines()[-1]) == ("CRITICAL", "ZeroDivisionError: division by zero")
    assert done.returncode == 1


@pytest.fixture(params=["path", "abstract"])
def listener(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[socket.socket, str]]:
    name = f"@paramsync-{uuid.uuid4()}" if request.param == "abstract" else str(tmp_path / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as one:
        one.bind(name.replace("@", "\0", 1) if name.startswith("@") else name)
        one.settimeout(10)
        yield one, name


def test_a_service_manager_hears_when_a_program_is_ready_and_when_it_stops(
    listener: tuple[socket.socket, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    receiver, name = listener
    monkeypatch.setenv("NOTIFY_SOCKET", name)
    manager = settings.service_manager()
    assert "NOTIFY_SOCKET" not in os.environ  # child processes do not inherit it
    manager.ready("predictions 127.0.0.1:8500")
    manager.stopping("draining\nREADY=1")
    assert receiver.recv(4096) == b"READY=1\nSTATUS=predictions 127.0.0.1:8500"
    assert receiver.recv(4096) == b"STOPPING=1\nSTATUS=draining READY=1"
    for _ in range(2000):  # more than the queue takes, and nobody reads
        manager.ready("again")


@pytest.mark.parametrize("address", [None, "", "/nowhere/notify", "@nobody-listens", "x" * 200])
def test_where_nobody_listens_nothing_happens(address: str | None) -> None:
    manager = ServiceManager(address)
    manager.ready("ready")
    manager.stopping("stops")


COMMIT = "0123456789abcdef0123456789abcdef01234567"
VCS = {"vcs": "git", "commit_id": COMMIT}


@pytest.mark.parametrize(
    ("source", "required"),
    [
        (None, "'paramsync[traces]'"),  # from an index, which has that name
        (
            {"url": "file:///src/paramsync", "dir_info": {"editable": True}},
            "'paramsync[traces] @ file:///src/paramsync'",
        ),
        ({"url": "https://a.example/p.whl", "archive_info": {}}, "'paramsync[traces] @ https://a.example/p.whl'"),
        ({"url": "https://a.example/p", "vcs_info": VCS}, f"'paramsync[traces] @ git+https://a.example/p@{COMMIT}'"),
    ],
)
def test_an_extra_is_installed_from_where_this_was(source: object, required: str) -> None:
    assert requirement("traces", None if source is None else json.dumps(source)) == required


def test_an_import_without_tensorflow_says_what_to_install() -> None:
    with pytest.raises(ModuleNotFoundError) as refused, with_tensorflow("paramsync.keras"):
        raise ModuleNotFoundError("No module named 'keras'", name="keras.callbacks")
    expected = f"paramsync.keras needs keras.callbacks, which is not installed: {install('tensorflow')}"
    assert str(refused.value) == expected


@pytest.mark.parametrize("package", [paramsync, paramsync.graphs])
def test_every_public_name_of_the_library_is_imported(package: ModuleType) -> None:
    assert [getattr(package, name).__name__ for name in package.__all__] == package.__all__


_ENDPOINT = "OTEL_EXPORTER_OTLP_ENDPOINT"


@pytest.fixture
def no_traces(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("OTEL_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("OTEL_SERVICE_NAME", "test")


@pytest.mark.usefixtures("no_traces")
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


@pytest.mark.usefixtures("no_traces")
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


@pytest.mark.usefixtures("no_traces")
def test_without_opentelemetry_one_line_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(_ENDPOINT, "http://collector:4317")
    monkeypatch.delitem(sys.modules, "paramsync.program.otlp", raising=False)
    monkeypatch.setitem(sys.modules, "opentelemetry", None)
    with pytest.raises(SettingsError, match=f"is not installed: {re.escape(install('traces'))}, or set OTEL_SDK"):
        traces.start("test")


@pytest.mark.usefixtures("no_traces")
def test_nothing_of_opentelemetry_is_imported_where_nobody_asked() -> None:
    script = (
        "import sys; from paramsync.program import traces; import paramsync.publishing.publisher,"
        " inferencer.program.start, inferencer.serving.metrics, inferencer.supervisor.server;"
        " assert traces.start('test') is None; sys.exit(any(name.startswith('opentelemetry') for name in sys.modules))"
    )
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0
