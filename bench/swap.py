"""`python -m bench swap`: how long answers take while versions are swapped in, against a server left alone, and one
beside processes that copy as many bytes."""

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
from bench.options import SWAPPING
from bench.progress import Progress
from bench.publishing import INPUTS
from bench.served import PREDICT, Served, request
from bench.settings import NOT_ASKED_FOR, Settings
from bench.traffic import Traffic
from paramsync.host.processes import processors

_PAUSE = 0.1  # seconds from version to version
_WINDOWS = "quiet", "swap", "copied"
_CALLERS = 64
_CALLING = 1.0  # seconds that these call as fast as they can, once in each round
_CONNECTING = 1.0  # seconds until all connections of a round are made
_LONGER = 3.0  # seconds that calls go on for: answers that are looked into may be late
_APART = 8.0  # seconds of a round beside, at most
_FRAME = 5  # bytes before a message
_CHECKED = 0.1  # of the load: further calls, whose answers are looked into,
_FEWEST, _MOST = 5.0, 50.0  # a second
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
    h2load.require()
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
        self._request = request({"x": INPUTS[kind]})

    def measure(self, track: Callable[[range], Any]) -> dict[str, Any]:
        """In each round the load is set to what the machine gives just then; and under it a while without versions, one
        with versions that are published and swapped in, and one beside copies of as many bytes, in an order that goes
        round."""
        with self._publisher(_FIRST):
            pass
        windows: dict[str, list[_Window]] = {name: [] for name in _WINDOWS}
        capacities: list[float] = []
        seconds, runs = self._settings.seconds, self._settings.runs
        calling = len(_WINDOWS) * (_SETTLING + seconds)  # in a round
        sent = self._folder.with_name(f"{self._folder.name}.request")
        sent.write_bytes(self._request)
        with (
            self._way.serve(self._folder, self._settings.bytes) as served,
            self._publisher(int((runs * (calling + _APART) + _LATER) / _PAUSE)) as publisher,
            _halting(publisher) as halted,
            self._copier() as first,
            self._copier() as second,
            _halting(first, second) as resting,
        ):
            served.ask_until(self._request, 1)
            address = served.addresses["predictions"]
            answer = _FRAME + served.ask(self._request).ByteSize()
            body = self._folder.with_name(f"{self._folder.name}.body")
            target = h2load.Target.grpc(address, PREDICT, self._request, body, answer=answer)
            checked_rate = _CHECKED * self._settings.load * h2load.closed(target, _CALLERS, _CALLING).rate
            with Traffic(address, sent, rate=min(_MOST, max(_FEWEST, checked_rate))) as checking:
                checking.forget()  # its connections are made
                for round_ in track(range(runs)):
                    halted(False)  # what publishing takes of the machine is no part of what may be asked of it
                    _wait(_SETTLING)
                    capacities.append(h2load.closed(target, _CALLERS, _CALLING).rate)
                    begun: dict[str, float] = {}
                    checked: dict[str, Mapping[str, Any]] = {}
                    rate = capacities[-1] * self._settings.load
                    whole = _CONNECTING + calling + _LONGER
                    with h2load.Paced(target, connections=_CALLERS, rate=rate, seconds=whole) as calls:
                        _wait(_CONNECTING)
                        turn = round_ % len(_WINDOWS)
                        for name in (*_WINDOWS[turn:], *_WINDOWS[:turn]):
                            halted(name != "swap")
                            resting(name != "copied")
                            _wait(_SETTLING)
                            checking.forget()
                            begun[name] = time.time()
                            _wait(seconds)
                            checked[name] = checking.seen()
                        resting(True)
                        calls.wait()
                    for name, begin in begun.items():
                        windows[name].append(_Window(calls.between(begin, seconds), checked[name]))
        return self._figures(statistics.median(capacities), windows)

    def _figures(self, capacity: float, windows: Mapping[str, list[_Window]]) -> dict[str, Any]:
        figures: dict[str, Any] = {
            "processors": processors(),
            "load": self._settings.load,
            "capacity_per_second": capacity,
            "load_per_second": capacity * self._settings.load,
        }
        samples = {name: [window.figures() for window in seen] for name, seen in windows.items()}
        for name, seen in samples.items():
            for percentile in ("p50_ms", "p99_ms", "p99_9_ms"):
                figures[f"{name}_{percentile}"] = statistics.median(one[percentile] for one in seen)
        everything = [one for seen in samples.values() for one in seen]
        return figures | {
            "ratio_p99": figures["swap_p99_ms"] / figures["quiet_p99_ms"],
            "over_copied_p99": figures["swap_p99_ms"] / figures["copied_p99_ms"],
            "more_p99_ms": figures["swap_p99_ms"] - figures["quiet_p99_ms"],
            "versions_per_second": statistics.mean(one["versions"] for one in samples["swap"]) / self._settings.seconds,
            "requests": sum(one["answered"] + one["failed"] for one in everything),
            "failed": sum(one["failed"] for one in everything),
            "mixed": sum(one["mixed"] for one in everything),
            "samples": samples,
        }

    def _copier(self) -> Served:
        log = self._folder.with_name(f"{self._folder.name}-copier-{time.monotonic_ns()}.log")
        return Served("bench.copying", [f"--bytes={self._settings.bytes}", f"--pause={_PAUSE}"], log=log)

    def _publisher(self, count: int) -> Served:
        first = self._next
        self._next += count
        options = {"first": first, "bytes": self._settings.bytes, "pause": _PAUSE, "count": count}
        return Served(
            "bench.publishing",
            [str(self._folder), self._way.how, self._kind, *(f"--{name}={one}" for name, one in options.items())],
            log=self._folder.with_name(f"{self._folder.name}-{first}.log"),
        )


@dataclass(frozen=True, slots=True)
class _Window:
    """What those who call saw in it, and those who look into answers."""

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


def _wait(seconds: float) -> None:
    threading.Event().wait(seconds)


@contextmanager
def _halting(*programs: Served) -> Iterator[Callable[[bool], None]]:
    """Halts them, and lets them go on where they were and halts them again, as it is told."""

    def halted(wanted: bool) -> None:
        for program in programs:
            os.kill(program.pid, signal.SIGSTOP if wanted else signal.SIGCONT)

    try:
        halted(True)
        yield halted
    finally:
        halted(False)
