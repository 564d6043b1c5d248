"""`python -m bench workers`: several workers against one; what they share, and what a client sees of them."""

from __future__ import annotations

import os
import re
import signal
import statistics
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import grpc

from bench import h2load
from bench.callers import Task, callers
from bench.progress import Progress
from bench.publishing import INPUTS
from bench.served import PREDICT, Served, request
from bench.settings import Settings
from paramsync.host.processes import processors
from paramsync.v1 import serving_pb2

CONCURRENCIES = (1, 8, 64)
_KIND = "embedding"
_PAUSE = 0.1  # seconds from version to version
_LATER = 600.0  # seconds: a publisher goes on for longer than anybody looks
_WATCHING = 8  # threads that see which versions answer
_CALLS_OF_ONE = 50  # on one connection, which one worker has
_OPTIONS = (("grpc.enable_http_proxy", 0), ("grpc.use_local_subchannel_pool", 1))
_PROCESSES = 2  # of callers in Python, where no compiled one is installed

Rate = Callable[[str, int, float], float]
"""Answers a second of this address, by so many callers for so many seconds."""


def run(settings: Settings, folder: Path) -> dict[str, Any]:
    several = max(2, processors())
    place = folder / "store"
    asked = request({"x": INPUTS[_KIND]})
    (folder / "request").write_bytes(asked)
    with Progress() as progress:
        progress.say("preparing")
        with _publisher(place, _KIND, settings.bytes, first=1, count=5):
            pass
        found: dict[str, Any] = {"benchmark": settings.benchmark, "bytes": settings.bytes, "workers": several}
        found["pss_over_model"] = _shared(folder / "dense", settings.bytes, several)
        with (
            Served.inferencer(place, "--workers", "1") as alone,
            Served.inferencer(place, "--workers", str(several)) as many,
        ):
            for one in (alone, many):
                one.ask_until(asked, 1)
            found |= _rates({"1": alone, "n": many}, folder / "request", settings, progress)
            progress.say("ending a worker")
            found["replaced_worker_s"] = _replaced(alone, asked)
            progress.say("watching versions")
            with _publisher(place, _KIND, settings.bytes, first=100, count=int(_LATER / _PAUSE)):
                many.ask_until(asked, 100)
                found |= _watched(many.addresses["predictions"], asked, settings.seconds * settings.runs)
    return found | {"absent": {}}


def _publisher(place: Path, kind: str, size: int, *, first: int, count: int) -> Served:
    options = {"first": first, "bytes": size, "pause": _PAUSE, "count": count}
    said = [str(place), "ours", kind, *(f"--{name}={one}" for name, one in options.items())]
    return Served("bench.publishing", said, log=place.with_name(f"{place.name}-{first}.log"))


# How many answers -----------------------------------------------------------------------------------------------------


def _rates(servers: dict[str, Served], asked: Path, settings: Settings, progress: Progress) -> dict[str, Any]:
    """By turns."""
    with callers(_PROCESSES) as calling:

        def by_python(address: str, count: int, seconds: float) -> float:
            return calling.call(Task(address, PREDICT, str(asked), count, seconds)).rate

        rate = _by_h2load(asked) if h2load.is_installed() else by_python
        samples: dict[tuple[str, int], list[float]] = {}
        for number in progress.track(range(settings.runs), settings.runs):
            for count in CONCURRENCIES:
                for name in sorted(servers, reverse=bool(number % 2)):
                    got = rate(servers[name].addresses["predictions"], count, settings.seconds)
                    samples.setdefault((name, count), []).append(got)
    medians = {key: statistics.median(one) for key, one in samples.items()}
    figures: dict[str, Any] = {"load_generator": h2load.PROGRAM if h2load.is_installed() else "grpc.aio"}
    for count in CONCURRENCIES:
        for name in servers:
            figures[f"{name}_per_second_c{count}"] = medians[name, count]
        figures[f"n_over_1_c{count}"] = medians["n", count] / medians["1", count]
    return figures | {"samples_per_second": {f"{name}_c{count}": one for (name, count), one in samples.items()}}


def _by_h2load(asked: Path) -> Rate:
    """Each caller has a connection of its own."""
    content = asked.read_bytes()

    def rate(address: str, count: int, seconds: float) -> float:
        return h2load.closed(
            h2load.Target.grpc(address, PREDICT, content, asked.with_name("framed")), count, seconds
        ).rate

    return rate


# What they share, and who takes whose place ---------------------------------------------------------------------------


def _shared(place: Path, size: int, workers: int) -> float:
    """How many times the parameters of a dense network, all of which each call reads, are in memory."""
    with _publisher(place, "dense", size, first=1, count=5):
        pass
    with Served.inferencer(place, "--workers", str(workers)) as served:
        served.ask_until(request({"x": INPUTS["dense"]}), 1)
        return _pss(served, place) / size


def _pss(served: Served, place: Path) -> int:
    """Bytes of the store's files that the server's processes have mapped, each page counted once."""
    total = 0
    for pid in served.family:
        with suppress(OSError):
            mapped = False
            for line in Path(f"/proc/{pid}/smaps").read_text().splitlines():
                if re.match(r"[0-9a-f]+-[0-9a-f]+ ", line):
                    mapped = str(place) in line
                elif mapped and line.startswith("Pss:"):
                    total += int(line.split()[1]) * 1024
    return total


def _replaced(served: Served, asked: bytes) -> float:
    """Seconds from the end of the only worker to the next answer."""
    os.kill(served.family[-1], signal.SIGKILL)
    began = time.perf_counter()
    while True:
        with (
            suppress(grpc.RpcError),
            grpc.insecure_channel(served.addresses["predictions"], options=_OPTIONS) as channel,
        ):
            channel.unary_unary(PREDICT, bytes, bytes)(asked, timeout=1.0)
            return time.perf_counter() - began


def _watched(address: str, asked: bytes, seconds: float) -> dict[str, Any]:
    """Whether any answer came from an older version than one that had come before it was asked for."""
    seen = {"requests": 0, "failed": 0, "backwards": 0, "newest": 0}
    lock = threading.Lock()
    end = time.monotonic() + seconds

    def ask() -> None:
        while time.monotonic() < end:
            with grpc.insecure_channel(address, options=_OPTIONS) as channel:
                call = channel.unary_unary(PREDICT, bytes, bytes)
                for _ in range(_CALLS_OF_ONE):
                    before = seen["newest"]
                    try:
                        version = serving_pb2.PredictResponse.FromString(call(asked)).model_spec.version.value
                    except grpc.RpcError:
                        version = -1
                    with lock:
                        seen["requests"] += 1
                        seen["failed"] += version < 0
                        seen["backwards"] += 0 <= version < before
                        seen["newest"] = max(seen["newest"], version)

    _together([threading.Thread(target=ask) for _ in range(_WATCHING)])
    return seen


def _together(threads: Sequence[threading.Thread]) -> None:
    for one in threads:
        one.start()
    for one in threads:
        one.join()
