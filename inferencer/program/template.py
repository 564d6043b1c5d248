"""The template: a process that imports the modules that workers need, and is forked for each worker.

The supervisor runs this module with two arguments: the descriptor of a socket on which it asks for processes, and the
format of logs. The template never calls TensorFlow or gRPC, because both start threads at their first call, and threads
do not survive a fork.
"""

from __future__ import annotations

import gc
import os
import pickle
import signal
import socket
import sys
from contextlib import suppress
from typing import Any

from paramsync.host.processes import end_with_parent
from paramsync.program.process import ending_signals, start_logging


def main() -> None:
    connection = socket.socket(fileno=int(sys.argv[1]))
    for ending in ending_signals():
        signal.signal(ending, signal.SIG_IGN)  # the supervisor gets the signal, too, and ends its processes in order
    gc.disable()  # imports make no garbage, and collections would take a tenth of the time
    roles = _roles(log_format=sys.argv[2])
    gc.freeze()  # so that no collection writes to these pages, and all children share them
    gc.enable()
    try:
        connection.send(b"ready")
    except BrokenPipeError:  # the supervisor is gone
        return
    supervisor = os.getppid()
    while True:
        try:
            _, descriptors, _, _ = socket.recv_fds(connection, 16, 8)
        except ConnectionResetError:  # the supervisor ended without reading an answer
            return
        if not descriptors:
            return
        if _is_forked(connection, supervisor):
            break
        for descriptor in descriptors:
            os.close(descriptor)
    order, *others = descriptors
    role, arguments = pickle.loads(os.pread(order, os.fstat(order).st_size, 0))
    os.close(order)
    try:
        roles[role](*arguments, descriptors=others)
    finally:
        os._exit(0)


def _is_forked(connection: socket.socket, supervisor: int) -> bool:
    """Fork a process that is a child of the supervisor, and send its pid to the supervisor.

    Returns True in the new process, False in the template.

    1. A process in between forks the new process, sends the pid, and ends. The supervisor adopts the new process.
    2. The new process asks the kernel to kill it when the supervisor ends. The template may end earlier.
    """
    ours, its = socket.socketpair()
    if between := os.fork():
        its.close()
        os.waitpid(between, 0)
        with suppress(OSError):  # the supervisor is gone
            connection.send(ours.recv(16) or b"0")
        ours.close()
        return False
    ours.close()
    connection.close()
    try:
        forked = os.fork()
    except OSError:
        os._exit(1)  # without sending a pid
    if forked:
        its.send(b"%d" % forked)
        os._exit(0)
    its.recv(1)  # returns once the process in between has ended and the template has sent the pid
    its.close()
    end_with_parent()
    if os.getppid() != supervisor:  # the supervisor has ended meanwhile
        os._exit(1)
    return True


def _roles(*, log_format: str) -> dict[str, Any]:
    start_logging(log_format)
    from ..importer.process import importing
    from ..worker.process import tried, work

    return {"worker": work, "trial": tried, "importer": importing}


if __name__ == "__main__":
    main()
