"""How bodies come in: no more than there is room for, and none that takes for ever."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial

from aiohttp import web

from paramsync import errors
from paramsync.errors import ParamsyncError, RequestError

from ...transport.memory_budget import MemoryShare
from .encodings import FREE, MOST_TIMES, known, unpacked

_SMALL = 1 << 18  # bytes that are copied on the event loop
_CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"

Aside = Callable[[Callable[[], bytes]], Awaitable[bytes]]
"""Does something on another thread."""


class TooLargeError(errors.TooLargeError):
    """A body beyond the limit."""

    def __init__(self, most: str, found: str) -> None:
        ParamsyncError.__init__(self, f"body: expected at most {most}, found {found}")


class SlowError(ParamsyncError, TimeoutError):
    """A body that did not come in time."""

    def __init__(self, seconds: float, found: int) -> None:
        super().__init__(f"body: expected all of it within {seconds:g} s, found {found} bytes")


class Intake:
    """Has each body come into the share that its request has of the server's memory. Lives on one event loop."""

    def __init__(self, aside: Aside, *, limit: int, patience: float) -> None:
        """`limit` is of one body, in bytes; `patience` in seconds."""
        self._aside = aside
        self._limit = limit
        self._patience = patience

    async def take(self, request: web.BaseRequest, share: MemoryShare) -> bytes:
        """The whole body, unpacked; the share has as much.

        Raises RequestError, EncodingError, TooLargeError, SlowError, BusyError.
        """
        encoding = known(request.headers.get("Content-Encoding", ""))
        length = request.content_length
        if length is not None and length > self._limit:
            raise TooLargeError(f"{self._limit} bytes", str(length))
        if request.headers.get("Expect", "").lower() == "100-continue":
            await request.writer.write(_CONTINUE)
            request.writer.output_size = 0
        content = await self._come(request, share)
        if encoding:
            content = await self._unpacked(content, encoding, share)
            share.keep(len(content))
        return content

    async def _come(self, request: web.BaseRequest, share: MemoryShare) -> bytes:
        parts: list[bytes] = []
        try:
            await asyncio.wait_for(self._collect(request, parts, share), self._patience)
        except BaseException as error:
            came = sum(map(len, parts))
            parts.clear()  # asyncio keeps what is raised here, with what leads to it, until garbage is collected
            if isinstance(error, asyncio.TimeoutError):
                raise SlowError(self._patience, came) from error
            if isinstance(error, web.RequestPayloadError):
                raise RequestError("body: expected what its headers say, found something else") from error
            if isinstance(error, ConnectionError):  # nobody reads this
                raise RequestError("body: expected all of it, found that the caller left") from error
            raise
        return await self._joined(parts, share)

    async def _collect(self, request: web.BaseRequest, parts: list[bytes], share: MemoryShare) -> None:
        size = 0
        async for part in request.content.iter_any():
            size += len(part)
            self._hold(part, size, parts, share)

    async def _unpacked(self, content: bytes, encoding: str, share: MemoryShare) -> bytes:
        parts: list[bytes] = []
        size, found = 0, unpacked(content, encoding)
        while part := await self._aside(partial(next, found, b"")):
            size += len(part)
            self._hold(part, size, parts, share)
            _check_times(size, len(content))
        return await self._joined(parts, share)

    async def _joined(self, parts: list[bytes], share: MemoryShare) -> bytes:
        """To copy a large body takes tens of milliseconds, for which there are two of it. Raises BusyError."""
        size = sum(map(len, parts))
        if size <= _SMALL:
            return b"".join(parts)
        share.more(size)
        content = await self._aside(lambda: b"".join(parts))
        parts.clear()
        share.keep(share.size - size)
        return content

    def _hold(self, part: bytes, size: int, parts: list[bytes], share: MemoryShare) -> None:
        parts.append(part)
        if size > self._limit:
            raise TooLargeError(f"{self._limit} bytes", f"{size} or more")
        share.more(len(part))


def _check_times(size: int, packed: int) -> None:
    if size > max(FREE, MOST_TIMES * packed):
        most = f"{FREE} bytes, or {MOST_TIMES} times the {packed} that came"
        raise TooLargeError(most, f"{size} or more when it was unpacked")
