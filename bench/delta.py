"""`python -m bench delta`: a version most of whose parameters are frozen, against one that is all new."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np

from bench import arrays, figures
from bench.ours import WARM_UPS, Publications
from bench.progress import Progress
from bench.settings import Settings
from bench.timing import Contestant, measure

FROZEN = 0.95  # of all bytes


def run(settings: Settings, folder: Path) -> dict[str, Any]:
    """All figures: told which parameters are unchanged, left to find out, and with everything changed."""
    with Progress() as progress:
        progress.say("making the parameters")
        frozen, trained = _parameters(settings)
        parameters = frozen | trained
        others = dict(zip(parameters, (one.copy() for one in parameters.values()), strict=True))  # these change, all
        told, compared, full = (Publications(folder / name) for name in ("told", "compared", "full"))
        written: dict[str, float] = {}

        def publish_told() -> None:
            version = told.publish(parameters, unchanged=frozen)
            written["bytes_written_ratio"] = version.bytes_written / version.bytes

        def publish_compared() -> None:
            version = compared.publish(parameters)
            written["compared_bytes_written_ratio"] = version.bytes_written / version.bytes

        def train() -> None:
            for one in (*trained.values(), *others.values()):
                np.add(one, 1e-3, out=one)

        with told, compared, full:
            timings = measure(
                [
                    Contestant(name="memcpy", run=arrays.memcpy(lambda: list(parameters.values()))),
                    Contestant(name="full", run=lambda: full.publish(others), warm_ups=WARM_UPS),
                    Contestant(name="ours", run=publish_told, warm_ups=WARM_UPS),
                    Contestant(name="compared", run=publish_compared, warm_ups=WARM_UPS),
                ],
                runs=settings.runs,
                between=train,
                order=random.Random(0),
                track=progress.track,
            )
    found = figures.collect(
        settings,
        size=arrays.size(parameters.values()),
        timings=timings,
        names=("full", "ours", "compared"),
        absent={},
        quotients={
            "ours_over_memcpy": ("ours", "memcpy"),
            "full_over_ours": ("full", "ours"),
            "full_over_compared": ("full", "compared"),
        },
    )
    return found | {"frozen_bytes": arrays.size(frozen.values())} | written


def _parameters(settings: Settings) -> tuple[dict[str, arrays.Array], dict[str, arrays.Array]]:
    """Frozen and trained ones: as the bytes are divided, so are the tensors, as far as whole ones go."""
    count = min(settings.tensors - 1, max(1, round(settings.tensors * (1 - FROZEN))))
    sizes = round(settings.bytes * FROZEN), round(settings.bytes * (1 - FROZEN))
    parts = arrays.shapes(sizes[0], settings.tensors - count), arrays.shapes(sizes[1], count)
    values = [arrays.random(one, seed=seed) for seed, one in enumerate(parts)]
    return (
        {f"base/part_{at}": one for at, one in enumerate(values[0])},
        {f"head/part_{at}": one for at, one in enumerate(values[1])},
    )
