"""The server's event loop: it knows when it rests, and gRPC wakes it once for all that came."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from functools import partial
from typing import Any

from inferencer.rests import Rests

_BYTES = 4096  # more events than ever come before they are looked at


class Policy(asyncio.DefaultEventLoopPolicy):
    """Python 3.10 has no other way to say what `asyncio.run` is to run on."""

    def __init__(self, rests: Rests) -> None:
        super().__init__()
        self._rests = rests

    def new_event_loop(self) -> asyncio.AbstractEventLoop:
        return Loop(self._rests)


class Loop(asyncio.SelectorEventLoop):
    """For each event gRPC writes one byte, of which it reads one whenever it looks at all events that there are.

    The bytes that are left wake the loop again and again: several turns for each call, and no rest between them.
    """

    def add_reader(self, fd: Any, callback: Callable[..., Any], *args: Any) -> None:  # type: ignore[override]
        if isinstance(fd, socket.socket) and _is_grpcs(callback):
            callback = partial(_woken, fd, callback)
        super().add_reader(fd, callback, *args)


def _is_grpcs(callback: Any) -> bool:
    """Named, not imported: arguments are looked at before anything large is."""
    owner = getattr(getattr(callback, "func", callback), "__self__", None)
    return type(owner).__name__ == "PollerCompletionQueue"


def _woken(waking: socket.socket, callback: Callable[..., Any], *arguments: Any) -> None:
    """An event is there before its byte: all those whose bytes are taken here are seen by the callback."""
    if (count := len(waking.recv(_BYTES, socket.MSG_PEEK))) > 1:
        waking.recv(count - 1)  # the callback takes the last
    callback(*arguments)
