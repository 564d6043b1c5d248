"""The template: a process that has imported all that workers need, and done nothing with it, so that it can be forked.

Run as a module with the number of a descriptor, on which the supervisor asks for processes. What TensorFlow and gRPC
start for their first call would not survive a fork: so this process never computes, and opens no channel.
"""

from __future__ import annotations

import gc
import os
import pickle
import signal
import socket
import sys
from typing import Any

from paramsync.host.processes import end_with_parent
from paramsync.program import stderr_filter
from paramsync.program.process import ending_signals, start_logging


def main() -> None:
    connection = socket.socket(fileno=int(sys.argv[1]))
    for number in ending_signals():
        signal.signal(number, signal.SIG_IGN)  # the supervisor is told, and ends its workers in its own order
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # children are reaped by the kernel
    roles = _roles()
    gc.collect()
    gc.freeze()  # what was imported stays, in pages that all children share
    connection.send(b"ready")
    while True:
        message, descriptors, _, _ = socket.recv_fds(connection, 16, 8)
        if not message:
            return
        if os.fork():
            for descriptor in descriptors:
                os.close(descriptor)
            continue
        connection.close()
        request, *others = descriptors
        role, arguments = pickle.loads(os.pread(request, os.fstat(request).st_size, 0))
        if role != "worker":  # which answers on without this process, and hears of the supervisor's end itself
            end_with_parent()
        os.close(request)
        try:
            roles[role](*arguments, descriptors=others)
        finally:
            os._exit(0)


def _roles() -> dict[str, Any]:
    start_logging()
    with stderr_filter.left_out():
        from ..importer.process import importing
        from ..worker.process import tried, work

    return {"worker": work, "trial": tried, "importer": importing}


if __name__ == "__main__":
    main()
