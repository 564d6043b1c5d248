"""PublishCallback: publishes from `model.fit` of Keras."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paramsync.errors import PublishError, SettingsError
from paramsync.program.packages import with_tensorflow
from paramsync.publishing.options import PublishOptions, check_options
from paramsync.publishing.publisher import Publisher
from paramsync.publishing.schedule import PublishSchedule

with with_tensorflow("paramsync.keras"):
    import keras

if TYPE_CHECKING:
    import tensorflow as tf
    from typing_extensions import Unpack

    from paramsync.publishing.live_variables import Averages


class PublishCallback(keras.callbacks.Callback):
    """Publishes the model while it is being fitted: at the start, whenever due, and at the end.

        model.fit(x, y, callbacks=[PublishCallback("/dev/shm/digits", every_seconds=1)])

    Without `every_steps` and `every_seconds`, it publishes every second. Steps are counted by the optimizer, so that a
    later fit continues the count. If the model's own `train_step` uses another optimizer, batches are counted. A model
    that is not built when training begins is published from its first batch on.

    The start is published before the first epoch, after other callbacks have restored weights. By default it is
    published only if the store has no version yet. So a script that runs again does not replace a trained model by an
    untrained model. `at_start=True` always publishes it, `at_start=False` never.

    `publish_if` is the name of a metric that must not get worse, such as "val_loss", or a function that gets Keras'
    logs and returns whether to publish. It decides about every due step, and about the end of the fit. With
    `publish_if`, due steps are also published at the ends of epochs, when logs are complete. The start has no logs, so
    `publish_if` holds it back unless `at_start=True`.

    An interrupted fit leaves the store locked until the callback is used again or freed, or the process ends.

    Args:
        store: The directory of the store.
        every_steps: Publish after this many steps.
        every_seconds: Publish after this many seconds; 1 if neither steps nor seconds are given.
        inputs: Specs of the inputs, if the model itself has none; see `paramsync.graphs.capturing.capture`.
        averages: Publish the moving averages of an optimizer with `use_ema` in place of the variables that it trains,
            from its first step on.
        at_start: Whether to publish the start. The default is to publish it only if the store has no version yet.
        **options: See Publisher.

    When training begins, raises the errors of Publisher. Raises SettingsError if `averages` is set for an optimizer
    without averages, or if Keras runs on another backend than TensorFlow.
    """

    def __init__(
        self,
        store: str | Path,
        *,
        every_steps: int | None = None,
        every_seconds: float | None = None,
        inputs: Any = None,
        averages: bool = False,
        at_start: bool | None = None,
        **options: Unpack[PublishOptions],
    ) -> None:
        super().__init__()
        check_options(options)
        self._options = options
        if every_steps is None and every_seconds is None:
            every_seconds = 1.0
        self._schedule = PublishSchedule(every_steps=every_steps, every_seconds=every_seconds, at_start=at_start)
        self._store = store
        self._inputs = inputs
        self._averages = averages
        self._publisher: Publisher | None = None
        self._step = 0
        self._begun = False
        self._recorded = 0  # how many epochs the History had when `on_epoch_end` was last called

    def on_train_begin(self, logs: Any = None) -> None:
        self._release()  # closes the publisher of an interrupted fit
        if keras.backend.backend() != "tensorflow":
            raise SettingsError(
                f"PublishCallback: expected TensorFlow as the backend of Keras, found {keras.backend.backend()};"
                " publish from a loop of your own with Publisher.of_graph, as examples/jax_trainer.py does"
            )
        self._step, self._begun = _counted(self.model.optimizer), False
        self._recorded = _recorded(self.model)
        if self.model.built:
            self._open()

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self._begin()

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self._recorded = _recorded(self.model)
        if self._options.get("publish_if") is not None and self._publisher is not None:
            self._publisher.publish_if_due(self._step, logs)

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        counted, optimizer = _counted(self.model.optimizer), self.model.optimizer
        # An optimizer that is not used counts no steps, so count batches too. If the optimizer skips updates after some
        # batches, only its own count is right.
        self._step = counted if _leaves_out(optimizer) else max(counted, self._step + 1)
        self._open().publish_if_due(self._step, logs)

    def on_train_end(self, logs: Any = None) -> None:
        """Publish the model's values after the other callbacks have restored weights.

        Keras calls its History after all other callbacks. So the end is published from the History's `on_train_end`. If
        the History was called before this callback, or is missing, the end is published at once.
        """
        if _recorded(self.model) > self._recorded:
            _after(self.model.history, weakref.WeakMethod(self._end))
        else:
            self._end(logs)

    def _end(self, logs: Any) -> None:
        try:
            if self._publisher is not None:
                self._begin()  # a fit without an epoch has not begun yet
                self._publisher.finish(self._step, logs)
        finally:
            self._release()

    @property
    def control(self) -> str | None:
        """The address of the control port; None between fits, and without `control_port`."""
        return None if self._publisher is None else self._publisher.control

    def _begin(self) -> None:
        """Begin once per fit, as late as possible, because other callbacks restore weights when training begins."""
        if not self._begun and self._publisher is not None:
            self._step = _counted(self.model.optimizer)
            self._publisher.begin(self._step)
        self._begun = True

    def _open(self) -> Publisher:
        if self._publisher is None:
            # imported here, so that a wrong backend raises our own error first
            from paramsync.graphs.capturing import capture

            self._publisher = Publisher(
                self._store,
                capture(self.model, inputs=self._inputs),
                schedule=self._schedule,
                averages=_averages(self.model) if self._averages else None,
                **self._options,
            )
            # closes the publisher of an interrupted fit when the callback is freed
            self._forgotten = weakref.finalize(self, _close, self._publisher)
            self._forgotten.atexit = False
        return self._publisher

    def _release(self) -> None:
        publisher, self._publisher = self._publisher, None
        if publisher is not None:
            self._forgotten.detach()
            publisher.close()


def _recorded(model: keras.Model) -> int:
    """Return how many epochs of this fit the model's History has recorded."""
    return len(getattr(getattr(model, "history", None), "epoch", ()))


