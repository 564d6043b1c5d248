"""The batcher: runs requests on the event loop or on threads. Requests that have to wait share a call."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field
from functools import partial
from time import perf_counter
from weakref import WeakKeyDictionary

from paramsync.errors import BusyError, ParamsyncError
from paramsync.graphs.graph import Graph
from paramsync.inference import batchable, execute
from paramsync.inference.questions import Answer, Question
from paramsync.inference.resident import Resident

from ..serving.metrics import Metrics

_log = logging.getLogger("paramsync.batching")
ROWS = 256
SHORT_SECONDS = 0.002  # a call expected to be shorter runs on the event loop, because waking a thread takes as long
_LATE = "the deadline passed before the answer was computed"

_Results = tuple[list[Answer | Exception], float]
"""Answers or errors, in the order of the requests, and how many seconds they took."""


@dataclass(eq=False, slots=True)
class BatchedSignature:
    """What the batcher knows about one signature: whether requests may share a call, and which calls are short."""

    batched: bool
    bounded: bool
    """True if the time of a call depends only on the shapes of its inputs; see `batchable.Traits.prompt`."""
    short_bytes: int = 0
    """A call with at most this many bytes of inputs is expected to be short."""
    running: int = 0
    """Calls in progress on threads."""

    def is_short(self, size: int) -> bool:
        """Whether a call with `size` bytes of inputs may run on the event loop."""
        return self.bounded and size <= self.short_bytes

    def took(self, size: int, seconds: float) -> None:
        """Learn from a call with `size` bytes of inputs."""
        if self.bounded and seconds < SHORT_SECONDS:
            self.short_bytes = max(self.short_bytes, size if seconds > SHORT_SECONDS / 2 else 2 * size)
        else:
            self.short_bytes = min(self.short_bytes, size // 2)


@dataclass(eq=False, slots=True)
class _Request:
    question: Question
    queue: _Queue
    rows: int
    size: int
    answer: asyncio.Future[Answer]


@dataclass(eq=False, slots=True)
class _Queue:
    """Requests of one signature that name the same version, or of one model and graph that name no version.

    If the queue is `batched`, its requests may share a call: they ask for the same outputs, and their rows have the
    same shape. Requests marked `apart` have queues of their own.
    """

    key: Hashable
    signature: BatchedSignature
    batched: bool
    large: bool
    """True if each request of the queue has more rows than a batch may have."""
    waiting: dict[_Request, None] = field(default_factory=dict)  # in order of arrival
    running: int = 0
    flush: asyncio.Handle | None = None


class Batcher:
    """Runs requests in calls of models. Lives on one event loop.

    1. A short call runs on the event loop, together with requests that came in the same turn of the loop.
    2. Any other call runs on a thread. If requests of its queue may share calls and a call of the queue is running, the
       request waits until that call ends, and then shares the next call with all waiting requests.
    3. A request that names no version is answered by the version that serves when its call begins. Otherwise, requests
       that wait during a swap would need a call for each version.
    4. A call has at most `rows` rows. A request with more rows, or with inputs of shapes that its signature does not
       name, runs alone. Requests with more rows take at most half of the threads. If there are several threads,
       one signature leaves at least one thread to others.
    """

    def __init__(
        self,
        executor: Executor,
        threads: int,
        metrics: Metrics,
        *,
        rows: int = ROWS,
        most: int = 1024,
        batched: Callable[[str], bool] = lambda model: True,
    ) -> None:
        """`executor` has `threads` threads. At most `most` requests wait or run. `batched` tells whether requests of a
        model may share calls."""
        self._executor = executor
        self._threads = threads
        self._rows = rows
        self._most = most
        self._batched = batched
        self.metrics = metrics
        metrics.waiting = lambda: self.held - self._computing
        self.held = 0
        """The number of requests that wait or run."""
        self._computing = 0
        self._running = 0
        self._large = 0
        self._queues: dict[Hashable, _Queue] = {}  # queues whose requests wait or run; the next in turn is first
        self._signatures: WeakKeyDictionary[Graph, dict[Hashable, BatchedSignature]] = WeakKeyDictionary()

    def check(self) -> None:
        """Raise BusyError if no further request is accepted now."""
        if self.held >= self._most:
            raise BusyError(f"{self._most} requests are waiting or being answered already; try again in a moment")

    def at_once(self, question: Question) -> Answer | None:
        """Compute an answer at once if the call is short and no other request waits or runs; otherwise return None.

        Raises the call's error. The request does not share its call, so use this only if no other request is expected
        now.
        """
        signature = self._signature(question)
        size = _bytes(question)
        if self.held or not signature.is_short(size):
            return None
        [answer], seconds = _computed([question])
        signature.took(size, seconds)
        self._count(question, 1, execute.rows_of(question) or 1, seconds)
        if not isinstance(answer, Exception):
            return answer
        try:
            raise answer
        finally:
            del answer, question  # otherwise the traceback of the error would keep the version alive

    async def answer(self, question: Question, *, deadline: float | None = None, apart: bool = False) -> Answer:
        """Answer a question. Afterwards `question.resident` is the version that answered or failed.

        `deadline` is in the loop's time. Requests marked `apart` have queues of their own, so that a flood of them does
        not delay others. A waiting request is dropped when its caller is cancelled. Raises BusyError if too many
        requests wait or run, TimeoutError after the deadline, and the call's error.
        """
        self.check()
        loop = asyncio.get_running_loop()
        if deadline is not None and deadline <= loop.time():
            raise TimeoutError(_LATE)
        request = self._enqueued(question, loop, apart=apart)
        timer = None if deadline is None else loop.call_at(deadline, self._expire, request)
        self._start(request.queue)
        try:
            return await request.answer
        except asyncio.CancelledError:
            if request.answer.done() and not request.answer.cancelled():
                request.answer.exception()  # mark the error as seen, or asyncio logs it
            raise
        finally:
            self._leave(request)
            if timer is not None:
                timer.cancel()
            del request  # otherwise the traceback of an error would keep the version alive

    def close(self) -> None:
        """Shut down at once, without waiting for calls in progress."""
        if self.held:
            _log.warning("predictions that did not end within the grace, and are given up: %d", self.held)
        self._executor.shutdown(wait=False, cancel_futures=True)

    # Queues -----------------------------------------------------------------------------------------------------------

    def _signature(self, question: Question) -> BatchedSignature:
        graph = question.resident.graph
        known = self._signatures.get(graph)
        if known is None:
            known = self._signatures[graph] = {}
        key = (question.model, question.signature, question.fits)  # models may share a graph
        signature = known.get(key)
        if signature is None:
            traits = batchable.of(graph, question.signature) if question.fits else batchable.UNKNOWN
            batched = traits.together and self._rows > 1 and self._batched(question.model)
            signature = known[key] = BatchedSignature(batched, traits.prompt)
        return signature

    def _enqueued(self, question: Question, loop: asyncio.AbstractEventLoop, *, apart: bool) -> _Request:
        signature = self._signature(question)
        rows = execute.rows_of(question)
        batched = signature.batched and rows is not None and 0 < rows <= self._rows
        large = rows is not None and rows > self._rows
        of: Hashable = question.resident if question.latest is None else (question.model, question.resident.graph)
        key: tuple[Hashable, ...] = (of, question.signature, question.fits, large, apart)
        if batched:
            shapes = [(name, array.shape[1:]) for name, array in question.inputs.items()]
            key = (*key, question.outputs, *(shapes if len(shapes) == 1 else sorted(shapes)))
        queue = self._queues.get(key)
        if queue is None:
            queue = self._queues[key] = _Queue(key, signature, batched, large)
        request = _Request(question, queue, rows or 1, _bytes(question), loop.create_future())
        queue.waiting[request] = None
        self.held += 1
        return request

    def _leave(self, request: _Request) -> None:
        """Drop a request whose caller no longer waits, unless it is already running."""
        if request in request.queue.waiting:
            del request.queue.waiting[request]
            self.held -= 1
            self._forget(request.queue)

    def _expire(self, request: _Request) -> None:
        if not request.answer.done():
            request.answer.set_exception(TimeoutError(_LATE))
        self._leave(request)

    def _forget(self, queue: _Queue) -> None:
        if not queue.waiting and not queue.running and self._queues.get(queue.key) is queue:
            del self._queues[queue.key]

    def _next(self, queue: _Queue) -> list[_Request]:
        """Return the next call's requests: the first in the queue whose callers still wait, all for one version."""
        batch: list[_Request] = []
        rows = 0
        serving: Resident | None = None
        for request in queue.waiting:
            if request.answer.done():
                continue
            if not batch:
                serving = _serving(request.question)
            resident = request.question.resident if serving is None else serving
            rows += request.rows
            if batch and (not queue.batched or rows > self._rows or resident is not batch[0].question.resident):
                break
            request.question.resident = resident
            batch.append(request)
        return batch

    def _take(self, queue: _Queue, batch: Sequence[_Request]) -> list[Question]:
        """Count these requests as running instead of waiting, and return their questions."""
        for request in batch:
            del queue.waiting[request]
        self._computing += len(batch)
        return [request.question for request in batch]

    # Calls ------------------------------------------------------------------------------------------------------------

    def _start(self, queue: _Queue) -> None:
        """Start the calls that a queue may start. A short call starts in the next turn, so that others can join."""
        while queue.waiting and queue.flush is None:
            if queue.signature.is_short(next(iter(queue.waiting)).size) and not queue.running:
                queue.flush = asyncio.get_running_loop().call_soon(self._flush, queue)
            elif self._may_start(queue) and (batch := self._next(queue)):
                self._submit(queue, batch)
            else:
                return

    def _flush(self, queue: _Queue) -> None:
        """Run one call: on the event loop if the call is still short with all requests that have joined."""
        queue.flush = None
        if batch := self._next(queue):
            if queue.signature.is_short(_size(batch)):
                self._give(queue, batch, _computed(self._take(queue, batch)))
            elif self._may_start(queue):
                self._submit(queue, batch)
            else:
                return  # `_end` starts the call once a thread is free
            self._start(queue)
        self._forget(queue)

    def _may_start(self, queue: _Queue) -> bool:
        return (
            self._running < self._threads
            and not (queue.batched and queue.running)
            and queue.signature.running < max(1, self._threads - 1)
            and not (queue.large and self._large >= max(1, self._threads // 2))
        )

    def _submit(self, queue: _Queue, batch: list[_Request]) -> None:
        queue.running += 1
        queue.signature.running += 1
        self._large += queue.large
        self._running += 1
        questions = self._take(queue, batch)
        computing: asyncio.Future[_Results]
        try:
            computing = asyncio.wrap_future(self._executor.submit(_computed, questions))
        except RuntimeError as error:  # no thread can be started
            computing = asyncio.get_running_loop().create_future()
            computing.set_result(([BusyError(f"{error}; try again in a moment") for _ in batch], SHORT_SECONDS))
        computing.add_done_callback(partial(self._end, queue, batch))

    def _end(self, queue: _Queue, batch: list[_Request], computing: asyncio.Future[_Results]) -> None:
        queue.running -= 1
        queue.signature.running -= 1
        self._large -= queue.large
        self._running -= 1
        if computing.cancelled():  # `close` has cancelled the call
            self._computing -= len(batch)
            return
        self._give(queue, batch, computing.result())
        self._queues.pop(queue.key, None)
        if queue.waiting or queue.running:
            self._queues[queue.key] = queue  # its next turn comes after all other queues
        for waiting in list(self._queues.values()):
            self._start(waiting)

    def _give(self, queue: _Queue, batch: Sequence[_Request], results: _Results) -> None:
        answers, seconds = results
        self._computing -= len(batch)
        self.held -= len(batch)
        for request, answer in zip(batch, answers, strict=True):
            if request.answer.done():
                continue
            if isinstance(answer, Exception):
                request.answer.set_exception(answer)
            else:
                request.answer.set_result(answer)
        queue.signature.took(_size(batch), seconds)
        rows = sum([request.rows for request in batch])
        # Count only after the answers are sent.
        asyncio.get_running_loop().call_soon(self._count, batch[0].question, len(batch), rows, seconds)

    def _count(self, first: Question, requests: int, rows: int, seconds: float) -> None:
        self.metrics.called(
            model=first.model,
            signature=first.signature,
            version=str(first.resident.version.number),
            requests=requests,
            rows=rows,
            seconds=seconds,
        )


def _serving(question: Question) -> Resident | None:
    """Return the version that serves now, or None if only `question.resident` may answer."""
    if question.latest is None:
        return None
    try:
        serving = question.latest()
    except ParamsyncError:  # no version serves any more
        return None
    return serving if serving.graph is question.resident.graph else None


def _bytes(question: Question) -> int:
    """Count the bytes of the inputs. A string counts as a pointer."""
    return sum([array.nbytes for array in question.inputs.values()])


def _size(batch: Sequence[_Request]) -> int:
    return sum([request.size for request in batch])


def _computed(questions: list[Question]) -> _Results:
    """Compute one call for these questions. Safe on any thread."""
    began = perf_counter()
    answers = execute.answers(questions)
    return answers, perf_counter() - began
