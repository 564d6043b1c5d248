"""`python -m bench serve`: predictions over gRPC by our server and by grpcio's, compared with a bare grpcio server."""

from __future__ import annotations

import random
import statistics
from pathlib import Path
from typing import Any

import keras
import numpy as np

from bench import h2load
from bench.echo import SERVICE
from bench.h2load import Answers, Target
from bench.model import Publications
from bench.progress import Progress
from bench.served import PREDICT, Served, request
from bench.settings import Settings
from paramsync.graphs.capturing import capture
from paramsync.rpc import tensor_proto

CONCURRENCIES = (1, 8, 64)
BATCHES = (1, 32)
ENDS = ("floor", "ours", "grpcio")  # the bare grpcio server, an inferencer, an inferencer with --grpc-server grpcio


def run(settings: Settings, folder: Path) -> dict[str, Any]:
    """Measure each concurrency with each number of rows.

    The first figures are the rates of our server divided by the rates of the bare grpcio server (`floor`).
    """
    h2load.require()
    model = _network()
    captured = capture(model)
    names = [spec.name for spec in captured.graph.parameters]
    with Publications(folder / "store", captured) as publications:
        values = {name: variable.numpy() for name, variable in zip(names, captured.variables, strict=True)}
        version = publications.publish(values).number
    rows = {batch: np.random.default_rng(0).random((batch, 784), np.float32) for batch in BATCHES}
    requests = {batch: request({"x": array}) for batch, array in rows.items()}
    by_grpcio = Served.inferencer(folder / "store", "--grpc-server", "grpcio")
    with Served.inferencer(folder / "store") as ours, by_grpcio as grpcio, Progress() as progress:
        ours.ask_until(requests[1], version)
        grpcio.ask_until(requests[1], version)
        sizes = {}
        for batch, array in rows.items():
            answer = ours.ask(requests[batch])
            [predicted] = tensor_proto.to_arrays(answer.outputs, "output").values()
            np.testing.assert_allclose(predicted, model(array, training=False).numpy(), rtol=1e-4, atol=1e-5)
            sizes[batch] = answer.ByteSize()
        with Served("bench.echo", [str(size) for size in sizes.values()], log=folder / "echo.log") as floor:
            targets = {
                (batch, name): Target.grpc(address, method, requests[batch], folder / f"{name}-{batch}")
                for batch in BATCHES
                for name, address, method in (
                    ("floor", floor.addresses["predictions"], f"/{SERVICE}/{sizes[batch]}"),
                    ("ours", ours.addresses["predictions"], PREDICT),
                    ("grpcio", grpcio.addresses["predictions"], PREDICT),
                )
            }
            cases = [(batch, concurrency) for batch in BATCHES for concurrency in CONCURRENCIES]
            samples: dict[tuple[int, int], dict[str, list[Answers]]] = {
                case: {name: [] for name in ENDS} for case in cases
            }
            order = random.Random(0)
            for _ in progress.track(range(settings.runs), settings.runs):
                for batch, concurrency in order.sample(cases, len(cases)):
                    for name in order.sample(ENDS, len(ENDS)):
                        answers = h2load.closed(targets[batch, name], concurrency, settings.seconds)
                        samples[batch, concurrency][name].append(answers)
    figures = {
        f"concurrency_{concurrency}_batch_{batch}": _figures(concurrency, batch, rounds)
        for (batch, concurrency), rounds in samples.items()
    }
    return {
        "bytes": sum(value.nbytes for value in values.values()),
        "of_floor_rate_c1": figures["concurrency_1_batch_1"]["of_floor_rate"],
        "of_floor_rate_c64": figures["concurrency_64_batch_1"]["of_floor_rate"],
        "cases": figures,
    }


def _network() -> keras.Model:
    """Return a dense network with layers of 784, 256, 256 and 10 units."""
    tensor = inputs = keras.Input((784,), name="x")
    for _ in range(2):
        tensor = keras.layers.Dense(256, activation="relu")(tensor)
    return keras.Model(inputs, keras.layers.Dense(10)(tensor))


def _figures(concurrency: int, batch: int, samples: dict[str, list[Answers]]) -> dict[str, Any]:
    """Return the medians of the rounds, and quotients of two medians."""
    figures: dict[str, Any] = {"concurrency": concurrency, "batch": batch}
    for name, rounds in samples.items():
        figures[f"{name}_per_second"] = statistics.median(answers.rate for answers in rounds)
        for percent in (50, 99):
            figures[f"{name}_p{percent}_ms"] = statistics.median(answers.percentile(percent) for answers in rounds)
    figures["of_floor_rate"] = figures["ours_per_second"] / figures["floor_per_second"]
    figures["of_grpcio_rate"] = figures["ours_per_second"] / figures["grpcio_per_second"]
    figures["samples_per_second"] = {name: [answers.rate for answers in rounds] for name, rounds in samples.items()}
    return figures
