"""`python -m bench exported`: one Keras model as a SavedModel and as we publish it, asked by 64 callers, by turns."""

from __future__ import annotations

import random
import statistics
from pathlib import Path
from typing import Any

import numpy as np

from bench import networks
from bench.callers import Seen, Task, callers
from bench.ours import Publications
from bench.progress import Progress
from bench.served import PREDICT, Served, request
from bench.settings import Settings
from paramsync.rpc import tensor_proto

CONCURRENCY = 64

_PARAMETERS = 6  # 784-256-256-10
_PROCESSES = 2  # of callers: one alone is slower than a server
_WARM_UP_SECONDS = 1.0


def run(settings: Settings, folder: Path) -> dict[str, Any]:
    """Answers a second of each, and of how many of the published one's the exported one gives."""
    network = networks.dense(_PARAMETERS)
    names = [spec.name for spec in network.captured.graph.parameters]
    with Publications(folder / "published", network.captured) as store:
        store.publish({name: one.numpy() for name, one in zip(names, network.captured.variables, strict=True)})
    network.model.export(folder / "exported" / "1", verbose=False)
    [inputs] = network.captured.graph.signatures["serving_default"].inputs
    file = folder / "request"
    file.write_bytes(request({inputs: network.given[:1]}))
    expected = network.model(network.given[:1], training=False).numpy()
    rounds: dict[str, list[Seen]] = {"published": [], "exported": []}
    with (
        Served.inferencer(folder / "published") as published,
        Served.inferencer(folder / "exported") as exported,
        callers(_PROCESSES) as calling,
        Progress() as progress,
    ):
        servers = {"published": published, "exported": exported}
        for server in servers.values():
            server.ask_until(file.read_bytes(), 0)
            [found] = tensor_proto.to_arrays(server.ask(file.read_bytes()).outputs, "output").values()
            np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)
        order = random.Random(0)
        for number in progress.track(range(settings.runs), settings.runs):
            for name in order.sample(sorted(servers), len(servers)):
                task = (servers[name].addresses["predictions"], PREDICT, str(file), CONCURRENCY)
                if not number:
                    calling.call(Task(*task, seconds=_WARM_UP_SECONDS))
                rounds[name].append(calling.call(Task(*task, seconds=settings.seconds)))
    rates = {name: statistics.median(one.rate for one in seen) for name, seen in rounds.items()}
    return {
        "benchmark": settings.benchmark,
        "bytes": network.size,
        "concurrency": CONCURRENCY,
        **{f"{name}_per_second": rate for name, rate in rates.items()},
        **{f"{name}_p50_us": statistics.median(one.percentile(50) for one in seen) for name, seen in rounds.items()},
        "exported_of_published": rates["exported"] / rates["published"],
        "samples_per_second": {name: [one.rate for one in seen] for name, seen in rounds.items()},
        "absent": {},
    }
