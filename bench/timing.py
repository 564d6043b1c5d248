"""How things are timed: by turns, in rounds of one run, so that what drifts on the machine drifts for all of them."""

from __future__ import annotations

import gc
import random
import statistics
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TypeVar

T = TypeVar("T")


def _nothing() -> None:
    """What most have to do before and after."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Contestant:
    """One way to do the job. Only `run` is timed; what it returns is kept until the clock has stopped.

    An `optional` one that fails is left out from then on. `warm_ups` is how many rounds it takes part in before those
    that count.
    """

    name: str
    run: Callable[[], object]
    prepare: Callable[[], None] = _nothing
    clear: Callable[[], None] = _nothing
    warm_ups: int = 1
    optional: bool = False


@dataclass(frozen=True, slots=True)
class Timings:
    """Milliseconds of each round by contestant, and why those that are absent are."""

    samples: Mapping[str, list[float]]
    absent: dict[str, str] = field(default_factory=dict)

    def median(self, name: str) -> float | None:
        """None for what was not measured."""
        found = self.samples.get(name)
        return statistics.median(found) if found else None


def measure(
    contestants: Collection[Contestant],
    *,
    runs: int,
    between: Callable[[], None] = _nothing,
    order: random.Random,
    track: Callable[[Iterable[int], int], Iterable[int]],
) -> Timings:
    """Time all contestants once in each of `runs` rounds, in an order drawn for each, after the rounds that warm up.

    `between` is called before each round; `track` is given the rounds and their number, to show how far they are.
    """
    warm_ups = max(one.warm_ups for one in contestants)
    samples: dict[str, list[float]] = {}
    absent: dict[str, str] = {}
    with _without_collector():
        for number in track(range(warm_ups + runs), warm_ups + runs):
            between()
            taking_part = [one for one in contestants if one.name not in absent and number >= warm_ups - one.warm_ups]
            for one in order.sample(taking_part, len(taking_part)):
                try:
                    taken = _time(one)
                except Exception as error:  # a peer that fails is reported, and ours is measured
                    if not one.optional:
                        raise
                    absent[one.name] = f"failed: {type(error).__name__}: {error}"
                    samples.pop(one.name, None)
                    continue
                if number >= warm_ups:
                    samples.setdefault(one.name, []).append(taken)
    return Timings(samples, absent)


def _time(one: Contestant) -> float:
    """Milliseconds."""
    one.prepare()
    try:
        started = time.perf_counter_ns()
        result = one.run()
        taken = time.perf_counter_ns() - started
        del result  # freeing what was restored is not restoring
    finally:
        one.clear()
    gc.collect()
    return taken / 1e6


@contextmanager
def _without_collector() -> Iterator[None]:
    was = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was:
            gc.enable()
