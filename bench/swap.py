"""`python -m bench swap`: how long answers take while versions are swapped in, against a server left alone."""

from __future__ import annotations

import os
import signal
import statistics
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.options import SEVERAL, SWAPPING
from bench.progress import Progress
from bench.publishing import INPUTS
from bench.served import Served, request
from bench.settings import NOT_ASKED_FOR, Settings
from bench.traffic import Traffic

_PAUSE = 0.1  # seconds from version to version
_CALLERS = 64
_CALLING = 0.5  # seconds that these call, once in each round
_FIRST = 5  # versions before a server starts
_LATER = 60.0  # seconds: a publisher goes on for longer than anybody looks
_SETTLING = 0.3  # seconds after it was halted, or goes on, before anybody looks: it may have been within a version


@dataclass(frozen=True, slots=True)
class _Way:
    """How versions are published, and what serves them."""

    how: str
    serve: Callable[[Path, int], Served]


def _loop(kind: str) -> Callable[[Path, int], Served]:
    return lambda folder, size: Served(
        "bench.loops", [kind, str(folder), "--bytes", str(size)], log=folder.with_name(f"{folder.name}.log")
    )


_OURS = _Way("ours", lambda folder, size: Served.inferencer(folder))
_PEERS = {"assign": _Way("checkpoint", _loop("assign")), "savedmodel": _Way("savedmodel", _loop("savedmodel"))}
"""As `options.SWAPPING` names them."""


def run(settings: Settings, folder: Path) -> dict[str, Any]:
    """Ours with a large table, which is what the figures at the top are; with a dense network; and the peers."""
    cases: dict[str, Any] = {}
    absent = {name: NOT_ASKED_FOR for name in SWAPPING if name not in settings.peers}
    with Progress() as progress:
        for name, way, kind in (
            ("embedding", _OURS, "embedding"),
            ("dense", _OURS, "dense"),
            *((name, _PEERS[name], "embedding") for name in settings.peers),
        ):
            progress.say(f"{name}: preparing")
            place = folder / name
            case = _Case(way, kind, place, settings)
            try:
                cases[name] = case.measure(lambda rounds: progress.track(rounds, settings.runs))
            except Exception as error:  # a peer that fails is reported, and ours is measured
                if way is _OURS:
                    raise
                absent[name] = f"failed: {type(error).__name__}: {error}"
    return {"benchmark": settings.benchmark, "bytes": settings.bytes, **cases["embedding"], "cases": cases} | {
        "absent": absent
    }


class _Case:
    def __init__(self, way: _Way, kind: str, folder: Path, settings: Settings) -> None:
        self._way = way
        self._kind = kind
        self._folder = folder
        self._settings = settings
        self._next = 1
        self._request = folder.with_name(f"{folder.name}.request")
        self._request.write_bytes(request({"x": INPUTS[kind]}))
        processors = os.sched_getaffinity(0)
        last = {max(processors)} if len(processors) >= SEVERAL else set()
        self._publishers = last or processors
        self._others = processors - last

    def measure(self, track: Callable[[range], Any]) -> dict[str, Any]:
        """In each round the load is set to what the machine gives just then; and under it a while without and one with
        versions that are published and swapped in, which of them first by turns."""
        with self._publisher(_FIRST):
            pass
        seen: dict[str, list[Mapping[str, Any]]] = {"quiet": [], "swap": []}
        capacities: list[float] = []
        seconds, runs = self._settings.seconds, self._settings.runs
        with (
            _on(self._others),
            self._way.serve(self._folder, self._settings.bytes) as served,
            self._publisher(int((2 * runs * (_SETTLING + seconds) + _LATER) / _PAUSE)) as publisher,
            _halting(publisher) as halted,
        ):
            served.ask_until(self._request.read_bytes(), 1)
            address = served.addresses["predictions"]
            with Traffic(
                address, self._request, callers=_CALLERS, seconds=_CALLING, share=self._settings.load
            ) as traffic:
                traffic.pace()  # at first they are fewer
                for round_ in track(range(runs)):
                    halted(False)  # what publishing takes of the machine is no part of what may be asked of it
                    _wait(_SETTLING)
                    capacities.append(traffic.pace())
                    for name in ("quiet", "swap") if round_ % 2 == 0 else ("swap", "quiet"):
                        halted(name == "quiet")
                        _wait(_SETTLING)
                        traffic.forget()
                        _wait(seconds)
                        seen[name].append(traffic.seen())
        return self._figures(statistics.median(capacities), seen["quiet"], seen["swap"])

    def _figures(
        self, capacity: float, quiet: list[Mapping[str, Any]], swapping: list[Mapping[str, Any]]
    ) -> dict[str, Any]:
        figures: dict[str, Any] = {
            "processors": len(os.sched_getaffinity(0)),
            "load": self._settings.load,
            "capacity_per_second": capacity,
            "load_per_second": capacity * self._settings.load,
        }
        for name, seen in (("quiet", quiet), ("swap", swapping)):
            for percentile in ("p50", "p99", "p99.9"):
                times = [one[f"{percentile}_ms"] for one in seen]
                figures[f"{name}_{percentile.replace('.', '_')}_ms"] = statistics.median(times)
        seen = [*quiet, *swapping]
        return figures | {
            "ratio_p99": figures["swap_p99_ms"] / figures["quiet_p99_ms"],
            "versions_per_second": statistics.mean(one["versions"] - 1 for one in swapping) / self._settings.seconds,
            "requests": sum(one["answered"] + one["failed"] for one in seen),
            "failed": sum(one["failed"] for one in seen),
            "mixed": sum(one["mixed"] for one in seen),
            "samples": {"quiet": quiet, "swap": swapping},
        }

    def _publisher(self, count: int) -> Served:
        first = self._next
        self._next += count
        options = {"first": first, "bytes": self._settings.bytes, "pause": _PAUSE, "count": count}
        with _on(self._publishers):
            return Served(
                "bench.publishing",
                [str(self._folder), self._way.how, self._kind, *(f"--{name}={one}" for name, one in options.items())],
                log=self._folder.with_name(f"{self._folder.name}-{first}.log"),
            )


def _wait(seconds: float) -> None:
    threading.Event().wait(seconds)


@contextmanager
def _halting(publisher: Served) -> Iterator[Callable[[bool], None]]:
    """Halts it, and lets it go on where it was and halts it again, as it is told."""

    def halted(wanted: bool) -> None:
        os.kill(publisher.pid, signal.SIGSTOP if wanted else signal.SIGCONT)

    try:
        halted(True)
        yield halted
    finally:
        halted(False)


@contextmanager
def _on(processors: set[int]) -> Iterator[None]:
    """What is started here has these."""
    here = os.sched_getaffinity(0)
    os.sched_setaffinity(0, processors)
    try:
        yield
    finally:
        os.sched_setaffinity(0, here)
