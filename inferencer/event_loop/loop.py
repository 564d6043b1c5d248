"""The server's event loop: knows when it rests, is woken once for all that came to gRPC, and repeats no error."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable
from functools import partial
from selectors import DefaultSelector, SelectorKey
from typing import Any

_log = logging.getLogger("paramsync.loop")
_BYTES = 4096  # more events than ever come before they are looked at
_AGAIN = 10.0  # seconds until the same error is worth another line


class IdleSelector(DefaultSelector):
    """The selector of an event loop, which says when the loop has nothing to do."""

    def __init__(self) -> None:
        super().__init__()
        self.before: Callable[[], bool] | None = None
        """Asked on its own thread when it would rest: whether there is something to do at once by now."""
        self.last: Callable[[], bool] | None = None
        """Asked as `before` is, where that has nothing to do."""
        self.count = 0
        """How often nothing was due at once."""

    def select(self, timeout: float | None = None) -> list[tuple[SelectorKey, int]]:
        """As asyncio asks for: 0 where there is something to do already."""
        if timeout is not None and timeout <= 0:
            return super().select(timeout)
        if (self.before or self.last) and ((found := super().select(0)) or self._is_due()):
            return found
        self.count += 1
        return super().select(timeout)

    def _is_due(self) -> bool:
        return (self.before is not None and self.before()) or (self.last is not None and self.last())


class Policy(asyncio.DefaultEventLoopPolicy):
    """Python 3.10 has no other way to say what `asyncio.run` is to run on."""

    def __init__(self, selector: IdleSelector) -> None:
        super().__init__()
        self._selector = selector

    def new_event_loop(self) -> asyncio.AbstractEventLoop:
        return Loop(self._selector)


class Loop(asyncio.SelectorEventLoop):
    """For each event gRPC writes one byte, of which it reads one whenever it looks at all events that there are.

    The bytes that are left wake the loop again and again: several turns for each call, and no rest between them.
    """

    def __init__(self, selector: IdleSelector) -> None:
        super().__init__(selector)
        self.set_exception_handler(_Seldom())

    def add_reader(self, fd: Any, callback: Callable[..., Any], *args: Any) -> None:  # type: ignore[override]
        if isinstance(fd, socket.socket) and _is_grpcs(callback):
            callback = partial(_woken, fd, callback)
        super().add_reader(fd, callback, *args)


class _Seldom:
    """Says an error that nobody waits for, and the same one again only after a while: without file descriptors
    asyncio has hundreds a second.
    """

    def __init__(self) -> None:
        self._said: dict[tuple[str, str], float] = {}
        self._left_out = 0

    def __call__(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception")
        key = (str(context.get("message", "")), type(error).__name__)
        now = loop.time()
        self._said = {one: when for one, when in self._said.items() if now - when < _AGAIN}
        if key in self._said:
            self._left_out += 1
            return
        self._said[key] = now
        more = f" ({self._left_out} more like this were left out)" if self._left_out else ""
        self._left_out = 0
        if isinstance(error, OSError):  # the machine's, whose traceback says nothing
            _log.error("%s: %s%s", key[0], error, more)
        else:
            _log.error("%s%s", key[0], more, exc_info=error)


def _is_grpcs(callback: Any) -> bool:
    """Named, not imported: arguments are looked at before anything large is."""
    owner = getattr(getattr(callback, "func", callback), "__self__", None)
    return type(owner).__name__ == "PollerCompletionQueue"


def _woken(waking: socket.socket, callback: Callable[..., Any], *arguments: Any) -> None:
    """An event is there before its byte: all those whose bytes are taken here are seen by the callback."""
    if (count := len(waking.recv(_BYTES, socket.MSG_PEEK))) > 1:
        waking.recv(count - 1)  # the callback takes the last
    callback(*arguments)
