"""`python -m bench restore`: the time from a version in a store to parameters ready for predictions."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

from bench import arrays
from bench.formats import Peers
from bench.model import Publications, Subject, pin
from bench.progress import Progress
from bench.settings import Settings
from bench.timing import Contestant, measure
from paramsync.graphs.capturing import capture
from paramsync.graphs.parameters import alias
from paramsync.publishing.live_variables import LiveVariables
from paramsync.sources.opening import open_source
from paramsync.store.signing import create_keys
from paramsync.store.store import Store

_OBJECT_GRAPH = "_CHECKPOINTABLE_OBJECT_GRAPH"  # an entry of checkpoints that is not a parameter


def run(settings: Settings, folder: Path) -> dict[str, Any]:
    """Restore with ours in three ways: with checksums, as a replica does, and from signed versions. Load with peers."""
    with Progress() as progress:
        progress.say("making the parameters")
        subject = Subject(arrays.random(arrays.shapes(settings.bytes, settings.tensors), seed=0))
        captured = capture(subject.module)
        signing_key, public_key, _ = create_keys(folder / "signs")
        with Publications(folder / "store", captured, signing_key=signing_key) as publications:
            version = publications.publish(pin(LiveVariables(captured)))
        store = Store(folder / "store")
        source = open_source(folder / "store")
        trusted = open_source(folder / "store", trust=[public_key])
        peers = Peers(subject, settings, progress)
        resident = source.restore(version)

        def restore_newest() -> object:
            """Find the newest version, verify it, and make tensors that share its memory."""
            newest = store.latest()
            assert newest is not None
            bundle = store.open(newest)
            names = [name for name in bundle.entries if name != _OBJECT_GRAPH]
            bundle.verify(names)
            return [alias(bundle.array(name)) for name in names]

        def restore_again() -> None:
            """Restore a version that is in memory already, like the serving version. It is not verified again."""
            nonlocal resident
            resident = source.restore(version)

        timings = measure(
            [
                Contestant(name="memcpy", run=arrays.memcpy(subject.module.values)),
                Contestant(name="ours", run=restore_newest),
                Contestant(name="ours_replica", run=restore_again),
                Contestant(name="ours_trusted", run=lambda: trusted.restore(version)),
                *peers.loading(folder),
            ],
            runs=settings.runs,
            order=random.Random(0),
            track=progress.track,
        )
    figures = timings.figures(
        ours_over_memcpy=("ours", "memcpy"), trusted_over_replica=("ours_trusted", "ours_replica")
    )
    return figures | {"absent": peers.absent | timings.absent}
