"""`python -m bench memory`: what a server's memory does while versions are swapped in, and what a second one takes."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import numpy as np

from bench import arrays
from bench.model import Model
from bench.ours import Publications
from bench.progress import Progress
from bench.served import Served, request
from bench.settings import Settings
from paramsync.graphs.capturing import capture

_FIRST = 10  # swaps after which it should not grow any more
_TAIL = 50
_REQUEST = request({"x": np.ones(1, np.float32)})


def run(settings: Settings, folder: Path) -> dict[str, Any]:
    """Every version is published, swapped in and answered from before the next one."""
    values = arrays.random(arrays.shapes(settings.bytes, settings.tensors), seed=0)
    size = arrays.size(values)
    resident: list[int] = []
    with Progress() as progress:
        progress.say("starting a server of parameters that take no room")
        own = _own(folder / "small", settings.tensors)
        progress.say("starting a server")
        captured = capture(Model(values))
        tensors = dict(zip((one.name for one in captured.graph.parameters), values, strict=True))
        with Publications(folder / "store", captured) as store, Served.inferencer(folder / "store") as served:
            began = time.monotonic()
            for at in progress.track(range(settings.swaps), settings.swaps):
                for value in values:  # else versions have files in common, which are mapped once
                    value[0, 0] = at
                served.ask_until(_REQUEST, store.publish(tensors, finite=True).number)
                resident.append(_taken(served))
            seconds = time.monotonic() - began
            progress.say("starting a second server")
            alone = _with_files(*served.family)
            with Served.inferencer(folder / "store") as second:
                second.ask_until(_REQUEST, 0)
                extra = _with_files(*served.family, *second.family) - alone
                anonymous = _anonymous(second) - own["anonymous"]
    # The most, for one is looked at now before and now after the pages of the version before were let go.
    peak = max(resident)
    early = max(resident[_FIRST : _FIRST + _TAIL] or resident)
    late = max(resident[-_TAIL:])
    return {
        "benchmark": settings.benchmark,
        "bytes": size,
        "swaps": settings.swaps,
        "swaps_per_second": settings.swaps / seconds,
        "growth_pct": (late - early) / early * 100,
        "peak_over_model": (peak - own["peak"]) / size,
        "second_pct": (max(0, extra) + max(0, anonymous)) / size * 100,
        "own_mb": own["peak"] / 1e6,
        "resident_mb": {"early": early / 1e6, "late": late / 1e6, "peak": peak / 1e6},
        "absent": {},
        "samples_mb": [one / 1e6 for one in resident],
    }


def _own(folder: Path, tensors: int) -> dict[str, int]:
    """Bytes that a server takes for itself and TensorFlow, whatever the size of its model: at most, and anonymous."""
    captured = capture(Model([np.ones((1, 1), np.float32)] * tensors))
    with Publications(folder, captured) as store, Served.inferencer(folder) as served:
        taken = 0
        for _ in range(_FIRST):
            version = store.publish({one.name: np.ones((1, 1), np.float32) for one in captured.graph.parameters})
            served.ask_until(_REQUEST, version.number)
            taken = max(taken, _taken(served))
        return {"peak": taken, "anonymous": _anonymous(served)}


def _with_files(*pids: int) -> int:
    """Bytes of files that these processes and this one, which publishes, have in memory, each page counted once.

    This one has libraries and data files in common with them: of what it has, they would seem to take more together.
    """
    found = [_rollup(pid) for pid in (os.getpid(), *pids)]
    return sum(one.get("Pss_Shmem", 0) + one.get("Pss_File", 0) for one in found)


def _taken(served: Served) -> int:
    """Bytes of memory that its processes have, each page counted once."""
    return sum(_rollup(pid).get("Pss", 0) for pid in served.family)


def _anonymous(served: Served) -> int:
    return sum(_rollup(pid).get("Pss_Anon", 0) for pid in served.family)


def _rollup(pid: int) -> dict[str, int]:
    """Bytes by what the kernel calls them: pages that are shared count in Rss whole, in Pss by their share."""
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:]
    except OSError:  # it has ended
        return {}
    return {name: int(rest.split()[0]) * 1024 for name, _, rest in (line.partition(":") for line in lines)}
