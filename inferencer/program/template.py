"""The template: a process that has imported all that workers need, and done nothing with it, so that it can be forked.

Run as a module with the number of a descriptor, on which the supervisor asks for processes, and the format of logs.
What TensorFlow and gRPC start for their first call would not survive a fork: so this process never computes, and opens
no channel.
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
from paramsync.program import stderr_filter
from paramsync.program.process import ending_signals, start_logging


def main() -> None:
    connection = socket.socket(fileno=int(sys.argv[1]))
    for ending in ending_signals():
        signal.signal(ending, signal.SIG_IGN)  # the supervisor is told, and ends its workers in its own order
    gc.disable()  # what is imported stays: to look for what does not takes a tenth of the time
    roles = _roles(log_format=sys.argv[2])
    gc.freeze()  # what was imported stays, in pages that all children share
    gc.enable()
    try:
        connection.send(b"ready")
    except BrokenPipeError:  # the supervisor is gone
        return
    supervisor = os.getppid()
    while True:
        try:
            _, descriptors, _, _ = socket.recv_fds(connection, 16, 8)
        except ConnectionResetError:  # there was something that the supervisor has not read
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
    """Fork a process that is a child of the supervisor, and tell the supervisor its number. True in that process.

    1. A process in between forks it, says its number, and ends: the supervisor adopts it.
    2. Once that is so, the kernel is told to kill it when its parent ends. What becomes of the template is nothing to
       it, and whether it is stopped is nothing to the kernel.
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
        os._exit(1)  # without a number
    if forked:
        its.send(b"%d" % forked)
        os._exit(0)
    its.recv(1)  # until the template has seen the one in between end
    its.close()
    end_with_parent()
    if os.getppid() != supervisor:
        os._exit(1)  # it has ended meanwhile
    return True


def _roles(*, log_format: str) -> dict[str, Any]:
    start_logging(log_format)
    with stderr_filter.left_out():
        from ..importer.process import importing
        from ..worker.process import tried, work

    return {"worker": work, "trial": tried, "importer": importing}


if __name__ == "__main__":
    main()
