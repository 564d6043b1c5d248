"""The listening sockets of the workers. Each worker number has its own sockets; a successor takes them over.

The sockets stay open in the supervisor: when a worker leaves, its successor accepts the waiting connections.
"""

from __future__ import annotations

import errno
import itertools
import socket
import threading
from collections.abc import Sequence
from contextlib import suppress

from paramsync.rpc.addresses import bound, check_ports, refused

from ..settings.settings import Settings, TfServing, ports
from ..transport import listeners

Listening = tuple[Sequence[socket.socket], Sequence[socket.socket]]
"""The sockets for gRPC, and the sockets for HTTP."""


class Listeners:
    """The listening sockets of all workers. Any thread may use it."""

    def __init__(self, settings: Settings) -> None:
        """Reserve the ports; no process listens there yet.

        Raises SettingsError if a port is taken, even by another of our servers, whose workers could share the port.
        """
        check_ports(settings.host, ports(settings))
        tf_serving = settings.tf_serving or TfServing()
        self._host = settings.host
        self._path = tf_serving.socket
        self._lock = threading.Lock()
        self._listening: dict[int, Listening] = {}
        self._reserved: list[socket.socket] = []
        self._inode = 0  # inode of the UNIX socket's file
        self._is_closed = False
        self.port = self._reserve(settings.port, "--port") if tf_serving.port else 0
        """The port for gRPC; 0 if there is none."""
        self.rest_port = self._reserve(settings.rest_port, "--rest-port") if tf_serving.http else 0

    def of(self, number: int) -> Listening:
        """Return the sockets of a worker number, which stay open here.

        Raises SettingsError, and OSError when the server ends.
        """
        with self._lock:
            if self._is_closed:
                raise ChildProcessError(errno.ECHILD, "the server ends")
            if number not in self._listening:
                self._listening[number] = self._listen(on_path=not number)
            return self._listening[number]

    def drop(self, number: int) -> None:
        """Close the sockets of a number that has no worker, so that new connections go to other workers."""
        with self._lock:
            for listener in itertools.chain(*self._listening.pop(number, ())):
                with suppress(OSError):
                    listener.shutdown(socket.SHUT_RDWR)  # the worker's process may still have it open
                listener.close()

    def close(self) -> None:
        with self._lock:
            self._is_closed = True
        for number in list(self._listening):
            self.drop(number)
        for reserved in self._reserved:
            reserved.close()
        with suppress(OSError):
            if self._path is not None and self._path.stat().st_ino == self._inode:
                self._path.unlink()

    def _listen(self, *, on_path: bool) -> Listening:
        grpc = listeners.listeners_at(self._host, self.port, "--port", shared=True) if self.port else []
        if on_path and self._path is not None:
            grpc.append(listeners.listener_on(self._path))
            self._inode = self._path.stat().st_ino
        http = listeners.listeners_at(self._host, self.rest_port, "--rest-port", shared=True) if self.rest_port else []
        return grpc, http

    def _reserve(self, port: int, option: str) -> int:
        try:
            self._reserved.append(bound(self._host, port, socket.SO_REUSEPORT))
        except OSError as error:
            self.close()
            raise refused(self._host, port, option) from error
        return listeners.port_of(self._reserved[-1:])
