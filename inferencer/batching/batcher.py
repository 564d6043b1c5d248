"""The batcher: runs a request at once when its executor is idle, otherwise together with its neighbours."""

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
SHORT_SECONDS = 0.002  # a call that is expected to take less runs on the event loop: to wake a thread takes as long
_LATE = "the deadline passed before the answer was computed"

_Results = tuple[list[Answer | Exception], float]
"""Answers or errors, in the order of the requests, and how many seconds they took."""


@dataclass(eq=False, slots=True)
class BatchedSignature:
    """One signature of a graph, as one model's requests use it: may they share a call, and which calls are short."""

    batched: bool
    bounded: bool
    """Whether the time of a call depends on the shapes of its inputs alone, see `batchable.Traits.prompt`."""
    short_bytes: int = 0
    """Bytes of inputs up to which calls are expected to be short."""
    running: int = 0
    """Calls on threads now."""

    def is_short(self, size: int) -> bool:
        """Whether a call with so many bytes of inputs may run on the event loop."""
        return self.bounded and size <= self.short_bytes

    def took(self, size: int, seconds: float) -> None:
        """Learn from a call with so many bytes of inputs."""
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
    """Requests that may share a call: of one signature and set of outputs, with rows of one shape, that named the same
    version or none. Requests marked `apart` have a second queue."""

    key: Hashable
    signature: BatchedSignature
    batched: bool
    large: bool
    """Whether each has more rows than a batch may have."""
    waiting: dict[_Request, None] = field(default_factory=dict)  # in the order they came
    running: int = 0
    flush: asyncio.Handle | None = None


class Batcher:
    """Lives on one event loop.

    1. A request whose call is short runs on the event loop, with all neighbours that came in the same turn of it, and
       at once where whoever asks knows that there are none.
    2. Any other runs on a thread, at once when none of its queue does; otherwise it waits for the end of that call, and
       then goes with all that wait.
    3. Requests that named no version are answered by the one that serves when their call begins. Otherwise those that
       wait while versions are swapped would take a call for each, beside one another.
    4. A call has `rows` rows at most. A request with more rows, or with inputs of shapes that its signature does not
       name, goes alone. At most half of the threads compute such with more rows; one thread is always left by calls of
       one signature to those of others.
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
        """`executor` has so many threads; `most` is how many requests may wait or run; `batched` says which models'
        requests may share calls at all."""
        self._executor = executor
        self._threads = threads
        self._rows = rows
        self._most = most
        self._batched = batched
        self.metrics = metrics
        metrics.waiting = lambda: self.held - self._computing
        self.held = 0
        """How many requests wait or run."""
        self._computing = 0
        self._running = 0
        self._large = 0
        self._queues: dict[Hashable, _Queue] = {}  # those with something that waits or runs; whose turn it is first
        self._signatures: WeakKeyDictionary[Graph, dict[Hashable, BatchedSignature]] = WeakKeyDictionary()

    def check(self) -> None:
        """Raise BusyError where no request more is taken now."""
        if self.held >= self._most:
            raise BusyError(f"{self._most} requests are waiting or being answered already; try again in a moment")

    def at_once(self, question: Question) -> Answer | None:
        """The answer where the call is short and no other request waits or runs. Raises what the call raises.

        For a caller who knows of no request that is about to come: this one shares its call with none.
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
            del answer, question  # as below

    async def answer(self, question: Question, *, deadline: float | None = None, apart: bool = False) -> Answer:
        """`deadline` is in the loop's time. Requests that are `apart` have a queue of their own: a flood of them does
        not delay others. Afterwards the question names the version that answered, or that failed.

        Raises BusyError where too many wait, TimeoutError, and what the call raises. A request whose caller leaves
        before it runs does not run.
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
                request.answer.exception()  # it came in the same moment, and nobody waits for it any more
            raise
        finally:
            self._leave(request)
            if timer is not None:
                timer.cancel()
            del request  # else an error, by its traceback, would keep itself and the version alive

    def close(self) -> None:
        """Waits for nothing: nobody gets what is still computed."""
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
        """Nobody waits for it any more: unless it runs already it never will."""
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
        """The requests of the next call, by one version: those that came first, and whose callers did not leave just
        now."""
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
        """They run from now on."""
        for request in batch:
            del queue.waiting[request]
        self._computing += len(batch)
        return [request.question for request in batch]

    # Calls ------------------------------------------------------------------------------------------------------------

    def _start(self, queue: _Queue) -> None:
        """Start what may start of a queue: a short call in the next turn, so that neighbours can join it."""
        while queue.waiting and queue.flush is None:
            if queue.signature.is_short(next(iter(queue.waiting)).size) and not queue.running:
                queue.flush = asyncio.get_running_loop().call_soon(self._flush, queue)
            elif self._may_start(queue) and (batch := self._next(queue)):
                self._submit(queue, batch)
            else:
                return

    def _flush(self, queue: _Queue) -> None:
        """Run one call: here if it is still short with all that joined it."""
        queue.flush = None
        if batch := self._next(queue):
            if queue.signature.is_short(_size(batch)):
                self._give(queue, batch, _computed(self._take(queue, batch)))
            elif self._may_start(queue):
                self._submit(queue, batch)
            else:
                return  # until a thread is free
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
        except RuntimeError as error:  # the system has no thread left
            computing = asyncio.get_running_loop().create_future()
            computing.set_result(([BusyError(f"{error}; try again in a moment") for _ in batch], SHORT_SECONDS))
        computing.add_done_callback(partial(self._end, queue, batch))

    def _end(self, queue: _Queue, batch: list[_Request], computing: asyncio.Future[_Results]) -> None:
        queue.running -= 1
        queue.signature.running -= 1
        self._large -= queue.large
        self._running -= 1
        if computing.cancelled():  # by the end of the server
            self._computing -= len(batch)
            return
        self._give(queue, batch, computing.result())
        self._queues.pop(queue.key, None)
        if queue.waiting or queue.running:
            self._queues[queue.key] = queue  # the others come first now
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
        # counted once the answers are on their way
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
    """What serves now, where the question may be answered by it."""
    if question.latest is None:
        return None
    try:
        serving = question.latest()
    except ParamsyncError:  # nothing serves any more; what was taken before goes on
        return None
    return serving if serving.graph is question.resident.graph else None


def _bytes(question: Question) -> int:
    """Of its inputs; of strings only what points at them."""
    return sum([array.nbytes for array in question.inputs.values()])


def _size(batch: Sequence[_Request]) -> int:
    return sum([request.size for request in batch])


def _computed(questions: list[Question]) -> _Results:
    """Any thread."""
    began = perf_counter()
    answers = execute.answers(questions)
    return answers, perf_counter() - began
