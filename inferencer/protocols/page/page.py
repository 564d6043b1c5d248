"""The page at / of the HTTP port, and /api, by which it sees and changes things: what comes is checked, translated."""

from __future__ import annotations

import asyncio
import gzip
import hashlib
import json
import uuid
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from aiohttp import web

from paramsync.errors import InputError, NotAllowedError, ParamsyncError, RequestError
from paramsync.following.operator_requests import Action
from paramsync.following.pins_file import check_label
from paramsync.rpc.access import Access

from ...serving.access import caller_of
from ...serving.served import Models
from ..http.intake import SlowBodyError
from ..http.replies import JSON, failed, reply
from ..sync.service import wait
from . import messages
from .live import MOST, Asks, Live, Reader, SlowReaderError

_FILES = Path(__file__).with_name("files")
_KINDS = {
    ".css": "text/css; charset=utf-8",
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
    ".txt": "text/plain; charset=utf-8",
}
_POLICY = "default-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; object-src 'none'"
_HEADERS = {
    "Content-Security-Policy": _POLICY,
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}
_LIVE_HEADERS = {
    **_HEADERS,
    "Content-Type": "text/event-stream",
    "Cache-Control": "no-store",
    "Server": "paramsync",
    "X-Accel-Buffering": "no",  # or a proxy would keep changes until it has many
}
_PATIENCE = 10.0
_BODY = 4096  # bytes of an action
_SECONDS = 60.0  # for an action
_API, _STATE, _EVENTS, _DIFF, _MODELS = "/api/", "/api/state", "/api/events", "/api/diff", "/api/models/"
_ACTIONS = {action.value: action for action in (
    Action.SYNC, Action.PIN, Action.UNPIN, Action.ROLLBACK, Action.LABEL, Action.UNLABEL
)}  # fmt: skip
_NUMBERED = (Action.PIN, Action.LABEL)
_LABELLED = (Action.LABEL, Action.UNLABEL)


@dataclass(frozen=True)
class File:
    content: bytes
    packed: bytes  # the same by gzip
    kind: str
    tag: str

    @classmethod
    def read(cls, path: Path) -> File:
        content = path.read_bytes()
        tag = f'W/"{hashlib.sha256(content).hexdigest()[:32]}"'  # weak: of both forms
        return cls(content, gzip.compress(content, mtime=0), _KINDS[path.suffix], tag)


def files() -> dict[str, File]:
    """By the path that a browser asks for."""
    found = {f"/page/{path.name}": File.read(path) for path in sorted(_FILES.iterdir()) if path.suffix in _KINDS}
    return {"/": found.pop("/page/index.html"), **found}


class Page:
    """Lives on one event loop."""

    def __init__(self, models: Models, supervisor: Asks, access: Access, *, patience: float = _PATIENCE) -> None:
        """`patience` is how many seconds somebody may take to read what is sent, or to send an action."""
        self._patience = patience
        self._models = models
        self._supervisor = supervisor
        self._access = access
        self._live = Live(supervisor)
        self._files = files()

    def is_file(self, path: str) -> bool:
        return path in self._files

    def knows(self, path: str) -> bool:
        return self.is_file(path) or path.startswith(_API)

    def end(self) -> None:
        """Every stream is ended."""
        self._live.end()

    async def answer(self, request: web.BaseRequest) -> web.StreamResponse:
        """Of somebody who may ask. A stream is over when this returns. Raises ParamsyncError, also where an action was
        not done."""
        path = request.rel_url.raw_path
        if path.startswith(_MODELS):
            return await self._act(request)
        if request.method not in ("GET", "HEAD"):
            return failed(405, f"expected GET, found {request.method[:20]}", {"Allow": "GET, HEAD"})
        if path in self._files:
            return _file(request, self._files[path])
        if path == _STATE:
            _, state = await self._live.whole()
            return reply(200, self._shown(request, state), {**_HEADERS, "Cache-Control": "no-store"})
        if path == _EVENTS and request.method == "GET":
            return await self._stream(request)
        if path == _DIFF:
            return reply(200, await self._compared(request), {**_HEADERS, "Cache-Control": "no-store"})
        offered = f"{_STATE}, {_EVENTS}, {_DIFF} or {_MODELS}NAME/ACTION"
        return failed(404, f"expected {offered}, found {path[:200]}")

    async def _compared(self, request: web.BaseRequest) -> bytes:
        model, old, new = request.query.get("model", ""), _version(request, "old"), _version(request, "new")
        asker = uuid.uuid4().hex
        try:
            found: bytes = await self._supervisor("compare", self._models.find(model).name, old, new, asker)
        except asyncio.CancelledError:  # whoever asked left
            with suppress(ParamsyncError):
                await self._supervisor("compare_no_more", asker)
            raise
        return found

    def _shown(self, request: web.BaseRequest, state: bytes) -> bytes:
        """All there is, and whether whoever asks may change it."""
        why = ""
        try:
            self._access.check_read("an action of the page", caller_of(request))
        except NotAllowedError as error:
            why = str(error)
        actions = {"allowed": not why, "token": self._access.takes_tokens, "why": why}
        return b'{"actions":' + messages.text(actions) + b"," + state[1:]

    # What changes, as it does -----------------------------------------------------------------------------------------

    async def _stream(self, request: web.BaseRequest) -> web.StreamResponse:
        if self._live.ended or len(self._live) >= MOST:
            why = "the server is stopping" if self._live.ended else f"expected at most {MOST} pages, found one more"
            return failed(503, why, {"Retry-After": "5"}, last=True)
        response = web.StreamResponse(headers=_LIVE_HEADERS)
        response.force_close()
        with self._live.read() as reader:
            try:
                await response.prepare(request)
                await self._send(request, reader, response)
                await asyncio.wait_for(response.write_eof(), self._patience)
            except (ConnectionError, SlowReaderError, asyncio.TimeoutError, ParamsyncError):
                if request.transport is not None:
                    request.transport.abort()
        return response

    async def _send(self, request: web.BaseRequest, reader: Reader, response: web.StreamResponse) -> None:
        while (news := await reader.next()) is not None:
            kind, data = news
            data = self._shown(request, data) if kind == "state" else data
            await asyncio.wait_for(response.write(b"event: %s\ndata: %s\n\n" % (kind.encode(), data)), self._patience)
        await asyncio.wait_for(response.write(b"event: end\ndata: {}\n\n"), self._patience)

    # What is asked for ------------------------------------------------------------------------------------------------

    async def _act(self, request: web.BaseRequest) -> web.Response:
        if request.method != "POST":
            return failed(405, f"expected POST, found {request.method[:20]}", {"Allow": "POST"})
        if (problem := _origin_problem(request)) is not None:
            return failed(403, problem)
        if request.content_type != JSON:
            return failed(415, f"Content-Type: expected {JSON}, found {request.content_type[:100]}")
        name, _, what = request.rel_url.path.removeprefix(_MODELS).rpartition("/")
        if what not in _ACTIONS:
            return failed(404, f"expected one of {', '.join(_ACTIONS)}, found {what[:100]!r}")
        action = _ACTIONS[what]
        number, label = _arguments(action, await self._body(request))
        asked = {"model": name, "version": number, "label": label}
        told = " ".join(f"{key}={value!r}" for key, value in asked.items() if value not in (None, ""))
        with self._access.audited(f"page/{what}", caller_of(request), told):
            followers = self._models.followers(name)
            if len(followers) > 1:
                parts = " and ".join(one.model for one in followers)
                raise RequestError(f"model {name!r}: expected one with a store, found one joined from {parts}")
            status = await wait(followers[0], action, _Waiting(), number, label)
        return reply(200, messages.text(messages.of_status(status)) + b"\n", _HEADERS)

    async def _body(self, request: web.BaseRequest) -> dict[str, Any]:
        """Raises SlowBodyError, RequestError."""
        content = bytearray()
        try:
            await asyncio.wait_for(_come(request, content), self._patience)
        except asyncio.TimeoutError as error:
            raise SlowBodyError(self._patience, len(content)) from error
        except web.RequestPayloadError as error:
            raise RequestError("body: expected what its headers say, found something else") from error
        with suppress(ValueError, RecursionError):  # the second for lists in lists
            found = json.loads(content or b"{}")
            if isinstance(found, dict):
                return found
        raise InputError("body", expected='a JSON object, such as {"version": 420}', found=repr(bytes(content[:100])))


