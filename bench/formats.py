"""The peers: other ways to save and load the same parameters, each used as its documentation recommends."""

from __future__ import annotations

import abc
import importlib
import shutil
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import tensorflow as tf

from bench.model import STEP, Subject
from bench.progress import Progress
from bench.settings import Settings
from bench.timing import Contestant


class Peer(abc.ABC):
    """One way to save and load. `path` is a folder for a single save, and empty before that save.

    `load` returns once predictions can be computed from the loaded values, in old or in new variables.
    """

    needs: ClassVar[str | None] = None  # a module that the peer imports, and that may not be installed

    def __init__(self, subject: Subject) -> None:
        self.subject = subject
        self.model = subject.module

    def train(self) -> None:  # noqa: B027, most peers save the subject's values
        """Change the peer's own values, if it has any."""

    @abc.abstractmethod
    def save(self, path: Path) -> object: ...

    @abc.abstractmethod
    def load(self, path: Path) -> object: ...


class Checkpoint(Peer):
    """`tf.train.Checkpoint`."""

    def __init__(self, subject: Subject) -> None:
        super().__init__(subject)
        self._checkpoint = tf.train.Checkpoint(model=self.model)

    def save(self, path: Path) -> object:
        return self._checkpoint.write(str(path / "ckpt"))

    def load(self, path: Path) -> object:
        return self._checkpoint.read(str(path / "ckpt")).assert_consumed()


class Saver(Peer):
    """`tf.compat.v1.train.Saver` in a session that stays open."""

    def __init__(self, subject: Subject) -> None:
        super().__init__(subject)
        v1 = tf.compat.v1
        self._graph = tf.Graph()
        with self._graph.as_default():
            shapes = [part.shape for part in self.model.parts]
            variables = [v1.get_variable(f"part_{at}", shape) for at, shape in enumerate(shapes)]
            initial = [v1.placeholder(tf.float32, shape) for shape in shapes]
            assigns = [variable.assign(value) for variable, value in zip(variables, initial, strict=True)]
            trained = variables[self.subject.frozen :]
            self._train = tf.group(*(variable.assign_add(tf.fill(variable.shape, STEP)) for variable in trained))
            self._saver = v1.train.Saver(max_to_keep=2)
        self._session = v1.Session(graph=self._graph)
        for assign, placeholder, value in zip(assigns, initial, self.model.values(), strict=True):
            self._session.run(assign.op, {placeholder: value})

    def train(self) -> None:
        self._session.run(self._train)

    def save(self, path: Path, step: int | None = None) -> object:
        with self._graph.as_default():
            return self._saver.save(self._session, str(path / "model"), global_step=step)

    def load(self, path: Path) -> object:
        with self._graph.as_default():
            return self._saver.restore(self._session, str(path / "model"))


class SavedModel(Peer):
    """A SavedModel as Keras exports it for TensorFlow Serving."""

    def save(self, path: Path) -> object:
        return self.subject.keras.export(str(path), verbose=False)

    def load(self, path: Path) -> object:
        return tf.saved_model.load(str(path))


class Safetensors(Peer):
    """The functions of safetensors for TensorFlow."""

    needs = "safetensors.tensorflow"

    def __init__(self, subject: Subject) -> None:
        super().__init__(subject)
        self._module: Any = importlib.import_module(self.needs)

    def save(self, path: Path) -> object:
        tensors = {f"part_{at}": part.read_value() for at, part in enumerate(self.model.parts)}
        return self._module.save_file(tensors, str(path / "model.safetensors"))

    def load(self, path: Path) -> None:
        tensors = self._module.load_file(str(path / "model.safetensors"))
        for at, part in enumerate(self.model.parts):
            part.assign(tensors[f"part_{at}"])


_KINDS: dict[str, type[Peer]] = {
    "checkpoint": Checkpoint,
    "saver": Saver,
    "savedmodel": SavedModel,
    "safetensors": Safetensors,
}


class Peers:
    """The requested peers that are available; `absent` says why the others are not."""

    def __init__(self, subject: Subject, settings: Settings, progress: Progress) -> None:
        self._subject = subject
        self.absent: dict[str, str] = {}
        self._present: dict[str, Peer] = {}
        for name in settings.peers:
            progress.say(f"preparing {name}")
            try:
                self._present[name] = _KINDS[name](subject)
            except ImportError as error:
                self.absent[name] = f"not installed: {error}"
            except Exception as error:  # noqa: BLE001, a failing peer must not end the benchmark
                self.absent[name] = f"failed: {type(error).__name__}: {error}"

    def train(self) -> None:
        """Change every value, as a training step between two publications does."""
        self._subject.train()
        for peer in self._present.values():
            peer.train()

    def saving(self, folder: Path) -> list[Contestant]:
        """Return a contestant for each peer that saves into a folder. The folder is removed outside the timed part."""
        return [
            Contestant(
                name=name,
                prepare=(folder / name).mkdir,
                run=partial(peer.save, folder / name),
                clear=partial(shutil.rmtree, folder / name),
                optional=True,
            )
            for name, peer in self._present.items()
        ]

    def loading(self, folder: Path) -> list[Contestant]:
        """Return a contestant for each peer. It loads the files that the peer saves here."""
        contestants = []
        for name, peer in self._present.items():
            path = folder / name
            path.mkdir()
            try:
                peer.save(path)
            except Exception as error:  # noqa: BLE001, as above
                self.absent[name] = f"failed: {type(error).__name__}: {error}"
                continue
            contestants.append(Contestant(name=name, run=partial(peer.load, path), optional=True))
        return contestants
