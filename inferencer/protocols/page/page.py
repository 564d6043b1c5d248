"""Answers requests for the operator's page, which is at / of the HTTP port, and for its state and actions at /api."""

from __future__ import annotations

import asyncio
import gzip
import hashlib
import json
import uuid
from collections.abc import Awaitable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from aiohttp import web

from paramsync.errors import InputError, NotAllowedError, ParamsyncError
from paramsync.following.operator_requests import Action
from paramsync.following.pins_file import check_label
from paramsync.rpc.access import Access

from ...serving.access import caller_of
from ...serving.served import Models, Supervisor, follower_of
from ..http.replies import JSON, failed, reply
from ..sync.service import wait
from . import messages

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
_MOST_BYTES = 4096  # the most bytes of the body of an action
_SECONDS = 60.0  # limit for an action
_PAUSE = 0.05  # seconds between two requests for the state, because an answer takes milliseconds and 150 kB a model
_API, _STATE, _DIFF, _MODELS = "/api/", "/api/state", "/api/diff", "/api/models/"
_ACTIONS = {action.value: action for action in (
    Action.SYNC, Action.PIN, Action.UNPIN, Action.ROLLBACK, Action.LABEL, Action.UNLABEL
)}  # fmt: skip
_NUMBERED = (Action.PIN, Action.LABEL)
_LABELLED = (Action.LABEL, Action.UNLABEL)


@dataclass(frozen=True)
class File:
    content: bytes
    packed: bytes  # the content, compressed by gzip
    kind: str  # the Content-Type
    tag: str  # the ETag

    @classmethod
    def read(cls, path: Path) -> File:
        content = path.read_bytes()
        tag = f'W/"{hashlib.sha256(content).hexdigest()[:32]}"'  # weak, because packed and unpacked content share it
        return cls(content, gzip.compress(content, mtime=0), _KINDS[path.suffix], tag)


def files() -> dict[str, File]:
    """Read the page's files. Returns them by URL path."""
    found = {f"/page/{path.name}": File.read(path) for path in sorted(_FILES.iterdir()) if path.suffix in _KINDS}
    return {"/": found.pop("/page/index.html"), **found}


