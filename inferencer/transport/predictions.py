"""Answers prediction requests: parses, computes, writes the response. Long steps run on a thread, short steps on the
event loop."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from time import perf_counter
from typing import Any, Protocol, TypeVar

import grpc
from google.protobuf.message import DecodeError, Message

from paramsync.errors import TooLargeError
from paramsync.inference.questions import Answer, Question
from paramsync.inference.resident import Resident
from paramsync.version import Version

from ..batching.batcher import Batcher
from .errors import is_unforeseen, status_of
from .grpc_wire import Trailers
from .memory_budget import BRIEF, MemoryBudget, MemoryShare, weight
from .methods import Answering
from .partial_parsing import beginning, read
from .unfolding import unfolded

# A larger message is parsed or written on a thread, because it would hold up the event loop for milliseconds.
_LARGE = 1 << 17  # bytes
_LOOKED_AT = 1000  # most fields looked at to estimate the memory of a small message
_BESIDE = 2  # additional copies of a parsed message's values: as arrays, and in TensorFlow
_WRITTEN = 3  # copies of an answer: as a message, as bytes, and in the send buffer
_UNREAD = 2  # copies of an answer that the client has not read yet: as bytes, and in the send buffer


VERSION = "paramsync-version"
AGE = "paramsync-age-ms"

_T = TypeVar("_T")


class PredictionMethod(Protocol):
    """A prediction method as plain functions. Any thread may call them."""

    protocol: str
    """The label of its requests in the metrics: "tfs" or "kserve"."""

    def asked(self, request: Any) -> tuple[str, str]:
        """Return the model and the signature that a request names, even if they do not exist."""

    def read(self, request: Any) -> list[Question]:
        """Turn a request into questions. Raises an error of paramsync.errors."""

    def write(self, request: Any, questions: Sequence[Question], answers: Sequence[Answer]) -> bytes:
        """Serialise the response; the answers are in the order of the questions."""


class Predictions:
    """Answers requests by any protocol. Lives on one event loop."""

    def __init__(self, batcher: Batcher, budget: MemoryBudget, *, message_bytes: int = 64 << 20) -> None:
        self._batcher = batcher
        self._threads = ThreadPoolExecutor(2, "messages")
        self._budget = budget
        self._most = message_bytes
        self.awaited: Callable[[], int] = lambda: 1
        """Returns how many requests may come at any moment. The gRPC port sets this function."""

    def share(self) -> MemoryShare:
        """Return a share of memory for one request. The request holds it until its answer is sent."""
        return self._budget.share()

    def answering(self, method: PredictionMethod, kind: type[Message], path: str) -> Answering:
        """Return the function that answers a method. `path` is the method's gRPC path without the first slash."""
        return partial(self._answered, method, kind, path)

    async def _answered(
        self,
        method: PredictionMethod,
        kind: type[Message],
        path: str,
        content: bytes,
        share: MemoryShare,
        context: Any,
    ) -> tuple[bytes, Trailers]:
        began = perf_counter()
        size = len(content)
        metadata = None if self._batcher.metrics.spans is None else context.invocation_metadata() or ()
        questions: list[Question] = []
        code, unforeseen = grpc.StatusCode.OK, False
        try:
            self._batcher.check()
            if size <= _LARGE:
                if size > BRIEF:
                    share.need(_taken(size, unfolded(kind.DESCRIPTOR, content, fields=_LOOKED_AT)))
                request = read(kind, content)
                questions = method.read(request)
            else:
                share.need(_taken(size, size))
                share.need(_taken(size, await self._aside(partial(unfolded, kind.DESCRIPTOR, content))))
                request, questions = await self._aside(partial(_read, method, kind, content))
            # The size of the values is known only now, because one value in a request may stand for many.
            if (values := weight(questions[0].inputs)) > BRIEF:
                share.need(max(share.size, size + _BESIDE * values))
            if len(questions) == 1:
                answer = None if self.awaited() else self._batcher.at_once(questions[0])
                if answer is None:
                    answer = await self._batcher.answer(questions[0], apart=context.is_of_newcomer)
                found: Sequence[Answer] = (answer,)
            else:
                answering = partial(self._batcher.answer, apart=context.is_of_newcomer)
                found = await asyncio.gather(*map(answering, questions))
            if (answered := sum(map(weight, found))) > BRIEF:
                self._check_size(answered, most=(self._budget.most - share.size) // (1 + _WRITTEN))
                share.more((1 + _WRITTEN) * answered)
            if answered <= _LARGE:
                response = method.write(request, questions, found)
            else:
                response = await self._aside(partial(method.write, request, questions, found))
            self._check_size(len(response))
            if share.size:
                share.keep(_UNREAD * len(response))
        except asyncio.CancelledError:
            code = grpc.StatusCode.CANCELLED
            raise
        except Exception as error:
            code, unforeseen = status_of(error)[0], is_unforeseen(error)
            raise
        finally:
            seconds = perf_counter() - began
            model, signature, version = _named(method, kind, questions or content)
            self._batcher.metrics.answered(
                model=model,
                signature=signature,
                version=version,
                protocol=method.protocol,
                code=code.name,
                seconds=seconds,
                unforeseen=unforeseen,
            )
            # `call_soon` delays the span until the answer is sent.
            if metadata is not None and (spans := self._batcher.metrics.spans) is not None:
                called = partial(spans.called, model=model, signature=signature, version=version)
                asyncio.get_running_loop().call_soon(partial(called, path, metadata, code=code, seconds=seconds))
        return response, trailers(questions[0].resident, time.time())

    def close(self) -> None:
        """End the threads, without waiting."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def _aside(self, work: Callable[[], _T]) -> _T:
        """Run long work on another thread."""
        return await asyncio.get_running_loop().run_in_executor(self._threads, work)

    def _check_size(self, found: int, *, most: int | None = None) -> None:
        """Raise TooLargeError if an answer exceeds `most` bytes, by default the size of the largest message."""
        limit = self._most if most is None else most
        if found > limit:
            raise TooLargeError("answer", limit=self._most if found > self._most else limit, found=found)


def _named(method: PredictionMethod, kind: type[Message], found: list[Question] | bytes) -> tuple[str, str, str]:
    """Return model, signature and version for the metrics, from questions or from a message that could not be read."""
    if isinstance(found, bytes):
        try:
            return *method.asked(beginning(kind, found)), ""
        except DecodeError:
            return "", "", ""
    return found[0].model, found[0].signature, str(found[0].resident.version.number)


def _read(method: PredictionMethod, kind: type[Message], content: bytes) -> tuple[Any, list[Question]]:
    request = read(kind, content)
    return request, method.read(request)


def trailers(resident: Resident, now: float) -> Trailers:
    """Return the trailing metadata of an answer: which version answered, and how old it is.

    `now` is in seconds since the epoch. The age is absent if `_done_at` is None for the version or for a part of it.
    """
    parts = resident.parts
    if not parts:
        said, done = str(resident.version.number), _done_at(resident.version)
    else:
        said = ",".join(f"{name}={version.number}" for name, version in parts)
        times = [_done_at(version) for _, version in parts]
        done = None if None in times else min(time for time in times if time is not None)
    if done is None:
        return ((VERSION, said),)
    return ((VERSION, said), (AGE, str(max(0, int((now - done) * 1000)))))


def _done_at(version: Version) -> float | None:
    """Return when the version's step was done or, if that was not recorded, when the version became visible."""
    return version.step_done_at if version.step_done_at > 0 else version.committed_at


def _taken(size: int, unfolded: int) -> int:
    """Estimate the memory of a request: the received bytes, the parsed message, and its values."""
    return size + unfolded + _BESIDE * min(size, unfolded)
