"""The other ways to save and load the same parameters, each as its documentation tells its users to."""

from __future__ import annotations

import abc
import importlib
import shutil
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Literal

import tensorflow as tf

from bench.model import STEP, Subject
from bench.progress import Progress
from bench.settings import NOT_ASKED_FOR
from bench.timing import Contestant


class Peer(abc.ABC):
    """One way to save and load. `path` is a folder of its own, which exists and is empty before `save`.

    Loading ends where the values can be predicted with: in variables, old or new.
    """

    saves: ClassVar[str]
    loads: ClassVar[str]
    needs: ClassVar[str | None] = None  # a module that may not be installed

    def __init__(self, subject: Subject) -> None:
        self.subject = subject
        self.model = subject.module

    def train(self) -> None:  # noqa: B027, most have no values of their own
        """Change every value, where they are not the subject's."""

    @abc.abstractmethod
    def save(self, path: Path) -> object: ...

    @abc.abstractmethod
    def load(self, path: Path) -> object: ...

    def _assign(self, tensors: Mapping[str, Any]) -> None:
        for at, part in enumerate(self.model.parts):
            part.assign(tensors[f"part_{at}"])


class Checkpoint(Peer):
    """`tf.train.Checkpoint`."""

    saves, loads = "checkpoint_write", "checkpoint_read"

    def __init__(self, subject: Subject) -> None:
        super().__init__(subject)
        self._checkpoint = tf.train.Checkpoint(model=self.model)

    def save(self, path: Path) -> object:
        return self._checkpoint.write(str(path / "ckpt"))

    def load(self, path: Path) -> object:
        return self._checkpoint.read(str(path / "ckpt")).assert_consumed()


class Saver(Peer):
    """`tf.compat.v1.train.Saver` in a session that stays open."""

    saves, loads = "saver_save", "saver_restore"

    def __init__(self, subject: Subject) -> None:
        super().__init__(subject)
        v1 = tf.compat.v1
        self._graph = tf.Graph()
        with self._graph.as_default():
            shapes = [part.shape for part in self.model.parts]
            variables = [v1.get_variable(f"part_{at}", shape) for at, shape in enumerate(shapes)]
            given = [v1.placeholder(tf.float32, shape) for shape in shapes]
            begin = [variable.assign(value) for variable, value in zip(variables, given, strict=True)]
            trained = variables[self.subject.frozen :]
            self._train = tf.group(*(variable.assign_add(tf.fill(variable.shape, STEP)) for variable in trained))
            self._saver = v1.train.Saver(max_to_keep=2)
        self._session = v1.Session(graph=self._graph)
        for operation, place, value in zip(begin, given, self.model.values(), strict=True):
            self._session.run(operation.op, {place: value})

    def train(self) -> None:
        self._session.run(self._train)

    def save(self, path: Path) -> object:
        with self._graph.as_default():
            return self._saver.save(self._session, str(path / "model"))

    def save_step(self, path: Path, step: int) -> object:
        """Beside those of other steps, the oldest of which go."""
        with self._graph.as_default():
            return self._saver.save(self._session, str(path / "model"), global_step=step)

    def load(self, path: Path) -> object:
        with self._graph.as_default():
            return self._saver.restore(self._session, str(path / "model"))


class SavedModel(Peer):
    """What TensorFlow Serving takes, as Keras makes it."""

    saves, loads = "savedmodel_export", "savedmodel_load"

    def save(self, path: Path) -> object:
        return self.subject.keras.export(str(path), verbose=False)

    def load(self, path: Path) -> object:
        return tf.saved_model.load(str(path))


class SavedModule(Peer):
    """The same without Keras, whose export traces the model each time."""

    saves, loads = "savedmodule_save", "savedmodule_load"

    def save(self, path: Path) -> object:
        return tf.saved_model.save(self.model, str(path))

    def load(self, path: Path) -> object:
        return tf.saved_model.load(str(path))


