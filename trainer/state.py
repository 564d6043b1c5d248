"""TrainingState: saves model, optimizer and step as TensorFlow checkpoints while training goes on."""

from __future__ import annotations

import logging
import operator
import time
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import keras
import numpy as np
import numpy.typing as npt
import tensorflow as tf

from paramsync.checkpoint.reader import Bundle
from paramsync.checkpoint.tensor_bytes import soundness
from paramsync.errors import CorruptCheckpointError, NotFiniteError, ParamsyncError, SettingsError, UnreadableError
from paramsync.graphs.sources.objects import object_graph, parts, variable_keys
from paramsync.host.files import Repeats
from paramsync.publishing.job import Job
from paramsync.publishing.live_variables import VariableReader
from paramsync.publishing.write_behind import Snapshot
from paramsync.store.commit import StoreWriter
from paramsync.store.store import read_state
from paramsync.tensorbundle.index import OBJECT_GRAPH
from paramsync.version import Version

_MODEL = "model/"  # prefix of the keys of the model's variables
_WITHOUT_VARIABLES = (  # types that TensorFlow does not save as variables
    tf.data.Iterator,
    tf.lookup.experimental.MutableHashTable,
    tf.lookup.experimental.DenseHashTable,
    tf.train.experimental.PythonState,
    tf.compat.v1.train.Optimizer,
)

_log = logging.getLogger("paramsync.trainer")


class TrainingState:
    """Saves and restores a job's model, step and `state`, in a directory that has nothing else.

    The files have the format of `tf.train.Checkpoint(model=job.model, step=job.step, **job.state)`, which can restore
    them. Variables that were added after the job was made are saved, too. Only the thread that trains may call
    `restore`, `save` and `finish`. `save` pins the values, which takes microseconds for each variable, and a thread of
    this class writes them. After a failed save, the error is logged and kept in `error`, and training goes on.
    """

    def __init__(self, store: StoreWriter, directory: Path, job: Job, *, allow_nan: bool = False) -> None:
        """`store` writes into `directory`; the caller closes it.

        Unless `allow_nan`, a model with NaN or infinity is not saved, because training could not resume from it.

        Raises SettingsError if the state has more than variables, or if variables do not exist yet.
        """
        self.saved: int | None = None  # the step of the last save or restore
        self.error: str | None = None  # why the last save failed; None if it succeeded
        self._repeats = Repeats()  # decides which of many equal errors of failed saves are logged
        self._directory = directory
        self._store = store
        self._job = job
        self._allow_nan = allow_nan
        self._checkpoint = _checkpoint(job)
        self._checkpoint.save_counter.assign(0)  # creates the counter, which `restore` expects
        self._structure: list[Any] = []
        self._follow_structure()
        self._read = VariableReader(self._variables)
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="state")
        self._writing: Future[None] | None = None

    def restore(self) -> bool:
        """Restore the newest state. Returns False if there is none.

        A damaged state is skipped with a warning. Raises SettingsError if the state is of another job, UnreadableError
        if it cannot be read now, and the errors of `read_state`.
        """
        state = read_state(self._directory)
        for name in reversed(state.names if state else ()):
            prefix = self._directory / name
            problem = _problem(prefix)
            if problem is None:
                self._restore(str(prefix))
                return True
            _log.warning("training state %s cannot be read, trying the one before: %s", prefix, problem)
        return False

    def save(self, step: int) -> bool:
        """Begin to save the current values of all variables as the state at `step`, unless that state is saved already.

        Returns False, and does nothing, while the previous save is being written.
        """
        if self._writing is not None and not self._writing.done():
            return False
        if step != self.saved:
            try:
                self._follow_structure()
            except SettingsError as error:
                self._failed(error)
                return True
            values: dict[str, Any] = dict(zip(self._keys, self._read(self._variables), strict=True))
            values[OBJECT_GRAPH] = self._objects
            now = time.time()
            number = self._store.next_number(step)
            version = Version(number=number, step=step, prefix="", step_done_at=now, snapshot_at=now)
            self._writing = self._thread.submit(self._write, Snapshot(version=version, values=values, metrics={}))
        return True

    def finish(self, step: int | None = None) -> None:
        """Wait for the save in progress. If a step is given, then save this step and wait for that save, too."""
        if self._writing is not None:
            self._writing.result()
        if step is not None:
            self.save(step)
            self.finish()

    def close(self) -> None:
        """Wait for the save in progress, and end the thread."""
        self._thread.shutdown()

    def _write(self, snapshot: Snapshot) -> None:
        try:
            tensors = snapshot.tensors()
            if not self._allow_nan and (wrong := [name for name in tensors if _has_diverged(name, tensors[name])]):
                raise NotFiniteError(wrong)  # noqa: TRY301, reported like every other failure
            self._store.commit(snapshot.version, tensors)
        except Exception as error:  # noqa: BLE001, an error on this thread must not end training
            self._failed(error)
        else:
            self.saved, self.error = snapshot.version.step, None
            self._repeats.over()

    def _failed(self, error: Exception) -> None:
        self.error = _first_line(error)
        if (told := self._repeats.text(self.error)) is not None:
            _log.error("training state was not saved, training goes on: %s", told)

    def _follow_structure(self) -> None:
        """Update the list of variables if some were added or removed. Raises SettingsError for a state that cannot be
        saved.

        The comparison with the previous variables takes about ten microseconds for each variable.
        """
        tracked = tf.train.TrackableView(self._checkpoint).descendants()
        structure = [*tracked, *parts(self._checkpoint)]  # Keras' layers have parts that TensorFlow does not see
        if len(structure) == len(self._structure) and all(map(operator.is_, structure, self._structure)):
            return
        _check(self._checkpoint)
        variables = variable_keys(self._checkpoint)
        self._keys, self._variables = list(variables), list(variables.values())
        self._objects = np.array(object_graph(self._checkpoint, self._keys), dtype=object)
        self._structure = structure

    def _restore(self, prefix: str) -> None:
        try:
            self._checkpoint.restore(prefix).assert_consumed()
        except (AssertionError, ValueError) as error:
            raise SettingsError(
                f"the training state in {self._directory} is of another job ({_first_line(error)}); "
                "remove it or give another --state"
            ) from error
        self.saved = self._job.steps_done()
        _log.info("resumed at step %d from %s", self.saved, prefix)


