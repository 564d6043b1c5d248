"""Template: the process from which workers, trials and importers are forked."""

from __future__ import annotations

import errno
import logging
import os
import pickle
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from paramsync.host.processes import adopt_orphans

_log = logging.getLogger("paramsync.supervisor")
_IMPORT_SECONDS = 120.0
_FORK_SECONDS = 30.0


class Template:
    """The supervisor's end of `program.template`. Any thread may start a process; they are forked one at a time."""

    def __init__(self, *, log_format: str = "text") -> None:
        self._log_format = log_format
        self._lock = threading.Lock()
        self._ready = False
        self._is_closed = False
        adopt_orphans()
        self._spawn()

    def start(self, role: str, *arguments: Any, descriptors: Sequence[int]) -> int:
        """Fork a process that does the work of a role, as a child of the supervisor. Returns its pid.
        Raises OSError if no process can be forked.
        """
        request = os.memfd_create(role)  # a file, because messages on the socket have a limited size
        try:
            os.write(request, pickle.dumps((role, arguments)))
            with self._lock:
                if self._is_closed:
                    raise ChildProcessError(errno.ECHILD, "the server ends: no process is started any more")
                if self.has_ended:
                    _log.error("the process that workers are forked from is gone; another one is started")
                    self._socket.close()
                    self._spawn()
                if not self._ready:
                    self._await_import()
                self._socket.settimeout(_FORK_SECONDS)
                try:
                    socket.send_fds(self._socket, [role.encode()], [request, *descriptors])
                    pid = int(self._socket.recv(16) or 0)
                except OSError:
                    self._process.kill()  # otherwise a later call would get this call's answer
                    raise
                if pid:
                    return pid
                raise ChildProcessError(errno.ECHILD, f"the process of the {role} was not forked")
        finally:
            os.close(request)

    @property
    def has_ended(self) -> bool:
        return self._process.poll() is not None

    def close(self) -> None:
        """End the template; callers that wait for its import get an error at once. May be called again."""
        self._is_closed = True
        if not self._ready:  # the template is still importing, so no process is being forked from it
            self._process.kill()
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(2)
        self._process.kill()
        self._process.wait()
        self._socket.close()

    def _await_import(self) -> None:
        """Wait until the template has imported TensorFlow.

        Raises ChildProcessError with an errno, because such errors do not blame a version.
        """
        try:
            self._socket.settimeout(_IMPORT_SECONDS)
            is_ready = self._socket.recv(16) == b"ready"
        except TimeoutError as error:
            why = f"TensorFlow was not imported within {_IMPORT_SECONDS:g} s"
            raise ChildProcessError(errno.ECHILD, why) from error
        except OSError:  # `close` was called meanwhile
            is_ready = False
        if not is_ready:
            raise ChildProcessError(errno.ECHILD, "the process that imports TensorFlow ended; its output says why")
        self._ready = True
        _log.info("TensorFlow is imported: it took %.1f s", time.monotonic() - self._since)

    def _spawn(self) -> None:
        self._socket, other_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)  # a message for each process
        package = __package__.rpartition(".")[0]
        command = [sys.executable, "-m", f"{package}.program.template", str(other_end.fileno()), self._log_format]
        self._since = time.monotonic()
        self._process = subprocess.Popen(command, pass_fds=[other_end.fileno()])
        other_end.close()
        self._ready = False
