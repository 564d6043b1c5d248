"""Receives and unpacks bodies, within the memory budget, the size limit and the client's time."""

from __future__ import annotations

import asyncio
import random
import zlib
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, nullcontext
from functools import partial

from aiohttp import web

from paramsync.errors import BusyError, ParamsyncError, RequestError

from ...transport.memory_budget import LARGE, MemoryShare
from ..json_reader import BodyTooLargeError

KNOWN = "gzip, deflate"
MOST_TIMES = 100
"""A body that unpacks to more than FREE bytes may have at most this many times its packed size. Numbers pack to about
a tenth of their size, zeros to a thousandth."""
FREE = 1 << 20
_STEP = 1 << 18  # bytes unpacked in one step
_PART = 1 << 16  # packed bytes given to zlib in one step, because zlib copies the input that is left
_ZLIB, _RAW, _GZIP = zlib.MAX_WBITS, -zlib.MAX_WBITS, 16 + zlib.MAX_WBITS


class EncodingError(RequestError):
    """An unknown Content-Encoding."""

    http_status = 415

    def __init__(self, found: str) -> None:
        super().__init__(f"Content-Encoding: expected {KNOWN} or none, found {found!r}")


def known(encoding: str) -> str:
    """Translate a Content-Encoding to "gzip", "deflate", or "" for none. Raises EncodingError."""
    name = encoding.strip().lower()
    if name in ("", "identity"):
        return ""
    if name in ("gzip", "x-gzip"):
        return "gzip"
    if name != "deflate":
        raise EncodingError(encoding[:40])
    return name


def unpacked(content: bytes, encoding: str) -> Iterator[bytes]:
    """Unpack the content in parts; zlib releases the GIL meanwhile. Raises RequestError."""
    zipped = zlib.decompressobj(_GZIP if encoding == "gzip" else _deflated(content))
    try:
        for at in range(0, len(content), _PART):
            part = content[at : at + _PART]
            while part and not zipped.eof:
                if more := zipped.decompress(part, _STEP):
                    yield more
                part = zipped.unconsumed_tail
    except zlib.error as error:
        raise RequestError("body: expected what its headers say, found what cannot be unpacked") from error
    if not zipped.eof or zipped.unused_data:
        found = "more after its end" if zipped.eof else "that it ends too early"
        raise RequestError(f"body: expected what its headers say, found {found}")


def _deflated(content: bytes) -> int:
    """Return zlib's window size for a "deflate" body, with or without a zlib header, which many clients leave out."""
    return _ZLIB if content[:1] and content[0] & 0x0F == zlib.DEFLATED else _RAW


_SMALL = 1 << 18  # bytes: larger bodies are copied on a thread, not on the event loop
_MOST_WAITING, _STEP_SECONDS = 1.0, 0.02  # the longest wait for memory, and the time between two checks
_CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"

OnThread = Callable[[Callable[[], bytes]], Awaitable[bytes]]
"""A function that runs another function on a thread."""


class SlowBodyError(ParamsyncError, TimeoutError):
    """A body that has not arrived in time."""

    http_status = 408

    def __init__(self, seconds: float, found: int) -> None:
        super().__init__(f"body: expected all of it within {seconds:g} s, found {found} bytes")


class _Waiting:
    """A body that is being received, or waits for its turn to be read."""

    def __init__(self, share: MemoryShare) -> None:
        self.share = share
        self.parts: list[bytes] = []
        self.coming: asyncio.Future[None] | None = None
        self._refused = False

    def refuse(self) -> None:
        self._refused = True
        self.parts.clear()
        self.share.leave()
        if self.coming is not None:
            self.coming.cancel()

    def check(self) -> None:
        """Raise BusyError if the body was refused."""
        if self._refused:
            raise BusyError("bodies that came before this one take all memory; try again in a moment")


