"""`python -m bench call`: one prediction, from an array to an array, ours and every other way TensorFlow has."""

from __future__ import annotations

import gc
import random
import statistics
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from itertools import cycle
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from bench import networks
from bench.networks import Call, Network
from bench.options import CALLS
from bench.ours import Publications
from bench.progress import Progress
from bench.settings import NOT_ASKED_FOR, Settings
from bench.timing import Contestant, Timings, measure
from paramsync.graphs.parameters import alias
from paramsync.store.store import Store

THREADS = (1, 4)

_SAMPLE_SECONDS = 0.02  # what a thread calls for without a look at the clock
_WARM_UPS = 3


def run(settings: Settings, folder: Path) -> dict[str, Any]:
    """Every case, and the figures of the first network, called by one thread, once more at the top."""
    cases: dict[str, dict[str, Any]] = {}
    absent = {name: NOT_ASKED_FOR for name in CALLS if name not in settings.peers}
    with Progress() as progress:
        for network in _networks(settings, progress):
            calls = {"ours": networks.ours(network)}
            for name in settings.peers:
                progress.say(f"{network.name}: {name}")
                calls[name] = networks.PEERS[name](network, folder)
                _check_same(calls[name](), calls["ours"]())
            for threads in THREADS:
                figures, failed = _measure(network, calls, threads, settings, progress)
                cases[f"{network.name}_threads_{threads}"] = figures
                absent |= failed
            if network.name == "embedding":
                cases["embedding_threads_1"] |= _first_calls(network, folder, settings, progress)
            progress.say("")
    first = next(iter(cases.values()))
    return {
        "benchmark": settings.benchmark,
        "bytes": first["bytes"],
        **{key: value for key, value in first.items() if key.endswith(("_us", "_over_ours")) and key != "samples_us"},
        "cases": cases,
        "absent": absent,
    }


def _networks(settings: Settings, progress: Progress) -> Iterator[Network]:
    for count in settings.parameters:
        progress.say(f"making a network of {count} parameters")
        yield networks.dense(count)
    progress.say("making the embedding")
    yield networks.embedding(settings.bytes)


def _check_same(theirs: Any, ours: Any) -> None:
    """What is compared has to give the same, up to the order in which sums are taken."""
    np.testing.assert_allclose(theirs, ours, rtol=1e-4, atol=1e-5)


def _measure(
    network: Network, calls: Mapping[str, Call], threads: int, settings: Settings, progress: Progress
) -> tuple[dict[str, Any], dict[str, str]]:
    """The figures of one case, and who failed in it."""
    counts = {name: _count(call) for name, call in calls.items()}
    with ThreadPoolExecutor(threads) as pool:
        contestants = [
            Contestant(name=name, run=_repeated(call, counts[name], threads, pool), optional=name != "ours")
            for name, call in calls.items()
        ]
        timings = _timed(contestants, settings, progress)
    samples = {name: [taken * 1000 / counts[name] for taken in found] for name, found in timings.samples.items()}
    medians = {name: statistics.median(found) for name, found in samples.items()}
    figures: dict[str, Any] = {
        "parameters": len(network.captured.variables),
        "bytes": network.size,
        "threads": threads,
        "batch": len(network.given),
    }
    for name in ("ours", *CALLS):
        figures[f"{name}_us"] = medians.get(name)
    for name in CALLS:
        figures[f"{name}_over_ours"] = medians[name] / medians["ours"] if name in medians else None
    return figures | {"samples_us": samples}, timings.absent


def _first_calls(network: Network, folder: Path, settings: Settings, progress: Progress) -> dict[str, Any]:
    """Milliseconds from parameters nobody has called with to the first answer: mapped ones, as a restored version's."""
    captured = network.captured
    names = [spec.name for spec in captured.graph.parameters]
    with Publications(folder / "store", captured) as store:
        for added in (1, 2):
            tensors = (variable.numpy() + np.float32(added) for variable in captured.variables)
            store.publish(dict(zip(names, tensors, strict=True)))
    found = Store(folder / "store")
    versions = [found.open(version) for version in found.versions()]
    nexts = {name: cycle(versions) for name in ("first_call", "handles_first_call")}
    through_handles = networks.handles(network, folder)

    def fresh(name: str) -> list[tf.Tensor]:
        bundle = next(nexts[name])
        return [alias(bundle.array(one)) for one in names]

    def ours() -> object:
        return networks.ours_once(network, fresh("first_call"))

    def theirs() -> object:
        for variable, value in zip(captured.variables, fresh("handles_first_call"), strict=True):
            variable.assign(value)
        return through_handles()

    _check_same(theirs(), ours())
    contestants = [Contestant(name="first_call", run=ours), Contestant(name="handles_first_call", run=theirs)]
    timings = _timed(contestants, settings, progress)
    return {f"{name}_ms": timings.median(name) for name in nexts} | {"samples_ms": dict(timings.samples)}


def _timed(contestants: list[Contestant], settings: Settings, progress: Progress) -> Timings:
    gc.collect()
    gc.freeze()  # thousands of layers, which the collector would look at after every sample
    try:
        return measure(contestants, runs=settings.runs, order=random.Random(0), track=progress.track)
    finally:
        gc.unfreeze()


def _count(call: Call) -> int:
    """How many calls make a sample."""
    for _ in range(_WARM_UPS):
        call()
    started = time.perf_counter()
    call()
    return max(1, int(_SAMPLE_SECONDS / (time.perf_counter() - started)))


def _repeated(call: Call, count: int, threads: int, pool: ThreadPoolExecutor) -> Call:
    """Each of the threads calls so often, one call after the other."""

    def repeat() -> None:
        for _ in range(count):
            call()

    if threads == 1:
        return repeat
    return lambda: [one.result() for one in [pool.submit(repeat) for _ in range(threads)]]
