"""PublishCallback: what a Keras user adds to `model.fit`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import keras

from trainer.publisher import OnError, Publisher
from trainer.schedule import PublishSchedule


class PublishCallback(keras.callbacks.Callback):
    """Publishes the model while it is being fitted: at the start, whenever due, and at the end.

        model.fit(x, y, callbacks=[PublishCallback("/dev/shm/digits", every_seconds=1)])

    Where neither steps nor seconds are given, every second. Steps are counted from the optimizer's own count, so that
    they go on where an earlier fit stopped. A model that is not built when training begins is published from its first
    batch on. `keep` and `durable` are as Publisher has them. A fit that is interrupted leaves the store locked until
    the same callback is used again, or the process ends. Raises what Publisher does, when training begins.
    """

    def __init__(
        self,
        store: str | Path,
        *,
        every_steps: int | None = None,
        every_seconds: float | None = None,
        keep: int = 5,
        durable: bool = False,
        on_error: OnError = "log",
    ) -> None:
        super().__init__()
        if every_steps is None and every_seconds is None:
            every_seconds = 1.0
        self._schedule = PublishSchedule(every_steps=every_steps, every_seconds=every_seconds)
        self._store = Path(store)
        self._keep = keep
        self._durable = durable
        self._on_error: OnError = on_error
        self._publisher: Publisher | None = None

    def on_train_begin(self, logs: Any = None) -> None:
        self._release()  # of a fit that was interrupted
        if self.model.built:
            self._publish_if_due(None)

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self._publish_if_due(logs)

    def on_train_end(self, logs: Any = None) -> None:
        try:
            if self._publisher is not None:
                self._publisher.finish(self._steps_done(), logs)
        finally:
            self._release()

    def _steps_done(self) -> int:
        # Not counted by batches: where one call runs several steps, Keras counts the last call of an epoch as a full
        # one. Keras has read the loss of the step before it calls us, so there is no GPU to wait for.
        return int(self.model.optimizer.iterations)

    def _publish_if_due(self, logs: Any) -> None:
        if self._publisher is None:
            self._publisher = Publisher(
                self._store,
                self.model,
                schedule=self._schedule,
                keep=self._keep,
                durable=self._durable,
                on_error=self._on_error,
            )
        self._publisher.publish_if_due(self._steps_done(), logs)

    def _release(self) -> None:
        publisher, self._publisher = self._publisher, None
        if publisher is not None:
            publisher.close()
