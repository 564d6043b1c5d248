"""A store for tests: a small model whose parameters are the version's number, so that answers prove their version."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from paramsync.following.follower import Follower
from paramsync.following.replica import Replica
from paramsync.graphs.capturing import Capture, capture
from paramsync.graphs.graph import Graph
from paramsync.store.commit import StoreWriter
from paramsync.store.store import record_file
from paramsync.tensorbundle.index import OBJECT_GRAPH
from paramsync.version import Version

PARAMETERS = 6


class Witness(tf.Module):
    """All values of every parameter are the version's number; every answer has the first element of each parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.parts = [tf.Variable(tf.zeros([64, 32])) for _ in range(PARAMETERS)]

    @tf.function(input_signature=[tf.TensorSpec([None, 2], tf.float32, name="x")])
    def __call__(self, x: tf.Tensor) -> dict[str, tf.Tensor]:
        return {
            "seen": tf.stack([part[0, 0] for part in self.parts]),
            "total": tf.reduce_sum(x, axis=-1) * tf.add_n([part[63, 31] for part in self.parts]),
        }


class Doubled(Witness):
    """The same parameters in another graph."""

    @tf.function(input_signature=[tf.TensorSpec([None, 2], tf.float32, name="x")])
    def __call__(self, x: tf.Tensor) -> dict[str, tf.Tensor]:
        return {"seen": tf.stack([part[0, 0] for part in self.parts]), "doubled": 2.0 * tf.reduce_sum(x, axis=-1)}


class Lookup(Witness):
    """Looks up rows of tables of 64 rows; for any other row, the kernel raises an error."""

    @tf.function(input_signature=[tf.TensorSpec([None], tf.int32, name="rows")])
    def __call__(self, rows: tf.Tensor) -> dict[str, tf.Tensor]:
        return {"seen": tf.stack([tf.gather(part, rows)[0, 0] for part in self.parts])}


GATED_OPS = ("WriteFile", "MatchingFiles")
"""The ops with which Gated does more than compute: a follower has to allow them."""


class Gated(Witness):
    """Writes the file `called` when it is called, and answers once a file `gate` exists; at once without a gate."""

    @tf.function(
        input_signature=[
            tf.TensorSpec([None, 2], tf.float32, name="x"),
            tf.TensorSpec([], tf.string, name="called"),
            tf.TensorSpec([], tf.string, name="gate"),
        ]
    )
    def __call__(self, x: tf.Tensor, called: tf.Tensor, gate: tf.Tensor) -> dict[str, tf.Tensor]:
        with tf.control_dependencies([tf.io.write_file(called, "")]):
            rounds = tf.while_loop(lambda _: tf.size(tf.io.matching_files(gate)) == 0, lambda at: [at + 1], [0])
        with tf.control_dependencies(rounds):
            return {"seen": tf.stack([part[0, 0] for part in self.parts]), "same": tf.identity(x)}


_CAPTURED: dict[str, Capture] = {}


def captured(kind: type[Witness] = Witness) -> Capture:
    """Return the captured graph of a kind, built only once."""
    if kind.__name__ not in _CAPTURED:
        _CAPTURED[kind.__name__] = capture(kind())
    return _CAPTURED[kind.__name__]


def values(number: float, found: Capture) -> dict[str, np.ndarray[Any, Any]]:
    tensors = {
        spec.name: np.full(variable.shape, number, np.float32)
        for spec, variable in zip(found.graph.parameters, found.variables, strict=True)
    }
    return tensors | {OBJECT_GRAPH: np.array(found.object_graph, object)}


def publish_graph(store: Path, graph: Graph, number: int, values: Mapping[str, np.ndarray[Any, Any]]) -> Version:
    """Commit a version of this graph. Its record says that all values were checked."""
    writer = StoreWriter(store)
    writer.add_graph(graph.digest, graph.to_bytes())
    version = Version(
        number=number, step=number, prefix=f"ckpt-{number}", graph=graph.digest, step_done_at=1.0, snapshot_at=1.0
    )
    committed = writer.commit(version, values, finite=True)
    writer.close()
    return committed


