"""ChildProcess: a worker, a trial or an importer, as the supervisor sees it."""

from __future__ import annotations

import errno
import os
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


class ChildProcess:
    """A process forked from the template, which answers over a channel. Any thread may ask it."""

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
        self._template = template
        self.gone = threading.Event()
        self.channel = Channel(ours, handlers or {}, name=role)
        self.channel.ended = self._ended
        try:
            self._number = template.start(role, *arguments, descriptors=[other_end.fileno(), *descriptors])
        except BaseException:
            ours.close()
            raise
        finally:
            other_end.close()
        self.channel.start()
        try:
            self.pid = int(self.channel.ask("pid").result(_START_SECONDS))
            self._process = os.pidfd_open(self.pid)  # of no other one, whoever has the number later
        except (ClosedError, LateError, OSError) as error:
            self.channel.close()  # one that was stopped ends when it goes on
            raise ChildProcessError(errno.ECHILD, f"the process of the {role} does not start") from error

    def _ended(self) -> None:
        self.gone.set()

    @property
    def is_stopped(self) -> bool:
        """Whether somebody stopped it, as by SIGSTOP."""
        try:
            return Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()[0] in "Tt"
        except OSError:
            return False

    def exit_code(self) -> int | None:
        """How it ended, once it is gone; None where nobody knows."""
        return self._template.exit_code(self._number)

    def fault(self, doing: str) -> Exception:
        """The error of its end while it was `doing` something: GraphError where it ended by itself. That it was killed,
        as the kernel does when memory is used up, says nothing of a graph: ChildProcessError."""
        code = self.exit_code()
        if code is None:
            return ChildProcessError(errno.ECHILD, f"{doing}: the process ended with the one it was forked from")
        if code == -signal.SIGKILL:
            return ChildProcessError(errno.ECHILD, f"{doing}: the process was killed, as when memory is used up")
        return GraphError(f"{doing} ended the process ({exit_text(code)})")

    def kill(self) -> None:
        """Also where this end of the channel is closed already, and the process takes no notice of that."""
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._process, signal.SIGKILL)
        self.channel.close()

    def __del__(self) -> None:
        if hasattr(self, "_process"):
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
