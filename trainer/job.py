"""Job: what the training program needs to know about what it trains."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import keras
    import tensorflow as tf


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """Something to train.

    `train_step` does one step and returns its loss, a scalar that may still be being computed. `step` counts them and
    is advanced by it. `state` is what resuming needs besides the model and the step: the optimizer, say.
    """

    model: keras.Model | tf.Module
    step: tf.Variable
    train_step: Callable[[], tf.Tensor]
    steps_per_epoch: int
    state: Mapping[str, Any] = field(default_factory=dict)