def _after(history: keras.callbacks.History, end: weakref.WeakMethod[Callable[[Any], None]]) -> None:
    """Call the method once, after the History's own `on_train_end`."""
    before = history.on_train_end  # the History's own method, or the hook of another PublishCallback

    def on_train_end(logs: Any = None) -> None:
        vars(history).pop("on_train_end", None)
        try:
            before(logs)
        finally:
            if (method := end()) is not None:
                method(logs)

    history.on_train_end = on_train_end


def _counted(optimizer: keras.Optimizer | None) -> int:
    # The number of batches would be wrong: if one call runs several steps, Keras counts the last call of an epoch in
    # full. Reading the count does not wait for a GPU, because Keras has read the step's loss before it calls us.
    if optimizer is None:
        return 0
    return int(optimizer.iterations.numpy())  # int() fails for a variable of several replicas


def _leaves_out(optimizer: keras.Optimizer | None) -> bool:
    """Return whether the optimizer skips updates after some batches."""
    scales = isinstance(optimizer, keras.optimizers.LossScaleOptimizer)
    return scales or bool(getattr(optimizer, "gradient_accumulation_steps", None))


def _close(publisher: Publisher) -> None:
    with suppress(PublishError):  # the error is in the log
        publisher.close()


def _averages(model: keras.Model) -> Averages:
    """Return a function that finds the optimizer's moving averages. Raises SettingsError if there are none."""
    optimizer = getattr(model.optimizer, "inner_optimizer", model.optimizer)  # unwrap an optimizer that scales losses
    if not getattr(optimizer, "use_ema", False):
        found = f"{optimizer.name} without" if optimizer else "none"
        raise SettingsError(f"averages: expected an optimizer with use_ema=True, found {found}")
    weights = {f"{weight.path.replace('/', '_')}_average": weight for weight in model.weights}
    if len(weights) < len(model.weights):
        raise SettingsError(
            "averages: expected weights with different paths, found some with the same; name the layers"
        )
    known: dict[int, tf.Variable] = {}  # averages, by the identity of the variable

    def find(variable: tf.Variable) -> tf.Variable | None:
        if not known and optimizer.iterations.numpy():  # the averages are zero before the optimizer's first step
            averages = {variable.name: variable for variable in optimizer.variables}
            known.update(
                {id(weight.value): averages[name].value for name, weight in weights.items() if name in averages}
            )
        return known.get(id(variable))

    return find