def _has_diverged(name: str, value: npt.NDArray[np.generic]) -> bool:
    """Whether a parameter of the model has NaN or infinite values. Other state may have such values."""
    sound = soundness(value.dtype) if name.startswith(_MODEL) and value.size else None
    return sound is not None and not sound(np.ascontiguousarray(value).view(np.uint8).reshape(-1).data)


def _checkpoint(job: Job) -> tf.train.Checkpoint:
    """Make the checkpoint of a job. Raises SettingsError if TensorFlow cannot save an object of the state."""
    try:
        return tf.train.Checkpoint(model=job.model, step=job.step, **job.state)
    except (ValueError, TypeError) as error:
        problem = "expected variables, or objects that have them"
        raise SettingsError(f"Job.state: {problem}; TensorFlow says: {_first_line(error)}") from error


def _check(checkpoint: tf.train.Checkpoint) -> None:
    """Raise SettingsError if variables do not exist yet, or if the state has more than variables."""
    for name, value in tf.train.TrackableView(checkpoint).children(checkpoint).items():
        objects = tf.train.TrackableView(value).descendants()
        for each in objects:
            if isinstance(each, keras.optimizers.Optimizer) and not each.built:
                problem = f"{name!r} has an optimizer ({each.name}) whose variables are not there yet"
                raise SettingsError(f"Job: {problem}: call its build(model.trainable_variables) first")
            if name != "model" and isinstance(each, _WITHOUT_VARIABLES):
                raise SettingsError(_only_variables(name, each))
        if name != "model" and not any(isinstance(each, (tf.Variable, keras.Variable)) for each in objects):
            raise SettingsError(_only_variables(name, value))


def _only_variables(name: str, found: object) -> str:
    return f"Job.state[{name!r}]: expected variables, or objects that have them, found {type(found).__name__}"


def _problem(prefix: Path) -> ParamsyncError | None:
    """Return what is wrong with a saved state, or None. Reads every tensor, so that no restore fails halfway.

    Raises UnreadableError if the state cannot be read now, because an older state would repeat steps.
    """
    try:
        faults = Bundle.open(prefix, mapped=False).faults(lambda _: None)
    except CorruptCheckpointError as error:
        return error
    fault = next(iter(faults.values()), None)
    if isinstance(fault, UnreadableError):
        raise fault
    return fault


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0] or type(error).__name__
