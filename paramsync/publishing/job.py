"""Job: the model and step that the training program trains, made by a function. Imports no TensorFlow itself.

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

_TAKEN = ("model", "step", "root", "save_counter")  # names that tf.train.Checkpoint uses otherwise


@dataclass(frozen=True, slots=True, kw_only=True)
class JobSettings:
    """The program's arguments for a job's function.

    Weights, order and drawn examples should follow from `seed`. `data` is a path, as given. The job may write its
    held-out examples to `held_out`.
    """

    seed: int = 0
    data: Path | None = None
    held_out: Path | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """Something to train.

    `model` is published, and must be built. `train_step` does one step, on the thread that trains, and returns its
    loss, a scalar that may still be in computation. `step` is a variable that counts the steps: each adds 1. `state`
    has the other objects that resuming needs, by name, such as the optimizer; all their variables must exist when the
    job is made. `steps_per_epoch` is for showing progress only.

    Raises SettingsError for detectable mistakes.
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
        """The value of `step`; waits for the step under way."""
        return int(self.step.numpy())  # int(self.step) fails for a variable of several replicas

    def check(self, step: int, loss: Any) -> None:
        """Raises SettingsError if `train_step` did not do this step, or returned no loss.

        A state saved with the wrong step would train some steps twice, or never.
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
