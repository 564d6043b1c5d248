"""What has come of messages that are not whole, as the kernel counts it."""

from __future__ import annotations

import socket
import sys
from collections.abc import Iterator

import pytest

from inferencer.transport.incoming_bytes import Coming

MB = 1 << 20
pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="other systems do not count it")


@pytest.fixture
def ends() -> Iterator[tuple[socket.socket, str]]:
    """A client's end of a connection, and gRPC's name of it; what it sends is read here."""
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as client:
        taken, (host, port) = server.accept()
        with taken:
            yield client, f"ipv4:{host}:{port}"


def test_of_a_new_connection_all_counts_that_came_before_the_first_look(ends: tuple[socket.socket, str]) -> None:
    client, peer = ends
    coming = Coming(MB)
    client.sendall(bytes(30_000))
    coming.look({peer})
    assert coming.total == 30_000
    client.sendall(bytes(10_000))
    coming.look({peer})
    assert coming.total == 40_000
    coming.came(peer, 35_000)
    assert coming.total == 5_000


def test_of_one_that_is_known_counts_what_comes_from_the_first_look_on(ends: tuple[socket.socket, str]) -> None:
    client, peer = ends
    coming = Coming(MB)
    client.sendall(bytes(30_000))
    coming.know(peer)
    coming.look({peer})
    assert coming.total == 0
    client.sendall(bytes(10_000))
    coming.look({peer})
    assert coming.total == 10_000


def test_a_connection_whose_message_was_given_up_owes_nothing(ends: tuple[socket.socket, str]) -> None:
    client, peer = ends
    coming = Coming(MB)
    client.sendall(bytes(30_000))
    coming.look({peer})
    coming.know(peer)  # its call was ended
    coming.look(())
    coming.look({peer})
    assert coming.total == 0
