"""The ways to save a model while it is trained: ours, and the others as their documentation tells their users to."""

from __future__ import annotations

import abc
import contextlib
import importlib
import shutil
import time
from pathlib import Path
from typing import Any

import keras
import tensorflow as tf

from bench.ours import KEEP, WARM_UPS
from bench.training import Saving, Training
from paramsync.publishing.publisher import Publisher
from paramsync.publishing.schedule import Moment, PublishSchedule

_KEPT = 2  # of what a peer has saved


class Ours(Saving):
    """`Publisher.publish_if_due`, into a store whose files are recycled."""

    def __init__(self, training: Training, folder: Path, schedule: PublishSchedule) -> None:
        self._publisher = Publisher(folder, training.model, schedule=schedule, keep=KEEP, on_error="raise")
        for _ in range(WARM_UPS):
            training.step()
            self._publisher.publish(training.steps, wait=True)

    def offer(self, step: int) -> float | None:
        started = time.perf_counter()
        version = self._publisher.publish_if_due(step)
        return None if version is None else time.perf_counter() - started

    def wait(self) -> None:
        self._publisher.flush()

    def close(self) -> None:
        self._publisher.close()


class _Peer(Saving):
    """Saves by the same schedule, each time into a folder of its own, the old ones of which are removed."""

    def __init__(self, training: Training, folder: Path, schedule: PublishSchedule) -> None:
        self.training = training
        self.folder = folder
        self._schedule = schedule
        self._since = Moment(training.steps, time.monotonic())
        self._saved: list[Path] = []
        self._next: Path | None = None

    def tidy(self, step: int) -> None:
        now = time.monotonic()
        if not self._schedule.due(step, now, since=self._since):
            return
        self._since = Moment(step, now)
        self._next = self.folder / str(step)
        self._next.mkdir(parents=True)
        self._saved.append(self._next)
        while len(self._saved) > _KEPT + 1:
            shutil.rmtree(self._saved.pop(0), ignore_errors=True)

    def offer(self, step: int) -> float | None:
        path, self._next = self._next, None
        if path is None:
            return None
        started = time.perf_counter()
        self.save(path)
        return time.perf_counter() - started

    def wait(self) -> None:
        """Most are done when `save` is."""

    def close(self) -> None:
        with contextlib.suppress(Exception):  # one that failed says so again
            self.wait()
        shutil.rmtree(self.folder, ignore_errors=True)

    @abc.abstractmethod
    def save(self, path: Path) -> None:
        """Into this folder, which is new."""


class CheckpointSave(_Peer):
    """`tf.train.Checkpoint.save`."""

    def __init__(self, training: Training, folder: Path, schedule: PublishSchedule) -> None:
        super().__init__(training, folder, schedule)
        variables = tf.Module()  # of a Keras model TensorFlow cannot make the copies that AsyncCheckpoint needs
        variables.parts = training.variables
        self.checkpoint = tf.train.Checkpoint(model=variables)

    def save(self, path: Path) -> None:
        self.checkpoint.save(str(path / "ckpt"))


class AsyncCheckpoint(CheckpointSave):
    """The same, with TensorFlow's asynchronous checkpoints."""

    def save(self, path: Path) -> None:
        options = tf.train.CheckpointOptions(experimental_enable_async_checkpoint=True)
        self.checkpoint.save(str(path / "ckpt"), options)

    def wait(self) -> None:
        self.checkpoint.sync()


class ModelCheckpoint(_Peer):
    """Keras's callback, which writes the weights as HDF5; what `fit` calls it with when a batch ends."""

    def __init__(self, training: Training, folder: Path, schedule: PublishSchedule) -> None:
        super().__init__(training, folder, schedule)
        folder.mkdir(parents=True)
        self._callback = keras.callbacks.ModelCheckpoint(
            str(folder / "model.weights.h5"), save_weights_only=True, save_freq=1
        )
        self._callback.set_model(training.model)
        self._callback.on_train_begin()
        self._callback.on_epoch_begin(0)

    def save(self, path: Path) -> None:
        self._callback.on_train_batch_end(0, {})


class OrbaxAsync(_Peer):
    """Orbax's standard checkpointer, which is asynchronous, with copies of the variables' values."""

    def __init__(self, training: Training, folder: Path, schedule: PublishSchedule) -> None:
        super().__init__(training, folder, schedule)
        module: Any = importlib.import_module("orbax.checkpoint")
        self._checkpointer = module.StandardCheckpointer()

    def save(self, path: Path) -> None:
        tree = {f"part_{at}": one.numpy() for at, one in enumerate(self.training.variables)}
        self._checkpointer.save(path / "tree", tree)

    def wait(self) -> None:
        self._checkpointer.wait_until_finished()

    def close(self) -> None:
        super().close()
        self._checkpointer.close()


PEERS: dict[str, type[_Peer]] = {
    "checkpoint_save": CheckpointSave,
    "async_checkpoint": AsyncCheckpoint,
    "model_checkpoint": ModelCheckpoint,
    "orbax_async": OrbaxAsync,
}
"""As `options.SAVINGS` names them."""
