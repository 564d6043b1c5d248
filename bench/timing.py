"""Timing by turns: every contestant runs once in each round, so that drift of the machine affects all alike."""

from __future__ import annotations

import gc
import random
import statistics
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any


def _nothing() -> None:
    """The default of `prepare`, `clear` and `between`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Contestant:
    """One way to do the job. Only `run` is timed; its result is freed after the clock has stopped.

    An `optional` contestant that fails is left out from then on. `warm_ups` is the number of its rounds before
    the timed rounds.
    """

    name: str
    run: Callable[[], object]
    prepare: Callable[[], None] = _nothing
    clear: Callable[[], None] = _nothing
    warm_ups: int = 1
    optional: bool = False


@dataclass(frozen=True, slots=True)
class Timings:
    """The milliseconds of each round by contestant, and for each absent contestant the reason."""

    samples: Mapping[str, list[float]]
    absent: dict[str, str] = field(default_factory=dict)

    def figures(self, **quotients: tuple[str, str]) -> dict[str, Any]:
        """Return the medians as `<name>_ms`, and quotients of medians: `<name>_over_ours` and the given quotients."""
        medians = {name: statistics.median(samples) for name, samples in self.samples.items()}
        peers = [name for name in medians if not name.startswith(("ours", "memcpy"))] if "ours" in medians else []
        compared = {f"{name}_over_ours": (name, "ours") for name in peers}
        return {
            **{f"{name}_ms": median for name, median in medians.items()},
            **{
                key: medians[over] / medians[under]
                for key, (over, under) in {**compared, **quotients}.items()
                if over in medians
            },
            "absent": self.absent,
            "samples_ms": dict(self.samples),
        }


def measure(
    contestants: Collection[Contestant],
    *,
    runs: int,
    between: Callable[[], None] = _nothing,
    order: random.Random,
    track: Callable[[Iterable[int], int], Iterable[int]],
) -> Timings:
    """Time all contestants once in each of `runs` rounds, in random order, after some rounds as a warm-up.

    `between` is called before each round; `track` gets the rounds and their number, to show progress.
    """
    warm_ups = max(contestant.warm_ups for contestant in contestants)
    samples: dict[str, list[float]] = {}
    absent: dict[str, str] = {}
    with _without_collector():
        for number in track(range(warm_ups + runs), warm_ups + runs):
            between()
            present = [c for c in contestants if c.name not in absent and number >= warm_ups - c.warm_ups]
            for contestant in order.sample(present, len(present)):
                try:
                    milliseconds = _time(contestant)
                except Exception as error:  # a peer that fails is reported, and does not end the benchmark
                    if not contestant.optional:
                        raise
                    absent[contestant.name] = f"failed: {type(error).__name__}: {error}"
                    samples.pop(contestant.name, None)
                    continue
                if number >= warm_ups:
                    samples.setdefault(contestant.name, []).append(milliseconds)
    return Timings(samples, absent)


def _time(contestant: Contestant) -> float:
    """Return the milliseconds of one run."""
    contestant.prepare()
    try:
        started = time.perf_counter_ns()
        result = contestant.run()
        nanoseconds = time.perf_counter_ns() - started
        del result  # freed only now: freeing the result is not part of the time
    finally:
        contestant.clear()
    gc.collect()
    return nanoseconds / 1e6


@contextmanager
def _without_collector() -> Iterator[None]:
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
