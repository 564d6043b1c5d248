"""`python -m bench publish`: from the variables of a trainer to a version that others can see."""

from __future__ import annotations

import random
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from bench import arrays, figures
from bench.formats import Peers
from bench.model import Subject
from bench.ours import WARM_UPS, Publications
from bench.progress import Progress
from bench.settings import Settings
from bench.timing import Contestant, measure
from paramsync.graphs.capturing import Capture, capture
from paramsync.publishing.live_variables import LiveVariables
from paramsync.store.signing import create_keys


def run(settings: Settings, folder: Path) -> dict[str, Any]:
    """All figures. Ours are measured in stores whose files are recycled, and in one that is new each time."""
    with Progress() as progress:
        progress.say("making the parameters")
        subject = Subject(arrays.random(arrays.shapes(settings.bytes, settings.tensors), seed=0))
        captured = capture(subject.module)
        peers = Peers(subject, settings.peers, by="saves", progress=progress)
        live = LiveVariables(captured)
        steady, looked = Publications(folder / "steady", captured), Publications(folder / "looked", captured)
        signing_key, _, _ = create_keys(folder / "signs")
        signed = Publications(folder / "signed", captured, signing_key=signing_key)
        fresh = _Fresh(folder / "fresh", captured, live)
        timings = measure(
            [
                Contestant(name="memcpy", run=arrays.memcpy(subject.module.values)),
                Contestant(name="ours", run=lambda: steady.publish(pinned(live)), warm_ups=WARM_UPS),
                Contestant(
                    name="ours_finite",
                    run=lambda: looked.publish(pinned(live), finite=True),
                    warm_ups=WARM_UPS,
                ),
                Contestant(
                    name="ours_signed",
                    run=lambda: signed.publish(pinned(live), finite=True),
                    warm_ups=WARM_UPS,
                ),
                Contestant(name="ours_fresh", prepare=fresh.make, run=fresh.publish, clear=fresh.remove),
                *peers.saving(folder),
            ],
            runs=settings.runs,
            between=peers.train,
            order=random.Random(0),
            track=progress.track,
        )
        steady.close()
        looked.close()
        signed.close()
    return figures.collect(
        settings,
        size=arrays.size(subject.module.values()),
        timings=timings,
        names=("ours", "ours_finite", "ours_signed", "ours_fresh"),
        peers=peers.names,
        absent=peers.absent,
        quotients={
            "ours_over_memcpy": ("ours", "memcpy"),
            "ours_finite_over_ours": ("ours_finite", "ours"),
            "ours_signed_over_finite": ("ours_signed", "ours_finite"),
            "checkpoint_write_over_fresh": ("checkpoint_write", "ours_fresh"),
        },
    )


def pinned(live: LiveVariables) -> Mapping[str, arrays.Array]:
    """The values of this step, as the trainer's publisher hands them to the store."""
    return {name: np.asarray(value) for name, value in live.pin().items()}


class _Fresh:
    """A store whose first version is published: none of its files can be recycled."""

    def __init__(self, path: Path, captured: Capture, live: LiveVariables) -> None:
        self._path = path
        self._captured = captured
        self._live = live
        self._store: Publications | None = None

    def make(self) -> None:
        self._store = Publications(self._path, self._captured)

    def publish(self) -> object:
        assert self._store is not None
        return self._store.publish(pinned(self._live))

    def remove(self) -> None:
        if self._store is not None:
            self._store.close()
        shutil.rmtree(self._path)