class Page:
    """Answers requests for the page and for /api. Lives on one event loop."""

    def __init__(self, models: Models, supervisor: Supervisor, access: Access) -> None:
        self._models = models
        self._supervisor = supervisor
        self._access = access
        self._files = files()
        self._asking: dict[str | None, asyncio.Future[bytes]] = {}  # requests in progress, by model
        self._asks_at: dict[str | None, float] = {}  # time of the next request, by the event loop's clock

    def is_file(self, path: str) -> bool:
        return path in self._files

    def knows(self, path: str) -> bool:
        return self.is_file(path) or path.startswith(_API)

    async def answer(self, request: web.BaseRequest, body: bytes) -> web.Response:
        """Answer a request that passed the checks of access. Raises ParamsyncError, also if an action fails."""
        path = request.rel_url.raw_path
        if path.startswith(_MODELS):
            return await self._act(request, body)
        if request.method not in ("GET", "HEAD"):
            return failed(405, f"expected GET, found {request.method[:20]}", {"Allow": "GET, HEAD"})
        if path in self._files:
            return _file(request, self._files[path])
        if path == _STATE:
            state = await self._state(request.query.get("model"))
            return reply(200, self._with_actions(request, state), {**_HEADERS, "Cache-Control": "no-store"})
        if path == _DIFF:
            return reply(200, await self._compare(request), {**_HEADERS, "Cache-Control": "no-store"})
        return failed(404, f"expected {_STATE}, {_DIFF} or {_MODELS}NAME/ACTION, found {path[:200]}")

    def _state(self, model: str | None) -> Awaitable[bytes]:
        """Ask the supervisor for the state, with the history of one model.

        Callers that wait at the same time share one request. A caller that leaves does not cancel the request.
        """
        if model is not None and model not in {served.name for served in self._models}:
            model = ""  # all unknown names share one request, so that made-up names cannot cause many
        if model not in self._asking:
            self._asking[model] = asyncio.ensure_future(self._ask(model))
        return asyncio.shield(self._asking[model])

    async def _ask(self, model: str | None) -> bytes:
        loop = asyncio.get_running_loop()
        try:
            await asyncio.sleep(self._asks_at.get(model, 0.0) - loop.time())
            self._asks_at[model] = loop.time() + _PAUSE
            state: bytes = await self._supervisor("overview", model)
        finally:
            del self._asking[model]
        return state

    async def _compare(self, request: web.BaseRequest) -> bytes:
        model, old, new = request.query.get("model", ""), _version(request, "old"), _version(request, "new")
        asker = uuid.uuid4().hex
        try:
            found: bytes = await self._supervisor("compare", self._models.find(model).name, old, new, asker)
        except asyncio.CancelledError:  # the caller left
            with suppress(ParamsyncError):
                await self._supervisor("compare_no_more", asker)
            raise
        return found

    def _with_actions(self, request: web.BaseRequest, state: bytes) -> bytes:
        """Add to the state whether this caller may change anything."""
        why = ""
        try:
            self._access.check_read("an action of the page", caller_of(request))
        except NotAllowedError as error:
            why = str(error)
        actions = {"allowed": not why, "token": self._access.takes_tokens, "why": why}
        return b'{"actions":' + messages.text(actions) + b"," + state[1:]

    async def _act(self, request: web.BaseRequest, body: bytes) -> web.Response:
        if request.method != "POST":
            return failed(405, f"expected POST, found {request.method[:20]}", {"Allow": "POST"})
        if request.content_type != JSON:
            return failed(415, f"Content-Type: expected {JSON}, found {request.content_type[:100]}")
        name, _, what = request.rel_url.path.removeprefix(_MODELS).rpartition("/")
        if what not in _ACTIONS:
            return failed(404, f"expected one of {', '.join(_ACTIONS)}, found {what[:100]!r}")
        action = _ACTIONS[what]
        number, label = _arguments(action, _object(body))
        asked = {"model": name, "version": number, "label": label}
        told = " ".join(f"{key}={value!r}" for key, value in asked.items() if value not in (None, ""))
        with self._access.audited(f"page/{what}", caller_of(request), told):
            status = await wait(follower_of(self._models, name), action, _Caller(), number, label)
        return reply(200, messages.text(messages.of_status(status)) + b"\n", _HEADERS)


class _Caller:
    """The context of a call, with the method of gRPC's contexts, because the same code also answers gRPC calls."""

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


def _version(request: web.BaseRequest, name: str) -> int:
    """Read a version's number from the query. Raises InputError."""
    text = request.query.get(name, "")
    if not (text.isascii() and text.isdecimal() and len(text) < 20 and int(text) < 1 << 63):
        raise InputError(name, expected="the number of a version", found=repr(text[:100]))
    return int(text)


def _object(body: bytes) -> dict[str, Any]:
    """Parse the body of an action. Raises InputError."""
    if len(body) > _MOST_BYTES:
        raise InputError("body", expected=f"at most {_MOST_BYTES} bytes", found="more")
    with suppress(ValueError, RecursionError):
        fields = json.loads(body or b"{}")
        if isinstance(fields, dict):
            return fields
    raise InputError("body", expected='a JSON object, such as {"version": 420}', found=repr(body[:100]))


def _arguments(action: Action, body: dict[str, Any]) -> tuple[int | None, str]:
    """Return the version's number and the label that an action takes. Raises InputError."""
    number, label = body.get("version"), body.get("label", "")
    if number is None and action in _NUMBERED:
        raise InputError("version", expected="the number of a version", found="none")
    # A number that JavaScript would round is text in /api.
    if isinstance(number, str) and len(number) <= 20 and number.isdecimal() and number.isascii():
        number = int(number)
    if number is not None and (type(number) is not int or not 0 <= number < 1 << 63):
        raise InputError("version", expected="the number of a version", found=repr(number)[:100])
    if action in _LABELLED:
        if not isinstance(label, str):
            raise InputError("label", expected="a name, such as stable", found=repr(label)[:100])
        return number, check_label("label", label)
    return number, ""
