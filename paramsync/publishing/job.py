"""Job: what the training program trains, made by a function of the user. This module does not import TensorFlow.

`python -m trainer --job MODULE:FUNCTION` calls the function once, with `JobSettings`, and trains the `Job` it returns:

    def small(settings: JobSettings) -> Job:
        keras.utils.set_random_seed(settings.seed)
        model = keras.Sequential([keras.Input((4,), name="x"), keras.layers.Dense(1, name="y")])
        optimizer = keras.optimizers.Adam()
        optimizer.build(model.trainable_variables)
        step = tf.Variable(0, dtype=tf.int64, trainable=False)

        @tf.function
        def train_step() -> tf.Tensor: ...  # changes the model, adds 1 to `step`, returns the loss

        return Job(model=model, step=step, train_step=train_step, state={"optimizer": optimizer})

`trainer/jobs/digits.py` is a complete job.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paramsync.errors import SettingsError

if TYPE_CHECKING:
    import keras
    import tensorflow as tf

_TAKEN = ("model", "step", "root", "save_counter")  # names with another meaning in tf.train.Checkpoint


@dataclass(frozen=True, slots=True, kw_only=True)
class JobSettings:
    """The program's arguments for a job's function.

    The job should derive initial weights, order and random examples from `seed`. `data` is a path that the job may
    read. The job may write its held-out examples to the file `held_out`.
    """

    seed: int = 0
    data: Path | None = None
    held_out: Path | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A model and the function that trains it.

    - `model` is published, and must be built.
    - `train_step` does one step, on the thread that trains. It adds 1 to `step`, and returns the loss, a scalar that
      may still be being computed.
    - `state` has the other objects that are saved to resume training, by name, such as the optimizer. All their
      variables must exist when the job is made.
    - `steps_per_epoch` is used only to show progress.

    Raises SettingsError for a value of a wrong kind.
    """

    model: keras.Model | tf.Module
    step: tf.Variable
    train_step: Callable[[], tf.Tensor]
    steps_per_epoch: int | None = None
    state: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name, expected, good in (
            ("model", "a keras.Model or tf.Module", hasattr(self.model, "trainable_variables")),
            ("step", "a tf.Variable that holds one whole number", _counts(self.step)),
            ("train_step", "a function", callable(self.train_step)),
            ("steps_per_epoch", "a whole number of at least 1, or None", _is_length(self.steps_per_epoch)),
            ("state", "a dict of objects by name", isinstance(self.state, Mapping)),
        ):
            if not good:
                raise SettingsError(f"Job.{name}: expected {expected}, found {_shown(getattr(self, name))}")
        for name in self.state:
            if not isinstance(name, str) or not name or name in _TAKEN:
                raise SettingsError(f"Job.state: expected names other than {', '.join(_TAKEN)}, found {name!r}")

    def steps_done(self) -> int:
        """Return the value of `step`. Waits for a step that is still being computed."""
        return int(self.step.numpy())  # int(self.step) fails for a variable of several replicas

    def check(self, step: int, loss: Any) -> None:
        """Raise SettingsError if `train_step` did not count up to this step, or returned no loss.

        With a wrong count, training that resumes from a saved state would repeat or skip steps.
        """
        if (found := self.steps_done()) != step:
            raise SettingsError(f"Job.step: expected train_step to add 1, so that it is {step}, found {found}")
        try:
            float(loss)
        except (TypeError, ValueError) as error:
            expected = "the loss, a scalar"
            raise SettingsError(f"Job.train_step: expected it to return {expected}, found {_shown(loss)}") from error


JobFunction = Callable[[JobSettings], Job]


def _counts(step: Any) -> bool:
    dtype = getattr(getattr(step, "dtype", None), "name", getattr(step, "dtype", None))
    return hasattr(step, "assign") and tuple(getattr(step, "shape", (1,))) == () and dtype in ("int32", "int64")


def _is_length(value: object) -> bool:
    return value is None or (isinstance(value, int) and value >= 1)


def _shown(value: object) -> str:
    text = " ".join(repr(value).split())
    return text if len(text) <= 80 else type(value).__name__
