"""The template: a process that has imported all that workers need, and done nothing with it, so that it can be forked.

Run as a module with the number of a descriptor, on which the supervisor asks for processes, and the format of logs.
What TensorFlow and gRPC start for their first call would not survive a fork: so this process never computes, and opens
no channel.
"""

from __future__ import annotations

import gc
import os
import pickle
import select
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
    ends, bell = socket.socketpair()  # which rings when a child has ended
    bell.setblocking(False)
    signal.set_wakeup_fd(bell.fileno(), warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda number, frame: None)
    children: dict[int, int] = {}  # the number of each process
    gc.freeze()  # what was imported stays, in pages that all children share
    gc.enable()
    try:
        connection.send(b"ready")
    except BrokenPipeError:  # the supervisor is gone
        return
    while True:
        ready, _, _ = select.select([connection, ends], [], [])
        if ends in ready:
            ends.recv(4096)
            _tell_ends(connection, children)
        if connection not in ready:
            continue
        try:
            number, descriptors, _, _ = socket.recv_fds(connection, 16, 8)
        except ConnectionResetError:  # there was something that the supervisor has not read
            break
        if not number:
            break
        if pid := os.fork():
            children[pid] = int(number)
            for descriptor in descriptors:
                os.close(descriptor)
            continue
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        for inherited in (connection, ends, bell):
            inherited.close()
        order, *others = descriptors
        role, arguments = pickle.loads(os.pread(order, os.fstat(order).st_size, 0))
        os.close(order)
        if role != "worker":  # which answers on without this process, and hears of the supervisor's end itself
            end_with_parent()
        try:
            roles[role](*arguments, descriptors=others)
        finally:
            os._exit(0)
    signal.set_wakeup_fd(-1)  # or the ends of children would be written to a descriptor that is closed
    for pid in children:  # the supervisor is gone: one that was stopped, or never ends, does not hear of that
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def _tell_ends(connection: socket.socket, children: dict[int, int]) -> None:
    """Which children have ended, and how, see Template.exit_code."""
    with suppress(ChildProcessError):  # there are none
        while (ended := os.waitpid(-1, os.WNOHANG))[0]:
            number = children.pop(ended[0])
            with suppress(OSError):  # the supervisor is gone
                connection.send(b"%d %d" % (number, os.waitstatus_to_exitcode(ended[1])), socket.MSG_DONTWAIT)


def _roles(*, log_format: str) -> dict[str, Any]:
    start_logging(log_format)
    with stderr_filter.left_out():
        from ..importer.process import importing
        from ..worker.process import tried, work

    return {"worker": work, "trial": tried, "importer": importing}


if __name__ == "__main__":
    main()
