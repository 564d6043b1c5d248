"""File descriptors that run out: little is said of it, what is open is answered, and all is well afterwards."""

from __future__ import annotations

import http.client
import resource
import socket
from pathlib import Path

import pytest

from tests.support.inferencers import LONG, Process
from tests.support.programs import eventually


def healthy(connection: http.client.HTTPConnection) -> bool:
    connection.request("GET", "/healthz")
    answer = connection.getresponse()
    return (answer.status, bool(answer.read())) == (200, True)


@pytest.mark.slow
def test_without_descriptors_the_log_has_a_line_and_connections_that_are_there_are_answered(echoing: Process) -> None:
    pid, host = echoing.workers[0], echoing.http_address
    soft, hard = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    assert soft == min(hard, 1 << 16)  # it took what it could have
    kept = http.client.HTTPConnection(host, timeout=LONG)
    assert healthy(kept)
    before = len(echoing.lines)
    few = max(int(one.name) for one in Path(f"/proc/{pid}/fd").iterdir()) + 4
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (few, hard))
    port = int(host.rpartition(":")[2])
    clients = [socket.create_connection(("127.0.0.1", port), LONG) for _ in range(90)]
    eventually(lambda: "Too many open files" in "".join(echoing.lines), lambda: "".join(echoing.lines))
    for _ in range(20):
        assert healthy(kept)
    said = echoing.lines[before:]
    assert 0 < len([line for line in said if "Too many open files" in line]) <= 2, said
    assert "Traceback" not in "".join(said)
    for client in clients:
        client.close()
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (soft, hard))

    def answers() -> bool:
        fresh = http.client.HTTPConnection(host, timeout=LONG)
        try:
            return healthy(fresh)
        finally:
            fresh.close()

    eventually(answers, lambda: "a new connection to be answered")
    kept.close()
