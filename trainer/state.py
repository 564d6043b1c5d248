"""TrainingState: everything that resuming needs, saved as TensorFlow checkpoints while training goes on."""

from __future__ import annotations

import logging
import operator
import shutil
import time
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
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
from paramsync.host.repeats import Repeats
from paramsync.publishing.job import Job
from paramsync.publishing.live_variables import VariableReader
from paramsync.publishing.write_behind import Snapshot
from paramsync.store.commit import StoreWriter
from paramsync.store.store import read_state
from paramsync.tensorbundle.index import OBJECT_GRAPH
from paramsync.version import Version

_EARLIER = "state-"  # what the names of an earlier release's states began with
_MODEL = "model/"  # what the keys of its variables begin with
_ENOUGH = 2  # of ours: one may turn out to be unreadable
_WITHOUT_VARIABLES = (  # what TensorFlow saves in ways of its own
    tf.data.Iterator,
    tf.lookup.experimental.MutableHashTable,
    tf.lookup.experimental.DenseHashTable,
    tf.train.experimental.PythonState,
    tf.compat.v1.train.Optimizer,
)

_log = logging.getLogger("paramsync.trainer")


class TrainingState:
    """Model, step and `state` of a job, in a directory of their own.

    What `tf.train.Checkpoint(model=job.model, step=job.step, **job.state)` would save is saved under the same names,
    and restored by it: variables too that were added since the job was made. `restore`, `save` and `finish` belong to
    the thread that trains. `save` pins the values, in microseconds a variable; a thread of this class writes them. A
    failure to save is logged and in `error`; training goes on.
    """

    def __init__(self, store: StoreWriter, directory: Path, job: Job, *, allow_nan: bool = False) -> None:
        """`store` writes into `directory`, and stays its caller's.

        A model with NaN or infinite parameters is not saved: whoever resumed from it could not train on. Unless they
        are allowed.

        Raises SettingsError for a state with more to it than variables, or whose variables are not there yet.
        """
        for leftover in directory.glob(f"{_EARLIER}*_temp"):  # of an earlier release that was killed
            shutil.rmtree(leftover, ignore_errors=True)
        self.saved: int | None = None  # the step that was saved last, or resumed from
        self.error: str | None = None  # of the last save; None where it went well
        self._repeats = Repeats()  # of saves that failed
        self._directory = directory
        self._store = store
        self._job = job
        self._allow_nan = allow_nan
        self._checkpoint = _checkpoint(job)
        self._checkpoint.save_counter.assign(0)  # it is made at its first use, and `restore` expects it
        self._structure: list[Any] = []
        self._follow_structure()
        self._read = VariableReader(self._variables)
        self._commits = 0
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="state")
        self._writing: Future[None] | None = None

    def restore(self) -> bool:
        """Go on from what was saved last; False where nothing was.

        A save that is damaged is passed over with a warning. Raises SettingsError for one of another job,
        UnreadableError for one that cannot be read now, and what `read_state` does.
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
        """Have the values that all variables have now saved as those of this step.

        False, and nothing is done, while the save before is being written.
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
        """Wait for what is being written; then have this step saved, and wait for that too."""
        if self._writing is not None:
            self._writing.result()
        if step is not None:
            self.save(step)
            self.finish()

    def close(self) -> None:
        """Wait for what is being written, and end the thread."""
        self._thread.shutdown()

    def _write(self, snapshot: Snapshot) -> None:
        try:
            if self._commits == _ENOUGH:
                self._remove_earlier()
            tensors = snapshot.tensors()
            if not self._allow_nan and (wrong := [name for name in tensors if _has_diverged(name, tensors[name])]):
                raise NotFiniteError(wrong)  # noqa: TRY301, it is told like all that may be wrong with a save
            self._store.commit(snapshot.version, tensors)
        except Exception as error:  # noqa: BLE001, the edge of the thread: training goes on whatever writing does
            self._failed(error)
        else:
            self.saved, self.error = snapshot.version.step, None
            self._repeats.over()
            self._commits += 1

    def _failed(self, error: Exception) -> None:
        self.error = _first_line(error)
        if (told := self._repeats.text(self.error)) is not None:
            _log.error("training state was not saved, training goes on: %s", told)

    def _follow_structure(self) -> None:
        """Have the variables that there are now saved. Raises SettingsError for what cannot be saved.

        Whether there are others than before is found in about ten microseconds a variable.
        """
        tracked = tf.train.TrackableView(self._checkpoint).descendants()
        structure = [*tracked, *parts(self._checkpoint)]  # Keras' layers have some that TensorFlow does not see
        if len(structure) == len(self._structure) and all(map(operator.is_, structure, self._structure)):
            return
        _check(self._checkpoint)
        variables = variable_keys(self._checkpoint)
        self._keys, self._variables = list(variables), list(variables.values())
        self._objects = np.array(object_graph(self._checkpoint, self._keys), dtype=object)
        self._structure = structure

    def _remove_earlier(self) -> None:
        """The states of an earlier release, which are the store's to list only.

        What is gone, it lists no more from the next commit on.
        """
        for file in self._directory.glob(f"{_EARLIER}*"):
            with suppress(OSError):
                file.unlink()

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
    """Whether it is a parameter of the model with values that are NaN or infinite. Other state may well have some."""
    sound = soundness(value.dtype) if name.startswith(_MODEL) and value.size else None
    return sound is not None and not sound(np.ascontiguousarray(value).view(np.uint8).reshape(-1).data)


def _checkpoint(job: Job) -> tf.train.Checkpoint:
    """Raises SettingsError where TensorFlow has no way to save what the state has."""
    try:
        return tf.train.Checkpoint(model=job.model, step=job.step, **job.state)
    except (ValueError, TypeError) as error:
        problem = "expected variables, or objects that have them"
        raise SettingsError(f"Job.state: {problem}; TensorFlow says: {_first_line(error)}") from error


def _check(checkpoint: tf.train.Checkpoint) -> None:
    """Raises SettingsError where a checkpoint would not cover everything, or has more to it than variables."""
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
    """What is wrong with a save, of which every tensor is read: a restore must not stop halfway.

    Raises UnreadableError where it cannot be read now, and is not to be trained once more.
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
