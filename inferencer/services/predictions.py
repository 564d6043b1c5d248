"""How a request that predicts is answered: read, asked, written; each where it is best, and counted."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from time import perf_counter
from typing import Any, Protocol

import grpc
from google.protobuf.message import Message

from inferencer.answering.questions import Answer, Question
from inferencer.batching import Batching
from inferencer.services.errors import abort, status_of
from inferencer.services.room import Room
from inferencer.services.threads import Threads
from inferencer.services.trailers import Trailers, trailers
from paramsync.errors import TooLargeError

_LARGE = 1 << 17  # bytes of a message that is read or written on a thread: on the event loop it would take milliseconds
_ROOM = 8  # of the largest messages


class Prediction(Protocol):
    """A method that predicts, as two plain functions, which any thread may call."""

    protocol: str
    """By which requests are counted: "tfs" or "kserve"."""

    def read(self, request: Any) -> list[Question]:
        """What is asked for. Raises an error of paramsync.errors."""

    def write(self, request: Any, questions: Sequence[Question], answers: Sequence[Answer]) -> Message:
        """The response; the answers come in the order of the questions."""


class Predictions:
    """Answers requests by any protocol. Lives on one event loop."""

    def __init__(self, batching: Batching, *, message_bytes: int = 64 << 20) -> None:
        self._batching = batching
        self._aside = Threads(2, "messages")
        self._room = Room(_ROOM * message_bytes)
        self._most = message_bytes

    def announce(self) -> None:
        """A request is coming."""
        self._batching.announce()

    def answering(self, method: Prediction, parsed: Callable[[bytes], Any]) -> Callable[..., Awaitable[bytes]]:
        """The response to a request, or the end of its call where there is none."""

        async def answer(content: bytes, context: Any) -> bytes:
            try:
                response, said = await self._answered(method, parsed, content, context)
            except Exception as error:  # noqa: BLE001, the edge
                content = b""  # gRPC keeps this frame for a while, see abort
                await abort(error, context)
            context.set_trailing_metadata(said)
            return response

        return answer

    async def _answered(
        self, method: Prediction, parsed: Callable[[bytes], Any], content: bytes, context: Any
    ) -> tuple[bytes, Trailers]:
        began = perf_counter()
        questions: list[Question] = []
        code = grpc.StatusCode.OK
        try:
            self._batching.begin()
            if len(content) <= _LARGE:
                request = parsed(content)
                questions = method.read(request)
            else:
                self._room.hold(len(content), context)
                request, questions = await self._aside.run(partial(_read, method, parsed, content))
            if (more := _held(questions) - len(content)) > _LARGE:  # what one value stands for, or small numbers
                self._room.hold(more, context)
            if len(questions) == 1:
                found: Sequence[Answer] = (await self._batching.answer(questions[0]),)
            else:
                found = await asyncio.gather(*map(self._batching.answer, questions))
            if (size := _size(found)) <= _LARGE:
                response = _written(method, request, questions, found)
            else:
                self._room.hold(size, context)
                response = await self._aside.run(partial(_written, method, request, questions, found))
            self._check_size(len(response))
        except asyncio.CancelledError:
            code = grpc.StatusCode.CANCELLED
            raise
        except Exception as error:
            code = status_of(error)[0]
            raise
        finally:  # counted once the response is on its way
            seconds = perf_counter() - began
            asyncio.get_running_loop().call_soon(self._count, method.protocol, questions, code, seconds)
        return response, trailers(questions[0].resident, time.time())

    def close(self) -> None:
        """Waits for nothing."""
        self._aside.close()

    def _check_size(self, found: int) -> None:
        """Raise TooLargeError for an answer that gRPC would not send."""
        if found > self._most:
            raise TooLargeError("answer", limit=self._most, found=found)

    def _count(self, protocol: str, questions: list[Question], code: grpc.StatusCode, seconds: float) -> None:
        one = questions[0] if questions else None
        self._batching.metrics.answered(
            model=one.model if one else "",
            signature=one.signature if one else "",
            version=str(one.resident.version.number) if one else "",
            protocol=protocol,
            code=code.name,
            seconds=seconds,
        )


def _read(method: Prediction, parsed: Callable[[bytes], Any], content: bytes) -> tuple[Any, list[Question]]:
    request = parsed(content)
    return request, method.read(request)


def _written(method: Prediction, request: Any, questions: list[Question], answers: Sequence[Answer]) -> bytes:
    return method.write(request, questions, answers).SerializeToString()


def _held(questions: Sequence[Question]) -> int:
    """In bytes. Questions of one request share their inputs."""
    return sum([array.nbytes for array in questions[0].inputs.values()])


def _size(answers: Sequence[Answer]) -> int:
    return sum([array.nbytes for answer in answers for array in answer.values()])
