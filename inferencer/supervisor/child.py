"""ChildProcess: a worker, a trial or an importer, as the supervisor sees it."""

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
_EXIT_SECONDS = 1.0  # in which a process ends whose channel has


class ChildProcess:
    """A process forked by the template, which answers over a channel. Any thread may ask it.

    It is a child of this process, and the kernel kills it when this one ends.
    """

    def __init__(
        self,
        template: Template,
        role: str,
        *arguments: Any,
        descriptors: Sequence[int] = (),
        handlers: Mapping[str, Handler] | None = None,
    ) -> None:
        """Returns once it answers. `handlers` answer its own questions. Raises OSError where it does not start."""
        ours, other_end = pair()
        self._code: int | None = None
        self._taking_code = threading.Lock()
        self.gone = threading.Event()
        self.channel = Channel(ours, handlers or {}, name=role)
        self.channel.ended = self._ended
        try:
            self.pid = template.start(role, *arguments, descriptors=[other_end.fileno(), *descriptors])
            self._process = os.pidfd_open(self.pid)  # of no other one, whoever has the number later
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
        self.exit_code()  # the kernel keeps it until it is asked for

    @property
    def is_stopped(self) -> bool:
        """Whether somebody stopped it, as by SIGSTOP."""
        try:
            return Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()[0] in "Tt"
        except OSError:
            return False

    def exit_code(self) -> int | None:
        """How it ended, as in subprocess.Popen.returncode; None where it does not end."""
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
                os.close(self._process)  # at once: what refers to this may wait for a collector
            return self._code

    def fault(self, doing: str) -> Exception:
        """The error of its end while it was `doing` something: GraphError where it ended by itself. That it was killed,
        as the kernel does when memory is used up, says nothing of a graph: ChildProcessError."""
        code = self.exit_code()
        if code is None:
            return ChildProcessError(errno.ECHILD, f"{doing}: the process is gone, and nobody knows how")
        if code == -signal.SIGKILL:
            return ChildProcessError(errno.ECHILD, f"{doing}: the process was killed, as when memory is used up")
        return GraphError(f"{doing} ended the process ({exit_text(code)})")

    def kill(self) -> None:
        """Also where this end of the channel is closed already, and the process takes no notice of that."""
        with self._taking_code, suppress(ProcessLookupError):
            if self._code is None:
                signal.pidfd_send_signal(self._process, signal.SIGKILL)
        self.channel.close()

    def __del__(self) -> None:
        if hasattr(self, "_process") and self._take_code() is None:
            os.close(self._process)


def exit_text(code: int | None) -> str:
    """An exit code for a person."""
    if code is None:
        return "nobody knows how"
    if code >= 0:
        return f"exit code {code}"
    with suppress(ValueError):
        return signal.Signals(-code).name
    return f"signal {-code}"
