"""Which connections are shut so that a port stays open for newcomers."""

from __future__ import annotations

import socket

import pytest

from paramsync.host.tcp_connections import TcpConnection
from paramsync.rpc.connection_limit import ConnectionLimit, to_shut

ALL = range(100)


def connections(*silent: tuple[str, int]) -> dict[tuple[str, int], TcpConnection]:
    """By host, and how long each said nothing; ports and inodes count from 0."""
    return {(host, port): TcpConnection(port, silent_ms) for port, (host, silent_ms) in enumerate(silent)}


@pytest.mark.parametrize(
    ("found", "busy", "settled", "count", "expected"),
    [
        (connections(("a", 5), ("a", 9), ("a", 7)), (), ALL, 2, [1, 2]),
        (connections(("a", 5), ("a", 9), ("a", 7)), [("a", 1)], ALL, 2, [2, 0]),
        (connections(("a", 5), ("a", 9), ("a", 7)), (), [0], 2, [0]),
        (connections(("a", 1), ("a", 2), ("a", 3), ("b", 90)), (), ALL, 2, [2, 1]),
        (connections(("a", 1), ("b", 90), ("b", 80), ("b", 70)), (), ALL, 1, [1]),
        (connections(("a", 1)), (), ALL, 0, []),
    ],
    ids=["longest silent", "not those with calls", "not new ones", "of who has most", "of who has most now", "enough"],
)
def test_quiet_connections_of_who_has_most_are_shut(
    found: dict[tuple[str, int], TcpConnection],
    busy: list[tuple[str, int]],
    settled: range,
    count: int,
    expected: list[int],
) -> None:
    assert [one.inode for one in to_shut(found, busy, settled, count)] == expected


def test_a_connection_with_a_call_stays_where_quiet_ones_are_shut() -> None:
    limit = ConnectionLimit(4)
    with socket.create_server(("127.0.0.1", 0)) as server:
        clients, taken = [], []
        for _ in range(4):
            clients.append(socket.create_connection(server.getsockname(), 10))
            taken.append(server.accept()[0])
        calling = f"ipv4:127.0.0.1:{clients[0].getsockname()[1]}"
        port = server.getsockname()[1]
        limit.begin("context", calling)
        assert limit.run_once(port) == 4  # all are new
        limit._seen = dict.fromkeys(limit._seen, -1e9)
        limit.run_once(port)
        gone = [client for client in clients[1:] if _is_over(client)]
        assert len(gone) == 1
        assert not _is_over(clients[0])
        for one in (*clients, *taken):
            one.close()


def _is_over(client: socket.socket) -> bool:
    client.setblocking(False)
    try:
        return client.recv(1) == b""
    except BlockingIOError:
        return False
