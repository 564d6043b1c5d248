"""Template: the process that workers, trials and importers are forked from."""

from __future__ import annotations

import logging
import os
import pickle
import socket
import subprocess
import sys
import threading
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

_log = logging.getLogger("paramsync.supervisor")
_IMPORT_SECONDS = 120.0


class Template:
    """The supervisor's end of `program.template`. Any thread may ask it for another process."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._ready = False
        self._spawn()

    def start(self, role: str, *arguments: Any, descriptors: Sequence[int]) -> None:
        """Fork a process that does what its role says. Raises OSError where there is none."""
        request = os.memfd_create(role)  # of any length
        try:
            os.write(request, pickle.dumps((role, arguments)))
            with self._lock:
                if self.has_ended:
                    _log.error("the process that workers are forked from is gone; another one is started")
                    self._spawn()
                if not self._ready:
                    self._socket.settimeout(_IMPORT_SECONDS)
                    if self._socket.recv(16) != b"ready":
                        raise OSError("the process that imports TensorFlow ended; its output says why")
                    self._socket.settimeout(None)
                    self._ready = True
                socket.send_fds(self._socket, [b"fork"], [request, *descriptors])
        finally:
            os.close(request)

    @property
    def has_ended(self) -> bool:
        return self._process.poll() is not None

    def close(self) -> None:
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(2)
        self._process.kill()

    def _spawn(self) -> None:
        self._socket, other_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)  # one message, one process
        package = __package__.rpartition(".")[0]
        command = [sys.executable, "-m", f"{package}.program.template", str(other_end.fileno())]
        self._process = subprocess.Popen(command, pass_fds=[other_end.fileno()])
        other_end.close()
        self._ready = False
