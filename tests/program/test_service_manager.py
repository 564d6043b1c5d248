"""What a service manager hears, by a socket of its kind."""

from __future__ import annotations

import os
import socket
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from paramsync.program import settings
from paramsync.program.service_manager import ServiceManager


@pytest.fixture(params=["path", "abstract"])
def listener(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[socket.socket, str]]:
    name = f"@paramsync-{uuid.uuid4()}" if request.param == "abstract" else str(tmp_path / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as one:
        one.bind(name.replace("@", "\0", 1) if name.startswith("@") else name)
        one.settimeout(10)
        yield one, name


def test_it_hears_when_a_program_is_ready_and_when_it_stops(listener: tuple[socket.socket, str]) -> None:
    one, name = listener
    manager = ServiceManager(name)
    manager.ready("predictions 127.0.0.1:8500")
    manager.stopping("draining\nREADY=1")
    assert one.recv(4096) == b"READY=1\nSTATUS=predictions 127.0.0.1:8500"
    assert one.recv(4096) == b"STOPPING=1\nSTATUS=draining READY=1"


@pytest.mark.parametrize("address", [None, "", "/nowhere/notify", "@nobody-listens", "x" * 200])
def test_where_nobody_listens_nothing_happens(address: str | None) -> None:
    manager = ServiceManager(address)
    manager.ready("ready")
    manager.stopping("stops")


def test_one_that_reads_nothing_holds_nobody_up(listener: tuple[socket.socket, str]) -> None:
    manager = ServiceManager(listener[1])
    for _ in range(2000):  # more than its queue takes
        manager.ready("again")


def test_children_are_not_told_of_it(listener: tuple[socket.socket, str], monkeypatch: pytest.MonkeyPatch) -> None:
    one, name = listener
    monkeypatch.setenv("NOTIFY_SOCKET", name)
    settings.service_manager().ready("it")
    assert one.recv(4096).startswith(b"READY=1")
    assert "NOTIFY_SOCKET" not in os.environ