class H5(Peer):
    """Keras weights in HDF5."""

    saves, loads = "h5_save", "h5_load"

    def save(self, path: Path) -> object:
        return self.subject.keras.save_weights(path / "model.weights.h5")

    def load(self, path: Path) -> object:
        return self.subject.keras.load_weights(path / "model.weights.h5")


class Safetensors(Peer):
    """Safetensors, its functions for TensorFlow."""

    saves, loads, needs = "safetensors_save", "safetensors_load", "safetensors.tensorflow"

    def __init__(self, subject: Subject) -> None:
        super().__init__(subject)
        self._module: Any = importlib.import_module(self.needs)

    def save(self, path: Path) -> object:
        tensors = {f"part_{at}": part.read_value() for at, part in enumerate(self.model.parts)}
        return self._module.save_file(tensors, str(path / "model.safetensors"))

    def load(self, path: Path) -> None:
        self._assign(self._module.load_file(str(path / "model.safetensors")))


class Orbax(Peer):
    """Orbax, its standard checkpointer, waited for."""

    saves, loads, needs = "orbax_save", "orbax_restore", "orbax.checkpoint"

    def __init__(self, subject: Subject) -> None:
        super().__init__(subject)
        self._module: Any = importlib.import_module(self.needs)
        self._checkpointer = self._module.StandardCheckpointer()

    def save(self, path: Path) -> object:
        tree = {f"part_{at}": value for at, value in enumerate(self.model.values())}
        self._checkpointer.save(path / "tree", tree)
        return self._checkpointer.wait_until_finished()

    def load(self, path: Path) -> None:
        skeleton = {f"part_{at}": value for at, value in enumerate(self.model.values())}
        self._assign(self._checkpointer.restore(path / "tree", skeleton))


_KINDS: dict[str, type[Peer]] = {
    "checkpoint": Checkpoint,
    "saver": Saver,
    "savedmodel": SavedModel,
    "savedmodule": SavedModule,
    "h5": H5,
    "safetensors": Safetensors,
    "orbax": Orbax,
}


class Peers:
    """Those that are asked for and can be had, by what they are called in a benchmark; and why the others cannot."""

    def __init__(
        self, subject: Subject, asked: Sequence[str], *, by: Literal["saves", "loads"], progress: Progress
    ) -> None:
        self._subject = subject
        self.names = [getattr(kind, by) for kind in _KINDS.values()]
        self.absent: dict[str, str] = {}
        self._found: dict[str, Peer] = {}
        for key, kind in _KINDS.items():
            name = getattr(kind, by)
            if key not in asked:
                self.absent[name] = NOT_ASKED_FOR
                continue
            progress.say(f"preparing {name}")
            try:
                self._found[name] = kind(subject)
            except ImportError as error:
                self.absent[name] = f"not installed: {error}"
            except Exception as error:  # noqa: BLE001, whatever is wrong with a peer, ours is measured
                self.absent[name] = f"failed: {type(error).__name__}: {error}"

    def train(self) -> None:
        """What happens between two publications: every value changes."""
        self._subject.train()
        for peer in self._found.values():
            peer.train()

    def saving(self, folder: Path) -> list[Contestant]:
        """Each into a folder of its own, removed when the clock has stopped."""
        return [self._saving(name, peer, folder / name) for name, peer in self._found.items()]

    def loading(self, folder: Path) -> list[Contestant]:
        """Each what it has saved before."""
        contestants = []
        for name, peer in self._found.items():
            path = folder / name
            path.mkdir()
            try:
                peer.save(path)
            except Exception as error:  # noqa: BLE001, as above
                self.absent[name] = f"failed: {type(error).__name__}: {error}"
                continue
            contestants.append(Contestant(name=name, run=partial(peer.load, path), optional=True))
        return contestants

    @staticmethod
    def _saving(name: str, peer: Peer, path: Path) -> Contestant:
        return Contestant(
            name=name,
            prepare=path.mkdir,
            run=partial(peer.save, path),
            clear=partial(shutil.rmtree, path),
            optional=True,
        )
