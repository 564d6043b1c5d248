"""What each system answers, how fast, and how fast while versions come; medians and quotients of that."""

from __future__ import annotations

import contextlib
import json
import random
import statistics
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from bench import conditions, h2load
from bench.options import SERVING
from bench.peers.publisher import INPUTS, Trainer
from bench.peers.systems import OURS, SYSTEMS, Running, System
from bench.progress import Progress
from bench.settings import NOT_ASKED_FOR, Settings
from paramsync.host.processes import processors

CONCURRENCIES = (1, 8, 64)
BATCHES = (1, 32)
_CONNECTIONS = 64  # of those who call while versions come
_CALLERS = 64  # who find out how much can be asked
_WINDOW = 2  # times the seconds of a rate: a version a second comes in each
_SETTLING = 1.0  # seconds after a version is served, or a server has started
_WARM_UP = 2.0  # seconds, at most those of a rate
_AHEAD = 4.0  # seconds that calls go on for longer than windows: a version may be late


def run(settings: Settings, folder: Path) -> dict[str, Any]:
    """In each round each system, in an order drawn anew, is started, called in each case, and ended. Then each is
    called while versions come."""
    h2load.require()
    names = (*OURS, *settings.peers)
    seen = _before(settings) if settings.merge else _nothing()
    order = random.Random(len(seen["pieces"]))
    absent: dict[str, str] = {}
    with Progress() as progress:
        bench = _Bench(settings, folder, progress)
        for name in names:
            with _absent_where_it_fails(name, absent):
                bench.prepare(SYSTEMS[name])
        for _ in range(settings.runs):
            for name in order.sample(names, len(names)):
                if name not in absent:
                    with _absent_where_it_fails(name, absent):
                        for case, sample in bench.rates(SYSTEMS[name]).items():
                            seen["rates"].setdefault(name, {}).setdefault(case, []).append(sample)
        for name in order.sample(names, len(names)):
            if name not in absent:
                with _absent_where_it_fails(name, absent):
                    update = bench.updates(SYSTEMS[name])
                    seen["updates"].setdefault(name, []).append(update)
    seen["absent"] = _missing(seen, absent)
    piece = {"time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), "systems": names, "runs": settings.runs}
    seen["pieces"].append(piece | {"seconds": settings.seconds, "load_average": conditions.load()})
    return {
        "benchmark": settings.benchmark,
        "bytes": settings.bytes,
        "processors": processors(),
        "load_generator": h2load.PROGRAM,
        "load": settings.load,
        **figures(seen),
        **seen,
    }


def _missing(seen: Mapping[str, Any], absent: Mapping[str, str]) -> dict[str, str]:
    """Why there are no figures of a peer, unless there are some, of this run or of those before."""
    before: Mapping[str, str] = seen["absent"]
    names = [name for name in SERVING if not (name in seen["rates"] and name in seen["updates"])]
    return {name: absent.get(name, before.get(name, NOT_ASKED_FOR)) for name in names}


@contextlib.contextmanager
def _absent_where_it_fails(name: str, absent: dict[str, str]) -> Iterator[None]:
    """A peer that fails is reported, and the others are measured; ours that fails ends the run."""
    try:
        yield
    except Exception as error:
        if name in OURS:
            raise
        absent[name] = f"failed: {type(error).__name__}: {error}"


def figures(seen: Mapping[str, Any]) -> dict[str, Any]:
    """Medians and quotients of all that was seen; null where something was not."""
    rates: dict[str, Mapping[str, Any]] = seen["rates"]
    systems: dict[str, dict[str, Any]] = {
        name: {
            "title": SYSTEMS[name].title,
            "protocol": SYSTEMS[name].protocol.title,
            "told": SYSTEMS[name].told,
            "cases": {case: _medians(samples) for case, samples in rates[name].items()},
            "update": _update(seen["updates"].get(name, [])),
        }
        for name in (*OURS, *SERVING)
        if name in rates
    }
    found: dict[str, Any] = {"update_p99_over_quiet": systems["ours_n"]["update"].get("p99_over_quiet")}
    for peer in SERVING:
        ours, theirs = systems["ours_n"]["cases"], systems.get(peer)
        found |= {
            f"rate_over_{peer}_c64": theirs and ours["c64_b1"]["rate"] / theirs["cases"]["c64_b1"]["rate"],
            f"latency_over_{peer}_c1": theirs and ours["c1_b1"]["p50_ms"] / theirs["cases"]["c1_b1"]["p50_ms"],
            f"{peer}_update_p99_over_quiet": theirs and theirs["update"].get("p99_over_quiet"),
        }
    return found | {"systems": systems}


class _Bench:
    """One run. What is published for one system serves all that read it, where it does not change."""

    def __init__(self, settings: Settings, folder: Path, progress: Progress) -> None:
        self._settings, self._folder, self._progress = settings, folder, progress
        self._published: dict[str, Path] = {}
        self._expected: dict[int, np.ndarray[Any, Any]] = {}

    def prepare(self, system: System) -> None:
        """Install it, where that is not done yet."""
        self._progress.say(f"{system.name}: installing")
        system.prepare(self._settings.cache)

    def rates(self, system: System) -> dict[str, dict[str, float]]:
        """Rate and latency of every case, of a server that is started for it."""
        self._progress.say(f"{system.name}: rates")
        given = {batch: INPUTS["dense"](batch) for batch in BATCHES}
        with Running(system, "dense", self._dense(system.way), self._settings.cache) as server:
            cases = {}
            for batch, x in given.items():
                server.ask_until(x, self._is_right(batch))
                target = system.protocol.target(server.address, x, self._folder / f"{system.name}-{batch}")
                h2load.closed(target, _CALLERS, min(_WARM_UP, self._settings.seconds))
                for callers in CONCURRENCIES:
                    answers = h2load.closed(target, callers, self._settings.seconds)
                    cases[f"c{callers}_b{batch}"] = {"rate": answers.rate, **_percentiles(answers)}
        return cases

    def updates(self, system: System) -> dict[str, Any]:
        """Latency at a share of what it can answer while versions come: without, and with a version a second."""
        self._progress.say(f"{system.name}: versions")
        place, x = self._folder / f"{system.name}-versions", INPUTS["embedding"](1)
        seconds = _WINDOW * self._settings.seconds
        windows: dict[str, list[tuple[float, float]]] = {"quiet": [], "update": []}
        with Trainer(system.way, "embedding", place, self._settings.bytes) as trainer:
            trainer.publish(0.1)
            with Running(system, "embedding", place, self._settings.cache) as server, ThreadPoolExecutor(1) as aside:

                def settle() -> None:
                    server.ask_until(x, lambda answer: float(answer.reshape(-1)[0]) == trainer.version)
                    _wait(_SETTLING)

                settle()
                target = system.protocol.target(server.address, x, self._folder / f"{system.name}-paced")
                publishing = aside.submit(trainer.publish, seconds)
                capacity = h2load.closed(target, _CALLERS, seconds - 1).rate
                publishing.result()
                settle()
                trainer.milliseconds.clear()
                whole = 2 * self._settings.runs * (seconds + _SETTLING) + _AHEAD * self._settings.runs
                rate = capacity * self._settings.load
                with h2load.Paced(target, connections=_CONNECTIONS, rate=rate, seconds=whole) as calls:
                    _wait(_SETTLING)
                    for round_ in range(self._settings.runs):
                        for name in ("quiet", "update") if round_ % 2 == 0 else ("update", "quiet"):
                            windows[name].append((time.time(), seconds))
                            if name == "quiet":
                                _wait(seconds)
                            else:
                                trainer.publish(seconds)
                                settle()
                    calls.wait()
                answers = {name: [calls.between(*window) for window in windows[name]] for name in windows}
        return {
            "capacity_per_second": capacity,
            "load_per_second": rate,
            "publish_ms": trainer.milliseconds,
            "window_s": seconds,
            "failed": sum(window.failed for each in answers.values() for window in each),
            **{
                name: [{"rate": window.rate, **_percentiles(window)} for window in each]
                for name, each in answers.items()
            },
        }

    def _dense(self, way: str) -> Path:
        if way not in self._published:
            place = self._folder / f"dense-{way}"
            with Trainer(way, "dense", place, 0) as trainer:
                trainer.publish(0.1)
            self._published[way] = place
        return self._published[way]

    def _is_right(self, batch: int) -> Callable[[np.ndarray[Any, Any]], bool]:
        """All systems answer alike."""

        def is_right(answer: np.ndarray[Any, Any]) -> bool:
            rows = answer.reshape(batch, -1)
            return bool(np.allclose(self._expected.setdefault(batch, rows), rows, rtol=1e-3, atol=1e-4))

        return is_right


def _wait(seconds: float) -> None:
    threading.Event().wait(seconds)


def _before(settings: Settings) -> dict[str, Any]:
    """What was measured into the same file before."""
    path = Path(settings.json or "")
    written: dict[str, Any] = json.loads(path.read_text()) if path.is_file() else {}
    return {key: written.get(key, value) for key, value in _nothing().items()}


def _nothing() -> dict[str, Any]:
    return {"rates": {}, "updates": {}, "absent": {}, "pieces": []}


def _percentiles(answers: h2load.Answers) -> dict[str, float]:
    return {f"p{percent}_ms": answers.percentile(percent) for percent in (50, 99)}


def _medians(samples: Iterable[Mapping[str, float]]) -> dict[str, float]:
    rows = list(samples)
    return {key: statistics.median(row[key] for row in rows) for key in rows[0]} if rows else {}


def _update(pieces: list[Mapping[str, Any]]) -> dict[str, Any]:
    if not pieces:
        return {}
    quiet, update = (_medians([window for piece in pieces for window in piece[name]]) for name in ("quiet", "update"))
    return {
        "capacity_per_second": statistics.median(piece["capacity_per_second"] for piece in pieces),
        "load_per_second": statistics.median(piece["load_per_second"] for piece in pieces),
        "publish_ms": statistics.median(taken for piece in pieces for taken in piece["publish_ms"]),
        "versions_per_second": sum(len(piece["publish_ms"]) for piece in pieces)
        / sum(piece["window_s"] * len(piece["update"]) for piece in pieces),
        "failed": sum(piece["failed"] for piece in pieces),
        "quiet": quiet,
        "update": update,
        "p99_over_quiet": update["p99_ms"] / quiet["p99_ms"],
    }
