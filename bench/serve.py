"""`python -m bench serve`: predictions over gRPC beside gRPC that answers at once, at several concurrencies."""

from __future__ import annotations

import random
import statistics
from pathlib import Path
from typing import Any

import numpy as np

from bench import networks
from bench.callers import Seen, Task, callers
from bench.echo import SERVICE
from bench.ours import Publications
from bench.progress import Progress
from bench.served import PREDICT, Served, request
from bench.settings import Settings
from paramsync.rpc import tensor_proto
from paramsync.v1 import serving_pb2

CONCURRENCIES = (1, 8, 64)
BATCHES = (1, 32)

_PARAMETERS = 6  # 784-256-256-10
_PROCESSES = 2  # of callers: one alone is slower than a server
_INPUT = "x"
_WARM_UP_SECONDS = 0.3


def run(settings: Settings, folder: Path) -> dict[str, Any]:
    """Every case, and once more at the top what one caller, and 64, get of what gRPC itself gives them."""
    network = networks.dense(_PARAMETERS)
    names = [spec.name for spec in network.captured.graph.parameters]
    with Publications(folder / "store", network.captured) as store:
        values = {name: one.numpy() for name, one in zip(names, network.captured.variables, strict=True)}
        version = store.publish(values).number
    inputs = {batch: np.random.default_rng(0).random((batch, 784), np.float32) for batch in BATCHES}
    files = {batch: folder / f"request-{batch}" for batch in BATCHES}
    for batch, given in inputs.items():
        files[batch].write_bytes(request({_INPUT: given}))
    with Served.inferencer(folder / "store") as ours, Progress() as progress:
        ours.ask_until(files[1].read_bytes(), version)
        sizes = {}
        for batch, given in inputs.items():
            answer = ours.ask(files[batch].read_bytes())
            _check(answer, network.model(given, training=False).numpy())
            sizes[batch] = answer.ByteSize()
        echo = Served("bench.echo", [str(one) for one in sizes.values()], log=folder / "echo.log")
        with echo as floor, callers(_PROCESSES) as calling:
            cases = [(batch, concurrency) for batch in BATCHES for concurrency in CONCURRENCIES]
            samples: dict[tuple[int, int], dict[str, list[Seen]]] = {one: {"floor": [], "ours": []} for one in cases}
            order = random.Random(0)
            for number in progress.track(range(settings.runs), settings.runs):
                for batch, concurrency in order.sample(cases, len(cases)):
                    ends = {
                        "floor": (floor.addresses["predictions"], f"/{SERVICE}/{sizes[batch]}"),
                        "ours": (ours.addresses["predictions"], PREDICT),
                    }
                    for name in order.sample(sorted(ends), len(ends)):
                        task = (*ends[name], str(files[batch]), concurrency)
                        if not number:
                            calling.call(Task(*task, seconds=_WARM_UP_SECONDS))
                        samples[batch, concurrency][name].append(calling.call(Task(*task, seconds=settings.seconds)))
    found = {
        f"concurrency_{many}_batch_{batch}": _figures(many, batch, seen) for (batch, many), seen in samples.items()
    }
    return {
        "benchmark": settings.benchmark,
        "bytes": network.size,
        "over_floor_c1": found["concurrency_1_batch_1"]["over_floor"],
        "of_floor_rate_c64": found["concurrency_64_batch_1"]["of_floor_rate"],
        "cases": found,
        "absent": {},
    }


def _figures(concurrency: int, batch: int, seen: dict[str, list[Seen]]) -> dict[str, Any]:
    """Medians of the rounds; the quotients are those of two medians."""
    figures: dict[str, Any] = {"concurrency": concurrency, "batch": batch}
    for name, rounds in seen.items():
        figures[f"{name}_per_second"] = statistics.median(one.rate for one in rounds)
        for percent in (50, 99):
            figures[f"{name}_p{percent}_us"] = statistics.median(one.percentile(percent) for one in rounds)
    figures["over_floor"] = figures["ours_p50_us"] / figures["floor_p50_us"]
    figures["of_floor_rate"] = figures["ours_per_second"] / figures["floor_per_second"]
    figures["samples_per_second"] = {name: [one.rate for one in rounds] for name, rounds in seen.items()}
    figures["samples_p50_us"] = {name: [one.percentile(50) for one in rounds] for name, rounds in seen.items()}
    return figures


def _check(answer: serving_pb2.PredictResponse, expected: Any) -> None:
    [found] = tensor_proto.to_arrays(answer.outputs, "output").values()
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)
