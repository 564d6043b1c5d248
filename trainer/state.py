"""TrainingState: everything that resuming needs, saved as TensorFlow's own checkpoints."""

from __future__ import annotations

import logging
import shutil
from pathlib import Path

import tensorflow as tf

from paramsync.errors import SettingsError
from trainer.job import Job

_NAME = "state"
_log = logging.getLogger("paramsync.trainer")


class TrainingState:
    """Model, optimizer and step of a job in a directory, where the two newest are kept.

    Belongs to the thread that trains. A failure to save is logged; training goes on.
    """

    def __init__(self, directory: Path, job: Job) -> None:
        """Raises SettingsError where the directory cannot be made."""
        try:
            directory.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise SettingsError(f"training state cannot be saved in {directory}: {error.strerror}") from error
        for leftover in directory.glob(f"{_NAME}-*_temp"):  # of a save that was killed
            shutil.rmtree(leftover, ignore_errors=True)
        self._directory = directory
        self._step = job.step
        self._saved: int | None = None
        self._checkpoint = tf.train.Checkpoint(model=job.model, step=job.step, **job.state)
        self._manager = tf.train.CheckpointManager(
            self._checkpoint, str(directory), max_to_keep=2, checkpoint_name=_NAME
        )

    def restore(self) -> bool:
        """Go on from what was saved last; False where nothing was.

        A save that cannot be read, because the process was killed within it, is passed over with a warning. Raises
        SettingsError for one of another job.
        """
        for prefix in reversed(self._manager.checkpoints):
            if self._is_whole(prefix):
                self._restore(prefix)
                return True
        return False

    def save(self) -> None:
        """Save the current step, unless it is saved already."""
        step = int(self._step)
        if step == self._saved:
            return
        try:
            self._manager.save()
        except (tf.errors.OpError, ValueError, OSError) as error:
            _log.error("training state was not saved, training goes on: %s", _first_line(error))
        else:
            self._saved = step

    def _restore(self, prefix: str) -> None:
        try:
            self._checkpoint.restore(prefix).assert_consumed()
        except (AssertionError, ValueError) as error:
            raise SettingsError(
                f"the training state in {self._directory} is of another job ({_first_line(error)}); "
                "remove it or give another --state"
            ) from error
        self._saved = int(self._step)
        _log.info("resumed at step %d from %s", self._saved, prefix)

    @staticmethod
    def _is_whole(prefix: str) -> bool:
        """Whether every tensor reads back with the right checksum: a restore must not stop halfway."""
        try:
            reader = tf.train.load_checkpoint(prefix)
            for name in reader.get_variable_to_shape_map():
                reader.get_tensor(name)
        except Exception as error:  # noqa: BLE001, TensorFlow raises errors of many kinds here: IndexError for a short file
            _log.warning("training state %s cannot be read, trying the one before: %s", prefix, _first_line(error))
            return False
        return True


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0] or type(error).__name__