class Publisher:
    """The other end of a follower: publishes whole and broken versions into one directory."""

    def __init__(self, path: Path, *, keep: int = 5, signing_key: Path | None = None) -> None:
        self.path = path
        self._writer = StoreWriter(path, keep=keep, signing_key=signing_key)

    def publish(
        self,
        step: int = 0,
        *,
        kind: type[Witness] = Witness,
        tensors: Mapping[str, np.ndarray[Any, Any]] | None = None,
        finite: bool = False,
        serve_after: float | None = None,
    ) -> Version:
        """Publish a version whose parameters are its number, unless `tensors` are given. With `finite`, its record says
        that all values were checked."""
        found = captured(kind)
        self._writer.add_graph(found.graph.digest, found.graph.to_bytes())
        number = self._writer.next_number(step)
        now = time.time()
        version = Version(
            number=number,
            step=step,
            prefix=f"ckpt-{number}",
            graph=found.graph.digest,
            step_done_at=now,
            snapshot_at=now,
        )
        tensors = values(number, found) if tensors is None else tensors
        return self._writer.commit(version, tensors, finite=finite, serve_after=serve_after)

    def publish_believed(self, step: int, tensors: Mapping[str, np.ndarray[Any, Any]]) -> Version:
        """Publish a version whose record says that its values are finite, although they were not checked."""
        version = replace(self.publish(step, tensors=tensors), finite=True)
        record_file(self.path, version.prefix).write_text(version.to_json())
        return version

    def publish_corrupt(self, step: int = 0, *, serve_after: float | None = None) -> Version:
        """Commit a version, then flip a byte of its data. Only for followers that do not look in between."""
        version = self.publish(step, serve_after=serve_after)
        self.flip(version)
        return version

    def publish_bad(self, step: int = 0) -> Version:
        """Publish an undamaged version that must not be served: its values are NaN."""
        return self.publish(step, tensors=values(float("nan"), captured()))

    def flip(self, version: Version) -> None:
        """Replace the data file by a copy with another last byte, as if a disk or a copy were broken."""
        path = self.path / f"{version.prefix}.data-00000-of-00001"
        content = bytearray(path.read_bytes())
        content[-1] ^= 0xFF
        aside = path.with_name(".tmp-flipped")
        aside.write_bytes(content)
        aside.replace(path)

    def overwrite(self, number: int, *, unseen: bool = False) -> bytes:
        """Overwrite the parameters in place: processes that have them mapped see it. `unseen` restores the file's time.

        Returns the original content.
        """
        path = self.path / f"ckpt-{number}.data-00000-of-00001"
        before, content = path.stat(), path.read_bytes()
        rewrite(path, b"\xff" * len(content))
        if unseen:
            os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
        return content

    def fail(self) -> None:
        """Leave the lock as a killed publisher would."""
        self._writer.close(finished=False)

    def close(self) -> None:
        self._writer.close()


def rewrite(path: Path, content: bytes) -> None:
    """Overwrite a file in place, as our publishers never do."""
    with path.open("r+b") as file:
        file.write(content)
        file.truncate()


def follower_of(path: Path, *, model: str = "m", poll_seconds: float = 60.0) -> Follower:
    return Follower(Replica(model, path), poll_seconds=poll_seconds)


def ask(follower: Follower, version: int | None = None) -> tuple[list[float], int]:
    """Return the parameters that answered, and the version that the answer names."""
    outputs, answered = follower.replica.predict({"x": np.ones([1, 2], np.float32)}, version=version)
    return outputs["seen"].numpy().tolist(), answered.number


def proven(seen: list[float], number: int) -> bool:
    """Whether all parameters of an answer belong to the version that the answer names."""
    return seen == [float(number)] * PARAMETERS


def saver_store(path: Path, steps: int, saved: Callable[[int], object] = lambda step: None) -> None:
    """Write a store as a v1 script does: checkpoints by Saver, the graph in .meta files. Calls `saved` after each."""
    path.mkdir(parents=True, exist_ok=True)
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        x = tf.compat.v1.placeholder(tf.float32, [None, 2], name="x")
        w = tf.compat.v1.get_variable("w", [2], initializer=tf.compat.v1.zeros_initializer())
        tf.multiply(x, w, name="y")
        step_now = tf.compat.v1.placeholder(tf.float32, [])
        train = w.assign(tf.fill([2], step_now))
        saver = tf.compat.v1.train.Saver()
        session.run(tf.compat.v1.global_variables_initializer())
        for step in range(1, steps + 1):
            session.run(train, {step_now: step})
            saver.save(session, str(path / "model"), global_step=step)
            saved(step)
