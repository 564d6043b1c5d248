"""How bodies come in: no more than there is room for, and none that takes for ever."""

from __future__ import annotations

import asyncio

from aiohttp import web

from paramsync.errors import BusyError, ParamsyncError, RequestError

_CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"


class TooLargeError(ParamsyncError):
    """A body beyond the limit."""

    def __init__(self, found: object, limit: int) -> None:
        super().__init__(f"body: expected at most {limit} bytes, found {found}")


class SlowError(ParamsyncError):
    """A body that did not come in time."""

    def __init__(self, seconds: float, found: int) -> None:
        super().__init__(f"body: expected all of it within {seconds:g} s, found {found} bytes")


class Intake:
    """The room that all bodies share which came and were not read yet. Lives on one event loop."""

    def __init__(self, *, limit: int, room: int, patience: float) -> None:
        """`limit` is of one body and `room` of all, in bytes; `patience` in seconds."""
        self._limit = limit
        self._room = room
        self._patience = patience
        self.held = 0

    async def take(self, request: web.BaseRequest) -> bytes:
        """The whole body, to be let go of with `release`. Raises TooLargeError, SlowError, BusyError."""
        length = request.content_length
        if length is not None and length > self._limit:
            raise TooLargeError(length, self._limit)
        if request.headers.get("Expect", "").lower() == "100-continue":
            await request.writer.write(_CONTINUE)
            request.writer.output_size = 0
        parts: list[bytes] = []
        try:
            await asyncio.wait_for(self._collect(request, parts), self._patience)
        except BaseException as error:
            self.release(sum(map(len, parts)))
            if isinstance(error, asyncio.TimeoutError):
                raise SlowError(self._patience, sum(map(len, parts))) from error
            if isinstance(error, web.RequestPayloadError):
                raise RequestError("body: expected what its headers say, found what cannot be unpacked") from error
            if isinstance(error, ConnectionError):  # nobody reads this
                raise RequestError("body: expected all of it, found that the caller left") from error
            raise
        return b"".join(parts)

    def release(self, size: int) -> None:
        self.held -= size

    async def _collect(self, request: web.BaseRequest, parts: list[bytes]) -> None:
        size = 0
        async for part in request.content.iter_any():
            parts.append(part)
            size += len(part)
            self.held += len(part)
            if size > self._limit:
                raise TooLargeError(f"{size} or more", self._limit)
            if self.held > self._room:
                raise BusyError(f"requests of {self._room} bytes are being read already; try again in a moment")
