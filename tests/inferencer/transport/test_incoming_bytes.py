"""What has come of messages that are not whole, as the kernel counts it."""

from __future__ import annotations

import socket
import sys
from collections.abc import Callable, Iterator

import pytest

from inferencer.transport.incoming_bytes import IncomingBytes
from inferencer.transport.memory_budget import MemoryBudget

MB = 1 << 20
Send = Callable[[int], None]
pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="other systems do not count it")


@pytest.fixture
def server() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server


@pytest.fixture
def ends(server: socket.socket) -> Iterator[tuple[Send, str]]:
    """How a client sends so many bytes on a connection, which are read here, and gRPC's name of it."""
    with socket.create_connection(server.getsockname()) as client:
        taken, (host, port) = server.accept()
        with taken:

            def send(size: int) -> None:
                client.sendall(bytes(size))
                while size:
                    size -= len(taken.recv(size))

            yield send, f"ipv4:{host}:{port}"


@pytest.fixture
def coming(server: socket.socket) -> IncomingBytes:
    """It counts when it is told to, not by itself."""
    coming = IncomingBytes(MemoryBudget(2 * MB))
    coming.port = server.getsockname()[1]
    return coming


def rounds(coming: IncomingBytes, *waited: str) -> None:
    """The event loop goes round, and what came is counted each time."""
    for _ in range(10):
        coming.waited(waited)
        coming.count()


def test_all_counts_that_came_since_the_connection_began(ends: tuple[Send, str], coming: IncomingBytes) -> None:
    send, peer = ends
    send(30_000)
    coming.know(peer)
    coming.count()
    assert coming.total == 30_000
    send(10_000)
    coming.count()
    assert coming.total == 40_000


def test_what_was_handed_over_counts_no_more(ends: tuple[Send, str], coming: IncomingBytes) -> None:
    send, peer = ends
    send(40_000)
    coming.know(peer)
    coming.count()
    coming.came(peer, 35_000)
    assert 4_000 < coming.total < 5_000


def test_of_a_connection_that_had_calls_all_counts_however_late_the_first_look_is(
    ends: tuple[Send, str], coming: IncomingBytes
) -> None:
    send, peer = ends
    coming.know(peer)
    send(1_000)
    coming.came(peer, 1_000)
    send(30_000)
    coming.count()
    assert 29_000 < coming.total <= 30_000


def test_headers_of_many_calls_do_not_add_up(ends: tuple[Send, str], coming: IncomingBytes) -> None:
    send, peer = ends
    coming.know(peer)
    for _ in range(20):
        send(1_100)
        coming.came(peer, 1_000)
        coming.count()
    assert coming.total == 0
    send(30_000)
    coming.count()
    assert coming.total > 29_000  # nor is what they had not a credit


def test_what_was_given_up_is_forgotten_once_no_message_is_waited_for(
    ends: tuple[Send, str], coming: IncomingBytes
) -> None:
    send, peer = ends
    coming.know(peer)
    send(30_000)
    rounds(coming, peer)
    assert coming.total == 30_000
    rounds(coming)
    assert coming.total == 0


def test_what_came_is_not_forgotten_while_the_event_loop_does_not_go_round(
    ends: tuple[Send, str], coming: IncomingBytes
) -> None:
    send, peer = ends
    coming.know(peer)
    rounds(coming)
    send(30_000)
    for _ in range(10):
        coming.count()
    assert coming.total == 30_000
    rounds(coming, peer)  # which found its call at last
    assert coming.total == 30_000


def test_a_message_that_was_compressed_is_no_credit(ends: tuple[Send, str], coming: IncomingBytes) -> None:
    send, peer = ends
    coming.know(peer)
    send(100)
    coming.came(peer, 100_000)
    coming.count()
    send(30_000)
    coming.count()
    assert coming.total == 30_000


def test_a_connection_that_is_closed_is_forgotten(ends: tuple[Send, str], coming: IncomingBytes) -> None:
    send, peer = ends
    coming.know(peer)
    coming.know(gone := "ipv4:127.0.0.1:1")
    send(30_000)
    coming.count()
    coming.came(gone, 1)
    coming.count()
    assert coming.most([peer, gone]) == peer
    assert coming.most([gone]) is None
    assert [*coming._peers] == [peer]


def test_connections_that_most_came_by_are_shut_where_the_budget_is_spent(server: socket.socket) -> None:
    coming = IncomingBytes(budget := MemoryBudget(2 * MB))
    coming.port = server.getsockname()[1]
    budget.coming = lambda: coming.total
    clients, taken = [], []
    for size in (100_000, 900_000, 300_000):
        clients.append(socket.create_connection(server.getsockname(), 10))
        connection, (host, port) = server.accept()
        taken.append(connection)
        coming.know(f"ipv4:{host}:{port}")
        clients[-1].sendall(bytes(size))
        assert len(connection.recv(size, socket.MSG_WAITALL)) == size
    coming.wake()
    assert clients[1].recv(1) == b""
    coming.rest()
    for client in (clients[0], clients[2]):
        client.setblocking(False)
        with pytest.raises(BlockingIOError):
            client.recv(1)
    for one in (*clients, *taken):
        one.close()
