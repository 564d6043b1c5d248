"""`python -m bench workers`: compares several workers with one worker: rates, memory, and versions that clients see."""

from __future__ import annotations

import os
import re
import signal
import statistics
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import grpc

from bench import h2load
from bench.progress import Progress
from bench.publishing import INPUTS, PAUSE, publisher
from bench.served import OPTIONS, PREDICT, Served, request
from bench.settings import Settings
from paramsync.host.processes import processors
from paramsync.v1 import serving_pb2

CONCURRENCIES = (1, 8, 64)
_KIND = "embedding"
_LATER = 600.0  # seconds that the publisher can go on: longer than the benchmark watches
_WATCHERS = 8  # threads that watch which versions answer
_CALLS = 50  # calls on one connection, all answered by one worker


def run(settings: Settings, folder: Path) -> dict[str, Any]:
    h2load.require()
    several = max(2, processors())
    store = folder / "store"
    asked = request({"x": INPUTS[_KIND]})
    with Progress() as progress:
        progress.say("preparing")
        with publisher(store, _KIND, settings.bytes, first=1, count=5):
            pass
        figures: dict[str, Any] = {"workers": several}
        figures["pss_over_model"] = _measure_shared(folder / "dense", settings.bytes, several)
        with (
            Served.inferencer(store, "--workers", "1") as alone,
            Served.inferencer(store, "--workers", str(several)) as many,
        ):
            for server in (alone, many):
                server.ask_until(asked, 1)
            figures |= _measure_rates({"1": alone, "n": many}, asked, folder, settings, progress)
            progress.say("ending a worker")
            figures["replaced_worker_s"] = _replace(alone, asked)
            progress.say("watching versions")
            with publisher(store, _KIND, settings.bytes, first=100, count=int(_LATER / PAUSE)):
                many.ask_until(asked, 100)
                figures |= _watch(many.addresses["predictions"], asked, settings.seconds * settings.runs)
    return figures


def _measure_rates(
    servers: dict[str, Served], asked: bytes, folder: Path, settings: Settings, progress: Progress
) -> dict[str, Any]:
    """Measure the answers per second of each server, by turns. Each caller has its own connection."""
    targets = {
        name: h2load.Target.grpc(server.addresses["predictions"], PREDICT, asked, folder / f"request-{name}")
        for name, server in servers.items()
    }
    samples: dict[tuple[str, int], list[float]] = {}
    for number in progress.track(range(settings.runs), settings.runs):
        for count in CONCURRENCIES:
            for name in sorted(servers, reverse=bool(number % 2)):
                answers = h2load.closed(targets[name], count, settings.seconds)
                samples.setdefault((name, count), []).append(answers.rate)
    medians = {key: statistics.median(rates) for key, rates in samples.items()}
    figures: dict[str, Any] = {}
    for count in CONCURRENCIES:
        for name in servers:
            figures[f"{name}_per_second_c{count}"] = medians[name, count]
        figures[f"n_over_1_c{count}"] = medians["n", count] / medians["1", count]
    return figures | {"samples_per_second": {f"{name}_c{count}": rates for (name, count), rates in samples.items()}}


def _measure_shared(store: Path, size: int, workers: int) -> float:
    """Return how many times the parameters of a dense network are in memory. Each call reads all of them."""
    with publisher(store, "dense", size, first=1, count=5):
        pass
    with Served.inferencer(store, "--workers", str(workers)) as served:
        served.ask_until(request({"x": INPUTS["dense"]}), 1)
        return _proportional_bytes(served, store) / size


def _proportional_bytes(served: Served, store: Path) -> int:
    """Return how many bytes of the store's files the server's processes have mapped, counting each page once."""
    total = 0
    for pid in served.family:
        with suppress(OSError):
            is_mapped = False
            for line in Path(f"/proc/{pid}/smaps").read_text().splitlines():
                if re.match(r"[0-9a-f]+-[0-9a-f]+ ", line):
                    is_mapped = str(store) in line
                elif is_mapped and line.startswith("Pss:"):
                    total += int(line.split()[1]) * 1024
    return total


def _replace(served: Served, asked: bytes) -> float:
    """Kill the only worker. Returns the seconds until the next answer."""
    os.kill(served.family[-1], signal.SIGKILL)
    began = time.perf_counter()
    while True:
        with (
            suppress(grpc.RpcError),
            grpc.insecure_channel(served.addresses["predictions"], options=OPTIONS) as channel,
        ):
            channel.unary_unary(PREDICT, bytes, bytes)(asked, timeout=1.0)
            return time.perf_counter() - began


def _watch(address: str, asked: bytes, seconds: float) -> dict[str, Any]:
    """Count requests. An answer counts as backwards if a newer version had answered before its request was sent."""
    counts = {"requests": 0, "failed": 0, "backwards": 0, "newest": 0}
    lock = threading.Lock()
    end = time.monotonic() + seconds

    def ask() -> None:
        while time.monotonic() < end:
            with grpc.insecure_channel(address, options=OPTIONS) as channel:
                call = channel.unary_unary(PREDICT, bytes, bytes)
                for _ in range(_CALLS):
                    before = counts["newest"]
                    try:
                        version = serving_pb2.PredictResponse.FromString(call(asked)).model_spec.version.value
                    except grpc.RpcError:
                        version = -1
                    with lock:
                        counts["requests"] += 1
                        counts["failed"] += version < 0
                        counts["backwards"] += 0 <= version < before
                        counts["newest"] = max(counts["newest"], version)

    watchers = [threading.Thread(target=ask) for _ in range(_WATCHERS)]
    for watcher in watchers:
        watcher.start()
    for watcher in watchers:
        watcher.join()
    return counts
