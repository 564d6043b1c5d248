"""A store, its bucket in the memory of obstore, and a store that follows the bucket."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from obstore.store import MemoryStore

from paramsync.remote import state
from paramsync.remote.bucket import Bucket
from paramsync.remote.download import Download
from paramsync.remote.protocol import Found
from paramsync.remote.state import State
from paramsync.remote.upload import Upload
from paramsync.store.commit import StoreWriter
from paramsync.store.store import Store
from paramsync.version import Version

SIZE = 100_000


class Pair:
    """A store, its bucket, and a store that follows the bucket."""

    def __init__(self, folder: Path, objects: Any = None, *, size: int = SIZE) -> None:
        """`objects` is an object store, by default one in memory. `size` is the number of elements of the kernel."""
        self.folder, self.size = folder, size
        self.objects = MemoryStore() if objects is None else objects
        self.bucket = Bucket("s3://bucket/models/m", store=self.objects)
        self.stop = threading.Event()
        self.source, self.target = Store(folder / "source"), Store(folder / "target")
        self.writer = StoreWriter(self.source.path, keep=3)
        self.tensors: dict[str, Any] = {
            "dense/kernel": np.random.default_rng(0).standard_normal(size, np.float32),
            "dense/bias": np.zeros(10, np.float32),
            "words": np.array([b"one", b""], object),
            "step": np.int64(0),
            "flag": np.array([True, False]),
            "phase": np.array([1 + 2j], np.complex128),
        }
        self.upload = self.publisher()
        self.download = self.follower("target")

    def publisher(self, bucket: Bucket | None = None, clock: Callable[[], float] = time.monotonic) -> Upload:
        return Upload(self.source, bucket or self.bucket, keep=3, stop=self.stop, clock=clock)

    def follower(self, name: str) -> Download:
        return Download(self.bucket, self.folder / name, keep=3, stop=self.stop)

    def publish(self, step: int, changed: int = 100, *, graph: str = "", serve_after: float | None = None) -> Version:
        """Publish a version in which `changed` elements of the kernel differ from the previous version."""
        kernel = self.tensors["dense/kernel"].copy()
        kernel[np.random.default_rng(step).choice(self.size, changed, replace=False)] += 1e-3
        self.tensors = {**self.tensors, "dense/kernel": kernel, "step": np.int64(step)}
        now = time.time()
        version = Version(
            number=step, step=step, prefix="", graph=graph, step_done_at=now, snapshot_at=now, metrics={"loss": 0.5}
        )
        return self.writer.commit(version, self.tensors, serve_after=serve_after)

    def close(self) -> None:
        self.download.close()
        self.writer.close()

    def names(self) -> set[str]:
        return set(self.bucket.objects())

    def name(self, kind: str, name: str) -> str:
        """Return the name of an object of the first publisher."""
        return f"{kind}/1/{current_state(self).run[:8]}-{name}"


def same(first: Store, second: Store) -> None:
    """Fail unless both stores have the same newest version, with the same record and bytes."""
    version = first.latest()
    assert version is not None
    assert second.latest() == version
    old, new = first.open(version), second.open(version)
    new.verify(new.entries)
    for name in old.entries:
        assert np.asarray(old.array(name)).tolist() == np.asarray(new.array(name)).tolist(), name


def current_state(pair: Pair) -> State:
    found = pair.bucket.read()
    assert isinstance(found, Found)
    return state.from_json(found.content)
