"""Flush: prompt questions wait for those that come with them, until the event loop would rest."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from ..event_loop.loop import IdleSelector
from .queue import Lane

_SECONDS_FOR_ANNOUNCED = 0.001  # after which questions that were seen coming are waited for no more
_SECONDS_WITHOUT_REST = 0.001  # more, after which a busy event loop computes what was gathered


class Flush:
    """The lanes of one event loop that wait for more. `compute` is called for each that waits no longer."""

    def __init__(self, compute: Callable[[Lane], None], selector: IdleSelector | None) -> None:
        """`selector` is the event loop's. Of one that has none only those are waited for that are seen coming."""
        self._compute = compute
        self._selector = selector
        self._lanes: dict[Lane, None] = {}
        self.coming = 0
        """How many questions are seen coming."""

    def add(self, lane: Lane) -> None:
        """It waits from now on, or does so already and has one question more."""
        if lane.gathering is None:
            lane.gathering = _later(_SECONDS_FOR_ANNOUNCED, self._waited, lane)
            self._lanes[lane] = None
        if self._selector is not None:
            self._selector.before = self._is_due
        elif not self.coming:
            self._compute_all()

    def again(self, lane: Lane) -> None:
        """What is left of one that was computed is in a moment: others have a turn between."""
        lane.gathering = _later(0, self._compute, lane)

    def remove(self, lane: Lane) -> None:
        if lane.gathering is not None:
            lane.gathering.cancel()
            lane.gathering = None
            self._lanes.pop(lane, None)

    def _waited(self, lane: Lane) -> None:
        self.coming = 0  # what was announced and is not here may have been given up
        if self._selector is None:
            self._compute(lane)
        else:
            lane.gathering = _later(_SECONDS_WITHOUT_REST, self._compute, lane)

    def _is_due(self) -> bool:
        """The event loop would rest: whether it computes instead."""
        if self._lanes and self.coming:
            return False
        if self._selector is not None:
            self._selector.before = None
        if self._lanes:
            asyncio.get_running_loop().call_soon(self._compute_all)
        return bool(self._lanes)

    def _compute_all(self) -> None:
        for lane in [*self._lanes]:
            self._compute(lane)


def _later(seconds: float, call: Callable[[Lane], None], lane: Lane) -> asyncio.TimerHandle:
    return asyncio.get_running_loop().call_later(seconds, call, lane)
