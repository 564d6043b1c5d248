"""Calls whose message is awaited: a limit on how long each waits, and on how many wait."""

from __future__ import annotations

import asyncio

import grpc

from .grpc_connection import PortCall

_PATIENCE = 60.0
_PATIENCE_AT_THE_END = 4.0
_LOOKS = 4  # while the time of one call passes


class ReadTimeouts:
    """The silent calls of one port. Lives on one event loop.

    Over the limit, the call that has waited longest ends, so that callers who open calls and say nothing take no room
    from others.
    """

    def __init__(self, most: int, *, patience: float = _PATIENCE) -> None:
        """`patience` is how many seconds a message may take to come."""
        self._most = most
        self._patience = patience
        self._is_stopping = False
        self._silent: dict[PortCall, float] = {}  # and when each began; the oldest first
        self._looking: asyncio.TimerHandle | None = None

    def __len__(self) -> int:
        return len(self._silent)

    def begin(self, call: PortCall, now: float) -> None:
        if len(self._silent) >= self._most:
            text = f"{self._most} calls are open whose messages did not come yet; try again in a moment"
            next(iter(self._silent)).refuse(grpc.StatusCode.RESOURCE_EXHAUSTED, text)
        self._silent[call] = now
        if self._looking is None:
            self._look_later()

    def end(self, call: PortCall) -> None:
        """The message came, or the call is over."""
        self._silent.pop(call, None)

    def drain(self) -> None:
        """Wait a few seconds for messages from now on."""
        self._is_stopping = True
        self._patience = min(self._patience, _PATIENCE_AT_THE_END)
        if self._looking is not None:
            self._looking.cancel()
            self._look()

    def close(self) -> None:
        if self._looking is not None:
            self._looking.cancel()

    def _look_later(self) -> None:
        self._looking = asyncio.get_running_loop().call_later(self._patience / _LOOKS, self._look)

    def _look(self) -> None:
        self._looking = None
        late = asyncio.get_running_loop().time() - self._patience
        for call, began in [*self._silent.items()]:
            if began > late:
                break
            if self._is_stopping:
                call.refuse(grpc.StatusCode.UNAVAILABLE, "the server is stopping; call another one")
            else:
                text = f"request: expected its message within {self._patience:g} s, found that it did not come"
                call.refuse(grpc.StatusCode.DEADLINE_EXCEEDED, text)
        if self._silent:
            self._look_later()
