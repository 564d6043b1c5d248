"""ChildProcess: a worker, a trial or an importer, seen from the supervisor."""

from __future__ import annotations

import errno
import os
import select
import signal
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import TimeoutError as LateError
from contextlib import suppress
from pathlib import Path
from typing import Any

from paramsync.errors import GraphError

from ..processes.channel import Channel, ClosedError, Handler, pair
from .template import Template

_START_SECONDS = 60.0
_EXIT_SECONDS = 1.0  # how long a process may take to end after its channel is closed


class ChildProcess:
    """A process forked from the template. It answers over a channel. Any thread may use this object.

    The kernel kills the process when the supervisor ends.
    """

    def __init__(
        self,
        template: Template,
        role: str,
        *arguments: Any,
        descriptors: Sequence[int] = (),
        handlers: Mapping[str, Handler] | None = None,
    ) -> None:
        """Start the process, and return once it answers. `handlers` answer the process's requests.

        Raises OSError if the process does not start.
        """
        ours, other_end = pair()
        self._code: int | None = None
        self._taking_code = threading.Lock()
        self.gone = threading.Event()
        self.channel = Channel(ours, handlers or {}, name=role)
        self.channel.ended = self._ended
        try:
            self.pid = template.start(role, *arguments, descriptors=[other_end.fileno(), *descriptors])
            self._process = os.pidfd_open(self.pid)  # the kernel may give the same pid to another process later
        except BaseException:
            ours.close()
            raise
        finally:
            other_end.close()
        self.channel.start()
        try:
            self.channel.ask("pid").result(_START_SECONDS)
        except (ClosedError, LateError) as error:
            self.kill()
            raise ChildProcessError(errno.ECHILD, f"the process of the {role} does not start") from error

    def _ended(self) -> None:
        self.gone.set()
        if self.exit_code() is None:  # also reaps the process, which otherwise stays a zombie
            self.kill()  # a stopped process does not notice that its channel is closed
            self.exit_code()

    @property
    def is_stopped(self) -> bool:
        """Whether the process is stopped, for example by SIGSTOP or a debugger."""
        try:
            return Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()[0] in "Tt"
        except OSError:
            return False

    def exit_code(self) -> int | None:
        """Wait briefly for the process to end. Returns its exit code, as subprocess.Popen.returncode has it, or None if
        the process has not ended."""
        if self._code is None:
            ended = select.poll()
            ended.register(self._process, select.POLLIN)
            ended.poll(_EXIT_SECONDS * 1000)
        return self._take_code()

    def _take_code(self) -> int | None:
        with self._taking_code:
            if self._code is None and (exit_status := os.waitid(os.P_PIDFD, self._process, os.WEXITED | os.WNOHANG)):
                exited = exit_status.si_code == os.CLD_EXITED
                self._code = exit_status.si_status if exited else -exit_status.si_status
                os.close(self._process)  # `__del__` may come too late: a traceback can keep this object alive
            return self._code

    def fault(self, doing: str) -> Exception:
        """Return the error to raise if the process ended while it was `doing` something.

        A GraphError blames the graph. The error is a ChildProcessError, which blames no graph, if the process has not
        ended, or if somebody killed the process: for example the kernel, because memory was used up.
        """
        code = self.exit_code()
        if code is None:
            return ChildProcessError(errno.ECHILD, f"{doing}: the process is gone, for no known reason")
        if code == -signal.SIGKILL:
            return ChildProcessError(errno.ECHILD, f"{doing}: the process was killed, as when memory is used up")
        return GraphError(f"{doing} ended the process ({exit_text(code)})")

    def kill(self) -> None:
        """Kill the process, because a stopped process would not notice that its channel is closed."""
        with self._taking_code, suppress(ProcessLookupError):
            if self._code is None:
                signal.pidfd_send_signal(self._process, signal.SIGKILL)
        self.channel.close()

    def __del__(self) -> None:
        if hasattr(self, "_process") and self._take_code() is None:
            os.close(self._process)


def exit_text(code: int | None) -> str:
    """Describe an exit code for people."""
    if code is None:
        return "for no known reason"
    if code >= 0:
        return f"exit code {code}"
    with suppress(ValueError):
        return signal.Signals(-code).name
    return f"signal {-code}"
