"""A store in memory whose versions are read whole by every answer, and a follower's steps with it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import tensorflow as tf

from paramsync.following.replica import Replica
from paramsync.graphs.capturing import Capture, capture
from paramsync.store.commit import StoreWriter
from paramsync.version import Version

SIZE = 8 << 20  # bytes of the parameters
FIRST = 5  # after this many versions, of which two are kept, files are recycled


class Wide(tf.Module):
    """Every answer reads all parameters. All their values are the version's number."""

    def __init__(self) -> None:
        super().__init__()
        self.all = tf.Variable(tf.zeros([SIZE // 4096, 1024]))

    @tf.function(input_signature=[tf.TensorSpec([], tf.float32, name="x")])
    def __call__(self, x: tf.Tensor) -> dict[str, tf.Tensor]:
        return {"lowest": x + tf.reduce_min(self.all), "highest": x + tf.reduce_max(self.all)}


class Halves(Wide):
    """Half of the parameters never change."""

    def __init__(self) -> None:
        super().__init__()
        self.frozen = tf.Variable(tf.zeros([SIZE // 4096, 1024]))

    @tf.function(input_signature=[tf.TensorSpec([], tf.float32, name="x")])
    def __call__(self, x: tf.Tensor) -> dict[str, tf.Tensor]:
        zero = x + tf.reduce_max(tf.abs(self.frozen))
        return {"lowest": zero + tf.reduce_min(self.all), "highest": zero + tf.reduce_max(self.all)}


_CAPTURED: dict[str, Capture] = {}


class Store:
    """A publisher that keeps two versions, as one store in memory."""

    def __init__(self, path: Path, kind: type[Wide] = Wide) -> None:
        self.path = path
        self._writer = StoreWriter(path, keep=2)
        self.turn_into(kind)

    def turn_into(self, kind: type[Wide]) -> None:
        """Publish this kind of module from now on."""
        if kind.__name__ not in _CAPTURED:
            _CAPTURED[kind.__name__] = capture(kind())
        self._captured = captured = _CAPTURED[kind.__name__]
        self._writer.add_graph(captured.graph.digest, captured.graph.to_bytes())

    def publish(self, number: int, *, rows: int = SIZE // 4096) -> Version:
        names = [one.name for one in self._captured.graph.parameters]
        version = Version(
            number=number,
            step=number,
            prefix=f"ckpt-{number}",
            graph=self._captured.graph.digest,
            step_done_at=1.0,
            snapshot_at=1.0,
        )
        values = {name: 0 if name.startswith("frozen") else number for name in names}
        tensors = {name: np.full([rows, 1024], value, np.float32) for name, value in values.items()}
        return self._writer.commit(version, tensors, finite=True)

    def data(self, number: int, shard: int = 0, shards: int = 1) -> Path:
        return self.path / f"ckpt-{number}.data-{shard:05d}-of-{shards:05d}"

    @property
    def spares(self) -> list[Path]:
        return sorted(self.path.glob(".spare-*"))

    def close(self) -> None:
        self._writer.close()


def follow(replica: Replica, version: Version) -> None:
    """Restore a new version and swap to it, as a follower does."""
    replica.swap(replica.restore(version))
    replica.tend()


def begin(store: Store, replica: Replica) -> int:
    """Publish and follow versions until files are recycled; returns the last version's number."""
    for number in range(1, FIRST + 1):
        follow(replica, store.publish(number))
    return FIRST


def answers(replica: Replica, number: int, x: float = 0.0) -> bool:
    outputs, version = replica.predict({"x": np.float32(x)}, version=number)
    return version.number == number and (outputs["lowest"], outputs["highest"]) == (number + x, number + x)


def places(path: Path) -> set[str]:
    """The addresses where this process has mapped a file as readers do, whatever the file's name is now."""
    inode = str(path.stat().st_ino)
    lines = [line.split(maxsplit=5) for line in Path("/proc/self/maps").read_text().splitlines()]
    return {line[0] for line in lines if line[4] == inode and line[1].endswith("p")}


def frozen(store: Store, number: int) -> Path:
    """The file of the parameters that never change, in a version of Halves that shares this file."""
    return store.data(number, 0, 2)
