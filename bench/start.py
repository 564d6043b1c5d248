"""`python -m bench start`: from the start of a server's process to its first answer, beside importing TensorFlow."""

from __future__ import annotations

import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np

from bench import arrays
from bench.model import Model
from bench.ours import Publications
from bench.progress import Progress
from bench.served import Served, request
from bench.settings import Settings
from bench.timing import Contestant, measure
from paramsync.graphs.capturing import capture

_IMPORT = "import os, tensorflow; os._exit(0)"  # without what the end of a process takes
_REQUEST = request({"x": np.ones(1, np.float32)})


def run(settings: Settings, folder: Path) -> dict[str, Any]:
    """By turns: a process that imports TensorFlow, and a server that is asked until it answers from a version."""
    values = arrays.random(arrays.shapes(settings.bytes, settings.tensors), seed=0)
    captured = capture(Model(values))
    names = [one.name for one in captured.graph.parameters]
    with Progress() as progress, Publications(folder / "store", captured) as store:
        first = _First(folder / "store", store.publish(dict(zip(names, values, strict=True))).number)
        timings = measure(
            [
                Contestant(name="import_tensorflow", run=_import_tensorflow),
                Contestant(name="first_answer", run=first.answer, clear=first.end),
            ],
            runs=settings.runs,
            order=random.Random(0),
            track=progress.track,
        )
    imported, answered = (timings.median(name) or 0.0 for name in ("import_tensorflow", "first_answer"))
    return {
        "benchmark": settings.benchmark,
        "bytes": arrays.size(values),
        "import_tensorflow_ms": imported,
        "first_answer_ms": answered,
        "beyond_import_ms": answered - imported,
        "samples_ms": dict(timings.samples),
        "absent": timings.absent,
    }


def _import_tensorflow() -> None:
    subprocess.run([sys.executable, "-c", _IMPORT], check=True, stderr=subprocess.DEVNULL)


class _First:
    """A server that is started, asked and ended."""

    def __init__(self, store: Path, version: int) -> None:
        self._store = store
        self._version = version
        self._served: Served | None = None

    def answer(self) -> None:
        self._served = Served.inferencer(self._store)
        self._served.ask_until(_REQUEST, self._version)

    def end(self) -> None:
        if self._served is not None:
            self._served.close()
            self._served = None
