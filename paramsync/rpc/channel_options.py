"""What both programs tell gRPC of a port that strangers may reach: who is waited for, and for how long."""

from __future__ import annotations

from paramsync.host import descriptors

MOST_CONNECTIONS = 4096  # for each port, where descriptors allow
SILENT_SECONDS = 10  # until a new connection has to speak HTTP/2
IDLE_SECONDS = 60  # until a connection without a call is closed, as that of HTTP is; callers make another one unnoticed
ALIVE_SECONDS = 30  # after which a connection with calls that is silent is asked whether there is anybody
_PORTS = 3  # of one process
_MOST_CALLS_OF_ONE = 1 << 10  # on one connection, whose caller waits with more
_MOST_PENDING = 1 << 14  # that have come and were not looked at, for each port


def options(message_bytes: int) -> tuple[tuple[str, int], ...]:
    """For messages that may be so large."""
    return (
        ("grpc.so_reuseport", 0),  # else a second server could take the same port, and each would get some of the calls
        ("grpc.max_receive_message_length", message_bytes),
        ("grpc.max_send_message_length", message_bytes),
        ("grpc.max_allowed_incoming_connections", min(MOST_CONNECTIONS, descriptors.for_connections() // _PORTS)),
        ("grpc.server_handshake_timeout_ms", 1000 * SILENT_SECONDS),
        ("grpc.max_connection_idle_ms", 1000 * IDLE_SECONDS),
        ("grpc.keepalive_time_ms", 1000 * ALIVE_SECONDS),
        ("grpc.max_concurrent_streams", _MOST_CALLS_OF_ONE),
        # a connection whose caller resets calls at once is refused more, because calls that are over count until gRPC
        # has let go of them. As many of them as of others may be, else callers that wait would be refused too
        ("grpc.http.overload_protection", 1),
        ("grpc.http2.max_deallocating_streams", _MOST_CALLS_OF_ONE),
        # where more than 1000 calls came that nobody has looked at, gRPC ends some with CANCELLED by chance: an event
        # loop that was kept from running for a moment loses calls. So they wait, and are answered or refused by name
        ("grpc.server.max_pending_requests", _MOST_PENDING),
        ("grpc.server.max_pending_requests_hard_limit", _MOST_PENDING),
        ("grpc.http2.bdp_probe", 0),  # else gRPC reads up to 4 MB ahead of each stream that nobody reads
    )
