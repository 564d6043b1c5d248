"""Logs an event loop's unhandled errors, each at most once every ten seconds."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

_log = logging.getLogger("paramsync.loop")
_AGAIN = 10.0  # seconds until the same error is logged again


class RareErrors:
    """An exception handler: when file descriptors run out, asyncio reports hundreds of errors a second."""

    def __init__(self) -> None:
        self._logged: dict[tuple[str, str], float] = {}
        self._left_out = 0

    def __call__(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception")
        key = (str(context.get("message", "")), type(error).__name__)
        now = loop.time()
        self._logged = {known: when for known, when in self._logged.items() if now - when < _AGAIN}
        if key in self._logged:
            self._left_out += 1
            return
        self._logged[key] = now
        more = f" ({self._left_out} more like this were left out)" if self._left_out else ""
        self._left_out = 0
        if isinstance(error, OSError):  # the machine is at fault: a traceback would not help
            _log.error("%s: %s%s", key[0], error, more)
        else:
            _log.error("%s%s", key[0], more, exc_info=error)
