"""Reads the latest version again and again until told to stop: `python -m tests.hostile.campaigns.read STORE SEED`."""

from __future__ import annotations

import random
import signal
import sys
import threading
from pathlib import Path

from paramsync.errors import UnknownVersionError
from paramsync.store.store import Store
from tests.hostile.campaigns.versions import wrong

LEAST = 10


def main(path: str, seed: str) -> None:
    """Ends on SIGTERM, once LEAST versions were checked, with one line: how many were, and how many were pruned before
    they were open. Wrong bytes end it at once."""
    asked = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: asked.set())
    choose = random.Random(int(seed))
    store = Store(Path(path))
    checked = pruned = 0
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    while not asked.is_set() or checked < LEAST:
        version = store.latest()
        if version is None:
            continue
        try:
            bundle = store.open(version)
        except UnknownVersionError:
            pruned += 1
            continue
        bundle.verify(bundle.entries)
        before = wrong(bundle, version.number)
        asked.wait(choose.choice([0, 0, 0.001, 0.02, 0.1]))  # held that long, while others are published
        after = wrong(bundle, version.number)
        if before or after:
            raise SystemExit(f"version {version.number}: wrong at first {before}, wrong while held {after}")
        checked += 1
        del bundle
    sys.stdout.write(f"{checked} {pruned}\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
