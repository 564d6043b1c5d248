"""Batching: questions become calls of the version they ask, at once where that can be, else as few as may be."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from functools import partial
from time import perf_counter
from weakref import WeakKeyDictionary

from inferencer import answers, traits
from inferencer.metrics import Metrics
from inferencer.questions import Answer, Question
from inferencer.services.threads import Threads
from paramsync.errors import BusyError
from paramsync.graphs.graph import Graph

_log = logging.getLogger("paramsync.batching")
ROWS = 256
_LATE = "the deadline passed before the answer was computed"
_PROMPT_SECONDS = 0.001  # what may be computed on the event loop takes less
_SEEN = 8  # calls that were that fast, before the first is made there
_SLOW_SECONDS = 0.02  # one that takes longer is not made there again, until as many were fast once more


@dataclass(eq=False, slots=True)
class _Kind:
    """What is known of one signature of one graph."""

    together: bool
    prompt: bool
    running: int = 0
    fast: int = 0
    """How many calls were prompt, without a slow one after them."""
    size: int = 0
    """Bytes of inputs with which a call is expected to be prompt."""


@dataclass(eq=False, slots=True)
class _Asked:
    """A question, and who waits for its answer."""

    question: Question
    rows: int
    lane: _Lane
    future: asyncio.Future[Answer]
    deadline: float | None


@dataclass(eq=False, slots=True)
class _Lane:
    """Questions that may go in one call: of one version, signature and set of outputs, with rows of one shape."""

    key: Hashable
    kind: _Kind
    large: bool
    joined: bool
    waiting: dict[_Asked, None] = field(default_factory=dict)  # in the order they came
    running: int = 0


class Batching:
    """Lives on one event loop.

    1. A question goes at once where a thread is free for it. One that came alone, of a kind that was prompt so far, is
       computed on the event loop itself: to hand it over would take longer.
    2. While a call of its lane runs a question waits, together with all others of that lane, for that call's end.
       Nothing waits for a time to pass, and nothing waits while nothing is computed.
    3. What waited goes as one call of `rows` rows at most. A question with more rows goes alone, and at most half of
       the threads compute such ones; one thread is always left by calls of one signature to those of others.
    """

    def __init__(
        self,
        threads: Threads,
        metrics: Metrics,
        *,
        rows: int = ROWS,
        most: int = 256,
        together: Callable[[str], bool] = lambda model: True,
    ) -> None:
        """`most` is how many questions may wait or be computed; `together` says which models are batched at all."""
        self._threads = threads
        self._rows = rows
        self._most = most
        self._together = together
        self.metrics = metrics
        metrics.waiting = lambda: self.held - self._computing
        self.held = 0
        """How many questions wait or are computed."""
        self._computing = 0
        self._large = 0
        self._came = 0
        self._began = 0
        self._alone = 0  # how many requests in a row began when no other was known of
        self._lanes: dict[Hashable, _Lane] = {}  # with something that waits or runs; whose turn it is first
        self._kinds: WeakKeyDictionary[Graph, dict[str, _Kind]] = WeakKeyDictionary()

    def check(self) -> None:
        """Raise BusyError where no question more is taken now."""
        if self.held >= self._most:
            raise BusyError(f"{self._most} requests are waiting or being answered already; try again in a moment")

    def announce(self) -> None:
        """A request is coming, which will begin."""
        self._came += 1

    def begin(self) -> None:
        """One that was announced is here. Raises BusyError where no question more is taken now."""
        self._began = min(self._began + 1, self._came)
        self._alone = 0 if self.held or self._came > self._began else self._alone + 1
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
        kind = self._kind(question)
        if self._alone >= _SEEN and kind.fast >= _SEEN and not self.held and _size(question) <= kind.size:
            return self._at_once(question, kind)
        one = self._asked(question, kind, deadline)
        self.held += 1
        one.lane.waiting[one] = None
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

    def close(self) -> None:
        """Waits for nothing: what is computed still is nobody's any more."""
        if self.held:
            _log.warning("predictions that did not end within the grace, and are given up: %d", self.held)
        self._threads.close()

    # What is asked ----------------------------------------------------------------------------------------------------

    def _kind(self, question: Question) -> _Kind:
        graph = question.resident.graph
        kinds = self._kinds.get(graph)
        if kinds is None:
            kinds = self._kinds[graph] = {}
        kind = kinds.get(question.signature)
        if kind is None:
            found = traits.of(graph, question.signature)
            batched = self._together(question.model)
            kind = _Kind(found.together and batched and self._rows > 1, found.prompt)
            kinds[question.signature] = kind
        return kind

    def _asked(self, question: Question, kind: _Kind, deadline: float | None) -> _Asked:
        rows = answers.rows_of(question)
        joined = kind.together and rows is not None and 0 < rows <= self._rows
        large = rows is not None and rows > self._rows
        key: list[Hashable] = [question.resident, question.signature, large]
        if joined:
            key += [question.outputs, *((name, array.shape[1:]) for name, array in sorted(question.inputs.items()))]
        found = tuple(key)
        lane = self._lanes.get(found)
        if lane is None:
            lane = self._lanes[found] = _Lane(found, kind, large, joined)
        return _Asked(question, rows or 1, lane, asyncio.get_running_loop().create_future(), deadline)

    def _leave(self, one: _Asked) -> None:
        """Nobody waits for it any more; where it is not computed yet it will not be."""
        if one in one.lane.waiting:
            del one.lane.waiting[one]
            self.held -= 1
            self._close(one.lane)

    def _expire(self, one: _Asked) -> None:
        if not one.future.done():
            one.future.set_exception(TimeoutError(_LATE))
            self._leave(one)

    # What is called ---------------------------------------------------------------------------------------------------

    def _look(self) -> None:
        """Begin every call that can be, one for each lane in turn."""
        begun = True
        while begun:
            begun = False
            for lane in [*self._lanes.values()]:
                if not self._may_begin(lane):
                    continue
                taken = self._take(lane)
                if taken:
                    begun = True
                    self._begin(lane, taken)
                self._close(lane)

    def _may_begin(self, lane: _Lane) -> bool:
        count = self._threads.count
        return (
            bool(lane.waiting)
            and self._threads.taken < count
            and not (lane.joined and lane.running)
            and lane.kind.running < max(1, count - 1)
            and not (lane.large and self._large >= max(1, count // 2))
        )

    def _take(self, lane: _Lane) -> list[_Asked]:
        """The next call of a lane: those that came first and were not given up meanwhile."""
        taken: list[_Asked] = []
        rows, now = 0, asyncio.get_running_loop().time()
        for one in [*lane.waiting]:
            if taken and (not lane.joined or rows + one.rows > self._rows):
                break
            if one.future.done() or (one.deadline is not None and one.deadline <= now):
                self._expire(one)
                continue
            taken.append(one)
            rows += one.rows
            del lane.waiting[one]
        return taken

    def _begin(self, lane: _Lane, taken: list[_Asked]) -> None:
        lane.running += 1
        lane.kind.running += 1
        self._large += lane.large
        self._computing += len(taken)
        self._lanes[lane.key] = self._lanes.pop(lane.key)  # the others come first now
        self._threads.start(partial(_timed, [one.question for one in taken]), partial(self._end, lane, taken))

    def _end(self, lane: _Lane, taken: list[_Asked], result: _Timed, error: Exception | None) -> None:
        lane.running -= 1
        lane.kind.running -= 1
        self._large -= lane.large
        self._computing -= len(taken)
        self.held -= len(taken)
        assert error is None  # errors are among the answers
        self._answered(lane, taken, *result)
        self._close(lane)
        self._look()

    def _answered(self, lane: _Lane, taken: list[_Asked], found: list[Answer | Exception], seconds: float) -> None:
        for one, answer in zip(taken, found, strict=True):
            if one.future.done():
                continue
            if isinstance(answer, Exception):
                one.future.set_exception(answer)
            else:
                one.future.set_result(answer)
        self._count(lane.kind, [one.question for one in taken], sum(one.rows for one in taken), seconds)

    def _at_once(self, question: Question, kind: _Kind) -> Answer:
        began = perf_counter()
        try:
            return answers.answer(question)
        finally:
            self._count(kind, [question], answers.rows_of(question) or 1, perf_counter() - began)

    def _count(self, kind: _Kind, questions: Sequence[Question], rows: int, seconds: float) -> None:
        if kind.prompt:
            size = sum(map(_size, questions))
            if seconds < _PROMPT_SECONDS:
                kind.fast += 1
                kind.size = max(kind.size, size if seconds > _PROMPT_SECONDS / 2 else 2 * size)
            else:
                kind.size = min(kind.size, size // 2)
            if seconds > _SLOW_SECONDS:
                kind.fast = 0
        first = questions[0]
        import os

        os.environ.get("DBG") and open("/tmp/scratch-S1/batches", "a").write(
            f"{len(questions)} {seconds * 1e6:.0f} {kind.size} {kind.fast}\n"
        )
        self.metrics.called(
            model=first.model,
            signature=first.signature,
            version=str(first.resident.version.number),
            requests=len(questions),
            rows=rows,
            seconds=seconds,
        )

    def _close(self, lane: _Lane) -> None:
        if not lane.waiting and not lane.running:
            self._lanes.pop(lane.key, None)


_Timed = tuple[list[Answer | Exception], float]


def _timed(questions: list[Question]) -> _Timed:
    began = perf_counter()
    found = answers.answers(questions)
    return found, perf_counter() - began


def _size(question: Question) -> int:
    return sum([array.nbytes for array in question.inputs.values()])
