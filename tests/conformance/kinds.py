"""Every kind of store that can be followed, behind one face: each publishes y = number * x."""

from __future__ import annotations

import shutil
from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any, final

import numpy as np
import tensorflow as tf

from paramsync.graphs.capturing import capture
from paramsync.store.commit import StoreWriter
from paramsync.tensorbundle.index import OBJECT_GRAPH
from paramsync.version import Version

SIZE = 64


class Scaled(tf.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = tf.Variable(tf.zeros([SIZE]), name="weight")

    @tf.function(input_signature=[tf.TensorSpec([None, SIZE], tf.float32, name="x")])
    def __call__(self, x: tf.Tensor) -> dict[str, tf.Tensor]:
        return {"y": x * self.weight}


class Kind(ABC):
    """One store, written to by what writes such stores."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.options: dict[str, Any] = {}
        """What a replica has to be told beside the path."""

    @abstractmethod
    def publish(self, number: int) -> None: ...

    @abstractmethod
    def data_files(self, number: int) -> list[Path]:
        """Those with the values of a version, which are not empty."""

    @abstractmethod
    def remove(self, number: int) -> None:
        """As whoever writes there removes an old version."""

    def damage(self, number: int) -> None:
        """Turn all bits over, in a new file, as a broken copy might leave it; `repair` takes it back."""
        for path in self.data_files(number):
            content = path.read_bytes()
            path.with_name(path.name + "-whole").write_bytes(content)
            _replace(path, bytes(byte ^ 0xFF for byte in content))

    def repair(self, number: int) -> None:
        for path in self.data_files(number):
            whole = path.with_name(path.name + "-whole")
            _replace(path, whole.read_bytes())
            whole.unlink()

    def close(self) -> None:  # noqa: B027, only some have something to close
        """Nothing is published from now on."""


def _replace(path: Path, content: bytes) -> None:
    aside = path.with_name(path.name + "-aside")
    aside.write_bytes(content)
    aside.replace(path)


class _Checkpoints(Kind):
    """Versions of files that begin with a prefix."""

    prefix = "ckpt"

    def data_files(self, number: int) -> list[Path]:
        return sorted(self.path.glob(f"{self.prefix}-{number}.data-*-of-?????"))

    def remove(self, number: int) -> None:
        for path in self.path.glob(f"{self.prefix}-{number}.*"):
            path.unlink()


@final
class Ours(_Checkpoints):
    """Published by us."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self._captured = capture(Scaled())
        self._writer = StoreWriter(path, keep=100)

    def publish(self, number: int) -> None:
        graph = self._captured.graph
        self._writer.add_graph(graph.digest, graph.to_bytes())
        (spec,) = graph.parameters
        values = {
            spec.name: np.full(SIZE, number, np.float32),
            OBJECT_GRAPH: np.array(self._captured.object_graph, object),
        }
        version = Version(
            number=number, step=number, prefix=f"ckpt-{number}", graph=graph.digest, step_done_at=1.0, snapshot_at=1.0
        )
        self._writer.commit(version, values)

    def close(self) -> None:
        self._writer.close()


@final
class Savers(_Checkpoints):
    """By `tf.compat.v1.train.Saver`, the graph beside each checkpoint."""

    prefix = "model"

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        path.mkdir()
        self.options = {"inputs": ["x:0"], "outputs": ["y:0"]}
        with tf.Graph().as_default():
            x = tf.compat.v1.placeholder(tf.float32, [None, SIZE], name="x")
            weight = tf.compat.v1.get_variable("weight", [SIZE])
            tf.multiply(x, weight, name="y")
            self._number = tf.compat.v1.placeholder(tf.float32, [])
            self._assign = weight.assign(tf.fill([SIZE], self._number))
            self._saver = tf.compat.v1.train.Saver(max_to_keep=100)  # None: it lists the last alone
            self._session = tf.compat.v1.Session()

    def publish(self, number: int) -> None:
        self._session.run(self._assign, {self._number: number})
        with self._session.graph.as_default():
            self._saver.save(self._session, str(self.path / self.prefix), global_step=number)

    def close(self) -> None:
        self._session.close()


@final
class Managers(_Checkpoints):
    """By `tf.train.CheckpointManager`, the graph from a file of its own."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self._model = Scaled()
        self.options = {"graph": path.with_name("graph.pb")}
        capture(self._model).graph.save(self.options["graph"])
        self._manager = tf.train.CheckpointManager(tf.train.Checkpoint(model=self._model), str(path), None)

    def publish(self, number: int) -> None:
        self._model.weight.assign(tf.fill([SIZE], float(number)))
        self._manager.save(number)


@final
class SavedModels(Kind):
    """Numbered SavedModels, as TensorFlow Serving follows them."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self._model = Scaled()

    def publish(self, number: int) -> None:
        self._model.weight.assign(tf.fill([SIZE], float(number)))
        aside = self.path.with_name("aside")
        tf.saved_model.save(self._model, str(aside), signatures=self._model.__call__)
        self.path.mkdir(exist_ok=True)
        aside.rename(self.path / str(number))

    def data_files(self, number: int) -> list[Path]:
        return [self.path / str(number) / "variables" / "variables.data-00000-of-00001"]

    def remove(self, number: int) -> None:
        shutil.rmtree(self.path / str(number))


KINDS: tuple[type[Kind], ...] = (Ours, Savers, Managers, SavedModels)
