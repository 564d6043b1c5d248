"""`python -m bench swap`: latency while versions are swapped in.

It is compared with the latency of a quiet server, and of a server beside processes that copy as many bytes.
"""

from __future__ import annotations

import os
import signal
import statistics
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench import h2load
from bench.progress import Progress
from bench.publishing import INPUTS, PAUSE, publisher
from bench.served import PREDICT, Served, request
from bench.settings import Settings
from bench.traffic import Traffic
from paramsync.host.processes import processors

_WINDOWS = "quiet", "swap", "copied"
_CALLERS = 64
_CALLING = 1.0  # seconds of calls at full speed in each round, which measure the capacity
_CONNECTING = 1.0  # seconds until all connections of a round are made
_LONGER = 3.0  # seconds for which calls go on after the last window, because checked answers may be late
_APART = 8.0  # the most seconds of a round outside its windows
_FRAME = 5  # bytes of gRPC's prefix before a message
_CHECKED = 0.1  # this share of the load is called in addition, and these answers are checked
_FEWEST, _MOST = 5.0, 50.0  # limits for the rate of checked calls, per second
_FIRST = 5  # versions published before the server starts
_LATER = 60.0  # seconds that the publisher can go on after the benchmark's expected end
_SETTLING = 0.3  # seconds to wait after a process was halted or continued: it may be in the middle of a version


def run(settings: Settings, folder: Path) -> dict[str, Any]:
    """Measure a model with a large table, and a dense network. The top level repeats the first model's figures."""
    h2load.require()
    cases: dict[str, Any] = {}
    with Progress() as progress:
        for kind in ("embedding", "dense"):
            progress.say(f"{kind}: preparing")
            cases[kind] = _measure(kind, folder / kind, settings, progress)
    return {**cases["embedding"], "cases": cases}


def _measure(kind: str, store: Path, settings: Settings, progress: Progress) -> dict[str, Any]:
    """Measure one kind of model.

    Each round first measures the server's capacity, and then loads the server with a share of it. Under this load there
    are three windows: without new versions, with versions that are published and swapped in, and beside processes that
    copy as many bytes. Each round begins with another window.
    """
    with publisher(store, kind, settings.bytes, first=1, count=_FIRST):
        pass
    windows: dict[str, list[_Window]] = {name: [] for name in _WINDOWS}
    capacities: list[float] = []
    seconds, runs = settings.seconds, settings.runs
    calling = len(_WINDOWS) * (_SETTLING + seconds)  # in a round
    later = int((runs * (calling + _APART) + _LATER) / PAUSE)
    asked = request({"x": INPUTS[kind]})
    sent = store.with_name(f"{store.name}.request")
    sent.write_bytes(asked)
    with (
        Served.inferencer(store) as served,
        publisher(store, kind, settings.bytes, first=1 + _FIRST, count=later) as publishing,
        _halting(publishing) as halt_publisher,
        _copier(store, 1, settings) as first,
        _copier(store, 2, settings) as second,
        _halting(first, second) as halt_copiers,
    ):
        served.ask_until(asked, 1)
        address = served.addresses["predictions"]
        answer = _FRAME + served.ask(asked).ByteSize()
        target = h2load.Target.grpc(address, PREDICT, asked, store.with_name(f"{store.name}.body"), answer=answer)
        checked_rate = _CHECKED * settings.load * h2load.closed(target, _CALLERS, _CALLING).rate
        with Traffic(address, sent, rate=min(_MOST, max(_FEWEST, checked_rate))) as checking:
            checking.forget()  # returns once the connections are made
            for number in progress.track(range(runs), runs):
                halt_publisher(False)  # measure the capacity of a server beside a publisher
                _wait(_SETTLING)
                capacities.append(h2load.closed(target, _CALLERS, _CALLING).rate)
                begins: dict[str, float] = {}
                checked: dict[str, Mapping[str, Any]] = {}
                rate = capacities[-1] * settings.load
                whole = _CONNECTING + calling + _LONGER
                with h2load.Paced(target, connections=_CALLERS, rate=rate, seconds=whole) as calls:
                    _wait(_CONNECTING)
                    turn = number % len(_WINDOWS)
                    for name in (*_WINDOWS[turn:], *_WINDOWS[:turn]):
                        halt_publisher(name != "swap")
                        halt_copiers(name != "copied")
                        _wait(_SETTLING)
                        checking.forget()
                        begins[name] = time.time()
                        _wait(seconds)
                        checked[name] = checking.counts()
                    halt_copiers(True)
                    calls.wait()
                for name, begin in begins.items():
                    windows[name].append(_Window(calls.between(begin, seconds), checked[name]))
    return _figures(settings, statistics.median(capacities), windows)


def _figures(settings: Settings, capacity: float, windows: Mapping[str, list[_Window]]) -> dict[str, Any]:
    figures: dict[str, Any] = {
        "processors": processors(),
        "load": settings.load,
        "capacity_per_second": capacity,
        "load_per_second": capacity * settings.load,
    }
    samples = {name: [window.figures() for window in rounds] for name, rounds in windows.items()}
    for name, rounds in samples.items():
        for percentile in ("p50_ms", "p99_ms", "p99_9_ms"):
            figures[f"{name}_{percentile}"] = statistics.median(window[percentile] for window in rounds)
    every_window = [window for rounds in samples.values() for window in rounds]
    return figures | {
        "ratio_p99": figures["swap_p99_ms"] / figures["quiet_p99_ms"],
        "over_copied_p99": figures["swap_p99_ms"] / figures["copied_p99_ms"],
        "versions_per_second": statistics.mean(window["versions"] for window in samples["swap"]) / settings.seconds,
        "requests": sum(window["answered"] + window["failed"] for window in every_window),
        "failed": sum(window["failed"] for window in every_window),
        "mixed": sum(window["mixed"] for window in every_window),
        "samples": samples,
    }


@dataclass(frozen=True, slots=True)
class _Window:
    """The answers to the load in one window, and the counts of the checked answers."""

    answers: h2load.Answers
    checked: Mapping[str, Any]

    def figures(self) -> dict[str, Any]:
        return {
            "answered": len(self.answers.milliseconds) + self.checked["answered"],
            "per_second": self.answers.rate,
            "failed": self.answers.failed + self.checked["failed"],
            "reasons": self.checked["reasons"],
            "mixed": self.checked["mixed"],
            "versions": self.checked["versions"],
            "p50_ms": self.answers.percentile(50),
            "p99_ms": self.answers.percentile(99),
            "p99_9_ms": self.answers.percentile(99.9),
        }


def _copier(store: Path, number: int, settings: Settings) -> Served:
    arguments = [str(settings.bytes), str(PAUSE)]
    return Served("bench.copying", arguments, log=store.with_name(f"{store.name}-copier-{number}.log"))


def _wait(seconds: float) -> None:
    threading.Event().wait(seconds)


@contextmanager
def _halting(*programs: Served) -> Iterator[Callable[[bool], None]]:
    """Halt the processes. Yields a function that halts them (True) or lets them go on (False)."""

    def halt(wanted: bool) -> None:
        for program in programs:
            os.kill(program.pid, signal.SIGSTOP if wanted else signal.SIGCONT)

    try:
        halt(True)
        yield halt
    finally:
        halt(False)
