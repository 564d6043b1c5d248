"""`python -m bench restore`: from a version in a store to parameters that predictions can be computed with."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from bench import arrays, figures
from bench.formats import Peers
from bench.model import Subject
from bench.ours import Publications
from bench.progress import Progress
from bench.publish import pinned
from bench.settings import Settings
from bench.timing import Contestant, measure
from paramsync.graphs.capturing import capture
from paramsync.graphs.parameters import alias
from paramsync.publishing.live_variables import LiveVariables
from paramsync.sources.opening import open_source
from paramsync.store.signing import create_keys
from paramsync.store.store import Store

_OBJECT_GRAPH = "_CHECKPOINTABLE_OBJECT_GRAPH"  # what a checkpoint holds beside the parameters


def run(settings: Settings, folder: Path) -> dict[str, Any]:
    """All figures: ours with checksums, with sizes alone (at two sizes), and all that a replica checks."""
    with Progress() as progress:
        progress.say("making the parameters")
        subject = Subject(arrays.random(arrays.shapes(settings.bytes, settings.tensors), seed=0))
        captured = capture(subject.module)
        signing_key, public_key, _ = create_keys(folder / "signs")
        with Publications(folder / "store", captured, signing_key=signing_key) as store:
            version = store.publish(pinned(LiveVariables(captured)))
        source = open_source(folder / "store")
        trusted = open_source(folder / "store", trust=[public_key])
        peers = Peers(subject, settings.peers, by="loads", progress=progress)
        progress.say("making the large version")
        large = _publish_large(folder / "large", settings)
        resident = source.restore(version)

        def restore_again() -> None:
            """What was verified for a version in memory, as the one that serves is, is not verified again."""
            nonlocal resident
            resident = source.restore(version)

        timings = measure(
            [
                Contestant(name="memcpy", run=arrays.memcpy(subject.module.values)),
                Contestant(name="ours", run=_restoring(folder / "store", checksums=True)),
                Contestant(name="ours_sizes", run=_restoring(folder / "store", checksums=False)),
                Contestant(name="ours_sizes_large", run=_restoring(folder / "large", checksums=False)),
                Contestant(name="ours_replica", run=restore_again),
                Contestant(name="ours_trusted", run=lambda: trusted.restore(version)),
                *peers.loading(folder),
            ],
            runs=settings.runs,
            order=random.Random(0),
            track=progress.track,
        )
    found = figures.collect(
        settings,
        size=arrays.size(subject.module.values()),
        timings=timings,
        names=("ours", "ours_sizes", "ours_sizes_large", "ours_replica", "ours_trusted"),
        peers=peers.names,
        absent=peers.absent,
        quotients={
            "ours_over_memcpy": ("ours", "memcpy"),
            "checkpoint_read_over_sizes": ("checkpoint_read", "ours_sizes"),
            "sizes_large_over_sizes": ("ours_sizes_large", "ours_sizes"),
            "trusted_over_replica": ("ours_trusted", "ours_replica"),
        },
    )
    return found | {"large_bytes": large}


def _restoring(path: Path, *, checksums: bool) -> Callable[[], object]:
    """From looking for the newest version to tensors that share its memory."""
    store = Store(path)

    def restore() -> object:
        version = store.latest()
        assert version is not None
        bundle = store.open(version)
        names = [name for name in bundle.entries if name != _OBJECT_GRAPH]
        if checksums:
            bundle.verify(names)
        return [alias(bundle.array(name)) for name in names]

    return restore


def _publish_large(path: Path, settings: Settings) -> int:
    """A version of another size in as many tensors, which takes no such memory to make; returns its bytes."""
    shapes = arrays.shapes(settings.large_bytes, settings.tensors)
    one = np.ones(shapes[0], np.float32)
    with Publications(path) as store:
        return store.publish({f"part_{at}": one for at in range(len(shapes))}).bytes
