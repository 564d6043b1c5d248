"""Where a gRPC port listens."""

from __future__ import annotations

import socket
from pathlib import Path

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from paramsync.errors import SettingsError
from tests.support.running import LONG, LocalRunning

ELSEWHERE, HERE = "203.0.113.1", "127.0.0.1"


def resolve(patch: pytest.MonkeyPatch, *addresses: str) -> None:
    """Have every name be those of these addresses."""
    found = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, 0)) for address in addresses]
    patch.setattr("inferencer.transport.listeners.socket.getaddrinfo", lambda *_, **__: found)


@pytest.mark.parametrize("addresses", [(ELSEWHERE, HERE), (HERE, ELSEWHERE), (HERE, "127.0.0.2")])
def test_a_port_listens_at_those_addresses_of_a_name_that_this_machine_has(
    addresses: tuple[str, ...], tmp_path: Path
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        resolve(patch, *addresses)
        running = LocalRunning(tmp_path / "m")
    try:
        for address in {*addresses} - {ELSEWHERE}:
            with grpc.insecure_channel(f"{address}:{running.port}") as channel:
                assert health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(), timeout=LONG)
    finally:
        running.close()


def test_a_name_without_an_address_of_this_machine_is_refused(tmp_path: Path) -> None:
    with pytest.MonkeyPatch.context() as patch:
        resolve(patch, ELSEWHERE)
        with pytest.raises(SettingsError, match="--port"):
            LocalRunning(tmp_path / "m")
