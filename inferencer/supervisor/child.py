"""ChildProcess: a worker, a trial or an importer, as the supervisor sees it."""

from __future__ import annotations

import errno
import os
import signal
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import TimeoutError as LateError
from contextlib import suppress
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
        self.channel.ended = self.gone.set
        try:
            template.start(role, *arguments, descriptors=[other_end.fileno(), *descriptors])
        finally:
            other_end.close()
        self.channel.start()
        try:
            self.pid = int(self.channel.ask("pid").result(_START_SECONDS))
        except (ClosedError, LateError) as error:
            self.channel.close()
            raise ChildProcessError(errno.ECHILD, f"the process of the {role} does not start") from error

    def ended(self, what: str) -> Exception:
        """The error of its end: GraphError with these words, unless it ended with the template."""
        if self._template.has_ended:
            return ChildProcessError(errno.ECHILD, "the process ended with the one it was forked from")
        return GraphError(what)

    def kill(self) -> None:
        if not self.gone.is_set():
            with suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)
        self.channel.close()
