"""Batching: questions become calls of the version they ask, at once where that can be, else as few as may be."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Hashable
from functools import partial
from time import perf_counter
from weakref import WeakKeyDictionary

from paramsync.errors import BusyError
from paramsync.graphs.graph import Graph
from paramsync.inference import batchable, execute
from paramsync.inference.questions import Answer, Question

from ..event_loop.loop import IdleSelector
from ..serving.metrics import Metrics
from .flush import Flush
from .latency import Latency
from .queue import Asked, Lane, Timed, size_of, timed
from .threads import Threads

_log = logging.getLogger("paramsync.batching")
ROWS = 256
_LATE = "the deadline passed before the answer was computed"


class Batching:
    """Lives on one event loop.

    Of a signature that was prompt so far, calls are made on the event loop itself: to hand them over would take longer
    than they do. All others are made on threads.

    1. A question goes at once where a thread is free for it or, where it is prompt, no other is expected.
    2. While a call of its lane runs a question waits, together with all others of that lane, for that call's end.
       Prompt ones wait until the event loop would rest, 2 ms at most: for those that came already or are seen coming.
       So they are few where it has little to do, and the more, the more it is late.
    3. What waited goes as one call of `rows` rows at most. A question with more rows, or with inputs of shapes that its
       signature does not name, goes alone. At most half of the threads compute such with more rows; one thread is
       always left by calls of one signature to those of others.
    """

    def __init__(
        self,
        threads: Threads,
        metrics: Metrics,
        *,
        rows: int = ROWS,
        most: int = 1024,
        together: Callable[[str], bool] = lambda model: True,
        selector: IdleSelector | None = None,
    ) -> None:
        """`most` is how many questions may wait or be computed; `together` says which models are batched at all.

        `selector` is the event loop's.
        """
        self._threads = threads
        self._rows = rows
        self._most = most
        self._together = together
        self._gathering = Flush(self._compute, selector)
        self.metrics = metrics
        metrics.waiting = lambda: self.held - self._computing
        self.held = 0
        """How many questions wait or are computed."""
        self._computing = 0
        self._large = 0
        self._lanes: dict[Hashable, Lane] = {}  # with something that waits or runs; whose turn it is first
        self._paces: WeakKeyDictionary[Graph, dict[tuple[str, str, bool], Latency]] = WeakKeyDictionary()

    def check(self) -> None:
        """Raise BusyError where no question more is taken now."""
        if self.held >= self._most:
            raise BusyError(f"{self._most} requests are waiting or being answered already; try again in a moment")

    def announce(self) -> None:
        """A request is coming, which will begin."""
        self._gathering.coming += 1

    def begin(self) -> None:
        """One that was announced is here. Raises BusyError where no question more is taken now."""
        self._gathering.coming = max(0, self._gathering.coming - 1)
        self.check()

    async def answer(self, question: Question, *, deadline: float | None = None) -> Answer:
        """`deadline` is in the loop's time.

        Raises BusyError where too many wait, TimeoutError, and what the call raises. A caller that leaves before its
        question is computed takes it away.
        """
        self.check()
        loop = asyncio.get_running_loop()
        if deadline is not None and deadline <= loop.time():
            raise TimeoutError(_LATE)
        pace, size = self._pace(question), size_of(question)
        prompt = pace.is_prompt(size)
        if prompt and not self._gathering.coming and not self.held and pace.alone:
            return self._at_once(question, pace, size)
        one = self._asked(question, pace, size, deadline)
        self.held += 1
        one.lane.waiting[one] = None
        if prompt and one.lane.joined and not one.lane.running:
            self._gathering.add(one.lane)
        else:
            self._look()
        timer = None
        if deadline is not None and not one.future.done():
            timer = loop.call_at(deadline, self._expire, one)
        try:
            return await one.future
        except asyncio.CancelledError:
            if not one.future.cancelled() and one.future.done():
                one.future.exception()  # that came in the same moment, and is nobody's any more
            raise
        finally:
            self._leave(one)
            if timer is not None:
                timer.cancel()
            del one  # else an error, by its traceback, would keep itself and the version alive

    def close(self) -> None:
        """Waits for nothing: what is computed still is nobody's any more."""
        if self.held:
            _log.warning("predictions that did not end within the grace, and are given up: %d", self.held)
        self._threads.close()

    # What waits -------------------------------------------------------------------------------------------------------

    def _pace(self, question: Question) -> Latency:
        graph = question.resident.graph
        paces = self._paces.get(graph)
        if paces is None:
            paces = self._paces[graph] = {}
        key = (question.model, question.signature, question.fits)  # models may share a graph
        pace = paces.get(key)
        if pace is None:
            found = batchable.of(graph, question.signature) if question.fits else batchable.UNKNOWN
            together = found.together and self._rows > 1 and self._together(question.model)
            pace = paces[key] = Latency(together, found.prompt)
        return pace

    def _asked(self, question: Question, pace: Latency, size: int, deadline: float | None) -> Asked:
        rows = execute.rows_of(question)
        joined = pace.together and rows is not None and 0 < rows <= self._rows
        large = rows is not None and rows > self._rows
        key: tuple[Hashable, ...] = (question.resident, question.signature, question.fits, large)
        if joined:
            shapes = [(name, array.shape[1:]) for name, array in question.inputs.items()]
            key = (*key, question.outputs, *(shapes if len(shapes) == 1 else sorted(shapes)))
        lane = self._lanes.get(key)
        if lane is None:
            lane = self._lanes[key] = Lane(key, pace, large, joined)
        return Asked(question, rows or 1, size, lane, asyncio.get_running_loop().create_future(), deadline)

    def _take(self, lane: Lane, *, prompt: bool = False) -> list[Asked]:
        """The next call of a lane: those that came first and were not given up meanwhile; none, where not prompt."""
        taken: list[Asked] = []
        rows, size, now = 0, 0, asyncio.get_running_loop().time()
        for one in [*lane.waiting]:
            if one.future.done() or (one.deadline is not None and one.deadline <= now):
                self._expire(one)
                continue
            rows, size = rows + one.rows, size + one.size
            if (taken and (not lane.joined or rows > self._rows)) or (prompt and not lane.pace.is_prompt(size)):
                break
            taken.append(one)
            del lane.waiting[one]
        return taken

    def _leave(self, one: Asked) -> None:
        """Nobody waits for it any more; where it is not computed yet it will not be."""
        if one in one.lane.waiting:
            del one.lane.waiting[one]
            self.held -= 1
            self._close(one.lane)

    def _expire(self, one: Asked) -> None:
        if not one.future.done():
            one.future.set_exception(TimeoutError(_LATE))
        self._leave(one)

    def _close(self, lane: Lane) -> None:
        if not lane.waiting and not lane.running and self._lanes.get(lane.key) is lane:
            del self._lanes[lane.key]
            self._gathering.remove(lane)

    # On the event loop ------------------------------------------------------------------------------------------------

    def _at_once(self, question: Question, pace: Latency, size: int) -> Answer:
        began = perf_counter()
        try:
            return execute.answer(question)
        finally:
            self._count(pace, question, 1, execute.rows_of(question) or 1, size, perf_counter() - began)

    def _compute(self, lane: Lane) -> None:
        """One call, here; where it may not be as large as what waits, the next one in a moment."""
        self._gathering.remove(lane)
        if taken := self._take(lane, prompt=True):
            lane.pace.alone = len(taken) == 1
            self.held -= len(taken)
            self._give(lane, taken, *timed([one.question for one in taken]))
        if lane.waiting and taken:
            self._gathering.again(lane)
        elif lane.waiting:  # it is too large, or calls have become slow
            self._look()
        self._close(lane)

    # On threads -------------------------------------------------------------------------------------------------------

    def _look(self) -> None:
        """Begin every call that can be, one for each lane in turn."""
        begun = True
        while begun:
            begun = False
            for lane in [*self._lanes.values()]:
                if self._may_begin(lane):
                    if taken := self._take(lane):
                        self._begin(lane, taken)
                        begun = True
                    self._close(lane)

    def _may_begin(self, lane: Lane) -> bool:
        count = self._threads.count
        return (
            bool(lane.waiting)
            and lane.gathering is None
            and self._threads.taken < count
            and not (lane.joined and lane.running)
            and lane.pace.running < max(1, count - 1)
            and not (lane.large and self._large >= max(1, count // 2))
        )

    def _begin(self, lane: Lane, taken: list[Asked]) -> None:
        lane.running += 1
        lane.pace.running += 1
        self._large += lane.large
        self._computing += len(taken)
        self._lanes.pop(lane.key, None)  # it may have been closed, where all others that waited were late
        self._lanes[lane.key] = lane  # the others come first now
        self._threads.start(partial(timed, [one.question for one in taken]), partial(self._end, lane, taken))

    def _end(self, lane: Lane, taken: list[Asked], result: Timed, error: Exception | None) -> None:
        lane.running -= 1
        lane.pace.running -= 1
        self._large -= lane.large
        self._computing -= len(taken)
        self.held -= len(taken)
        assert error is None  # errors are among the answers
        self._give(lane, taken, *result)
        self._close(lane)
        self._look()

    # Whatever computed it ---------------------------------------------------------------------------------------------

    def _give(self, lane: Lane, taken: list[Asked], found: list[Answer | Exception], seconds: float) -> None:
        rows = size = 0
        for one, answer in zip(taken, found, strict=True):
            rows, size = rows + one.rows, size + one.size
            if one.future.done():
                continue
            if isinstance(answer, Exception):
                one.future.set_exception(answer)
            else:
                one.future.set_result(answer)
        self._count(lane.pace, taken[0].question, len(taken), rows, size, seconds)

    def _count(self, pace: Latency, first: Question, requests: int, rows: int, size: int, seconds: float) -> None:
        pace.took(size, seconds)
        # told once the answers are on their way
        asyncio.get_running_loop().call_soon(self._tell, first, requests, rows, seconds)

    def _tell(self, first: Question, requests: int, rows: int, seconds: float) -> None:
        self.metrics.called(
            model=first.model,
            signature=first.signature,
            version=str(first.resident.version.number),
            requests=requests,
            rows=rows,
            seconds=seconds,
        )