class Intake:
    """Receives bodies, each within its request's share of the server's memory. Lives on one event loop."""

    def __init__(self, on_thread: OnThread, *, limit: int, patience: float) -> None:
        """A body has at most `limit` bytes, and must arrive within `patience` seconds."""
        self._on_thread = on_thread
        self._limit = limit
        self._patience = patience
        self._waiting: dict[MemoryShare, _Waiting] = {}  # the newest last
        self._reading = asyncio.Lock()

    @asynccontextmanager
    async def body(self, request: web.BaseRequest, share: MemoryShare) -> AsyncIterator[bytes]:
        """A context with the whole body, unpacked and counted in the share.

        Only one large or packed body at a time is unpacked and used.

        Raises RequestError, EncodingError, BodyTooLargeError, SlowBodyError, BusyError.
        """
        encoding = known(request.headers.get("Content-Encoding", ""))
        length = request.content_length
        if length is not None and length > self._limit:
            raise BodyTooLargeError(f"{self._limit} bytes", str(length))
        if request.headers.get("Expect", "").lower() == "100-continue":
            await request.writer.write(_CONTINUE)
            request.writer.output_size = 0
        waiting = _Waiting(share)
        self._waiting[share] = waiting
        try:
            await self._come(request, waiting)
            async with self._reading if encoding or share.size > _SMALL else nullcontext():
                del self._waiting[share]
                waiting.check()
                content = await self._joined(waiting.parts, share)
                if encoding:
                    content = await self._unpacked(content, encoding, share)
                    share.keep(len(content))
                yield content
        finally:
            self._waiting.pop(share, None)

    def need(self, share: MemoryShare, size: int) -> None:
        """Set the share's size. If memory is short, refuse large waiting bodies that came later, the newest first.

        No body is refused if all these bodies together would free too little. Raises the errors of MemoryShare.need.
        """
        if lacking := share.lacks(size):
            waiting = [*self._waiting.values()]
            newer = waiting[[body.share for body in waiting].index(share) + 1 :] if share in self._waiting else waiting
            large = [body for body in newer if body.share.size >= LARGE]
            if sum(body.share.size for body in large) >= lacking:
                while large and share.lacks(size):  # other processes may take the memory that refused bodies free
                    large.pop().refuse()
        share.need(size)

    async def room(self, share: MemoryShare, size: int) -> None:
        """Do what `need` does, but wait up to a second for memory that other processes may give back.

        The wait has a random length. If bodies wait for each other's memory, one gives up first, and another is read.
        """
        loop = asyncio.get_running_loop()
        end = loop.time() + random.uniform(0, _MOST_WAITING)
        while True:
            try:
                self.need(share, size)
            except BusyError:
                if share.size < LARGE or loop.time() >= end:
                    raise
            else:
                return
            await asyncio.sleep(_STEP_SECONDS)

    async def _come(self, request: web.BaseRequest, waiting: _Waiting) -> None:
        waiting.coming = asyncio.ensure_future(self._collect(request, waiting.parts, waiting.share))
        try:
            await asyncio.wait_for(waiting.coming, self._patience)
        except BaseException as error:
            waiting.check()
            came = sum(map(len, waiting.parts))
            waiting.share.leave()
            waiting.parts.clear()  # the error's traceback refers to the parts, and asyncio keeps it for a while
            if isinstance(error, asyncio.TimeoutError):
                raise SlowBodyError(self._patience, came) from error
            if isinstance(error, web.RequestPayloadError):
                raise RequestError("body: expected what its headers say, found something else") from error
            if isinstance(error, ConnectionError):  # the caller left, so nobody reads this text
                raise RequestError("body: expected all of it, found that the caller left") from error
            raise

    async def _collect(self, request: web.BaseRequest, parts: list[bytes], share: MemoryShare) -> None:
        size = 0
        async for part in request.content.iter_any():
            size += len(part)
            self._hold(part, size, parts, share)

    async def _unpacked(self, content: bytes, encoding: str, share: MemoryShare) -> bytes:
        parts: list[bytes] = []
        size, unpacking = 0, unpacked(content, encoding)
        while part := await self._on_thread(partial(next, unpacking, b"")):
            size += len(part)
            self._hold(part, size, parts, share)
            _check_times(size, len(content))
        return await self._joined(parts, share)

    async def _joined(self, parts: list[bytes], share: MemoryShare) -> bytes:
        """Join the parts. A large body is copied on a thread, and counts twice during the copy. Raises BusyError."""
        size = sum(map(len, parts))
        if size <= _SMALL:
            return b"".join(parts)
        await self.room(share, share.size + size)
        content = await self._on_thread(lambda: b"".join(parts))
        parts.clear()
        share.keep(share.size - size)
        return content

    def _hold(self, part: bytes, size: int, parts: list[bytes], share: MemoryShare) -> None:
        parts.append(part)
        if size > self._limit:
            raise BodyTooLargeError(f"{self._limit} bytes", f"{size} or more")
        self.need(share, share.size + len(part))


def _check_times(size: int, packed: int) -> None:
    if size > max(FREE, MOST_TIMES * packed):
        most = f"{FREE} bytes, or {MOST_TIMES} times the {packed} that came"
        raise BodyTooLargeError(most, f"{size} or more when it was unpacked")