class _Waiting:
    """What a call of the gRPC service asks about its caller."""

    def time_remaining(self) -> float:
        return _SECONDS


def _file(request: web.BaseRequest, file: File) -> web.Response:
    cached = {"ETag": file.tag, "Cache-Control": "no-cache", "Vary": "Accept-Encoding"}
    headers = {**_HEADERS, "Content-Type": file.kind, **cached}
    if file.tag in request.headers.get("If-None-Match", ""):
        return reply(304, b"", headers)
    if "gzip" in {encoding.strip() for encoding in request.headers.get("Accept-Encoding", "").split(",")}:
        return reply(200, file.packed, {**headers, "Content-Encoding": "gzip"})
    return reply(200, file.content, headers)


def _origin_problem(request: web.BaseRequest) -> str | None:
    """Browsers say which site a request comes from; other programs have to say that it is this one."""
    origin, site = request.headers.get("Origin"), request.headers.get("Sec-Fetch-Site")
    host = request.headers.get("Host", "")
    if origin is not None:
        if host and origin.partition("://")[2].lower() == host.lower():
            return None
        return f"Origin: expected this server, http://{host[:100]}, found {origin[:100]!r}"
    if site == "same-origin":
        return None
    found = "none" if site is None else repr(site[:100])
    return f"Origin: expected this server, http://{host[:100]}, found none (Sec-Fetch-Site: {found})"


def _version(request: web.BaseRequest, name: str) -> int:
    """Raises InputError."""
    text = request.query.get(name, "")
    if not (text.isascii() and text.isdecimal() and len(text) < 20 and int(text) < 1 << 63):
        raise InputError(name, expected="the number of a version", found=repr(text[:100]))
    return int(text)


async def _come(request: web.BaseRequest, content: bytearray) -> None:
    async for part in request.content.iter_any():
        content += part
        if len(content) > _BODY:
            raise InputError("body", expected=f"at most {_BODY} bytes", found="more")


def _arguments(action: Action, body: dict[str, Any]) -> tuple[int | None, str]:
    """Raises InputError."""
    number, label = body.get("version"), body.get("label", "")
    if number is None and action in _NUMBERED:
        raise InputError("version", expected="the number of a version", found="none")
    if (
        isinstance(number, str) and len(number) <= 20 and number.isdecimal() and number.isascii()
    ):  # as /api tells one that JavaScript rounds
        number = int(number)
    if number is not None and (type(number) is not int or not 0 <= number < 1 << 63):
        raise InputError("version", expected="the number of a version", found=repr(number)[:100])
    if action in _LABELLED:
        if not isinstance(label, str):
            raise InputError("label", expected="a name, such as stable", found=repr(label)[:100])
        return number, check_label("label", label)
    return number, ""
