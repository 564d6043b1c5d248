"""`python -m bench publish`: the time from a trainer's variables to a visible version."""

from __future__ import annotations

import random
import shutil
from pathlib import Path
from typing import Any

from bench import arrays
from bench.formats import Peers
from bench.model import WARM_UPS, Publications, Subject, pin
from bench.progress import Progress
from bench.settings import Settings
from bench.timing import Contestant, measure
from paramsync.graphs.capturing import Capture, capture
from paramsync.publishing.live_variables import LiveVariables
from paramsync.store.signing import create_keys


def run(settings: Settings, folder: Path) -> dict[str, Any]:
    """Publish with ours into stores whose files are recycled, and into a new store each time; save with the peers."""
    with Progress() as progress:
        progress.say("making the parameters")
        subject = Subject(arrays.random(arrays.shapes(settings.bytes, settings.tensors), seed=0))
        captured = capture(subject.module)
        peers = Peers(subject, settings, progress)
        live = LiveVariables(captured)
        signing_key, _, _ = create_keys(folder / "signs")
        with (
            Publications(folder / "steady", captured) as steady,
            Publications(folder / "finite", captured) as finite,
            Publications(folder / "signed", captured, signing_key=signing_key) as signed,
        ):
            fresh = _Fresh(folder / "fresh", captured, live)
            timings = measure(
                [
                    Contestant(name="memcpy", run=arrays.memcpy(subject.module.values)),
                    Contestant(name="ours", run=lambda: steady.publish(pin(live)), warm_ups=WARM_UPS),
                    Contestant(
                        name="ours_finite", run=lambda: finite.publish(pin(live), finite=True), warm_ups=WARM_UPS
                    ),
                    Contestant(
                        name="ours_signed", run=lambda: signed.publish(pin(live), finite=True), warm_ups=WARM_UPS
                    ),
                    Contestant(name="ours_fresh", prepare=fresh.make, run=fresh.publish, clear=fresh.remove),
                    *peers.saving(folder),
                ],
                runs=settings.runs,
                between=peers.train,
                order=random.Random(0),
                track=progress.track,
            )
    figures = timings.figures(
        ours_over_memcpy=("ours", "memcpy"),
        ours_signed_over_finite=("ours_signed", "ours_finite"),
        checkpoint_over_fresh=("checkpoint", "ours_fresh"),
    )
    return figures | {"absent": peers.absent | timings.absent}


class _Fresh:
    """A new store for each round. Its first version is published, so no file can be recycled."""

    def __init__(self, path: Path, captured: Capture, live: LiveVariables) -> None:
        self._path = path
        self._captured = captured
        self._live = live

    def make(self) -> None:
        self._store = Publications(self._path, self._captured)

    def publish(self) -> object:
        return self._store.publish(pin(self._live))

    def remove(self) -> None:
        self._store.close()
        shutil.rmtree(self._path)
