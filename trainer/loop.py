"""The training loop: step, publish if due, save now and then; the ending is the same for the last step and a signal."""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass

from paramsync.writer import StoreWriter
from trainer.control import Control, Training
from trainer.job import Job
from trainer.jobs import digits
from trainer.jobs.examples import Examples
from trainer.meter import Meter
from trainer.publisher import Publisher
from trainer.screen import Screen
from trainer.settings import Settings
from trainer.state import TrainingState
from trainer.stop import Stop

SAVE_EVERY = 10.0  # seconds between two saves of the training state

_log = logging.getLogger("paramsync.trainer")


def train(
    settings: Settings,
    *,
    store: StoreWriter,
    device: str,
    examples: Examples,
    control: Control,
    screen: Screen,
    stop: Stop,
) -> None:
    """Train from where the state left off. Raises SettingsError and StoreError before the first step only."""
    job = digits.build(examples, seed=settings.seed)
    stop.training_begins()
    with Publisher(store, job.model, schedule=settings.schedule) as publisher:
        state = TrainingState(settings.state, job)
        state.restore()
        meter = Meter(int(job.step), time.monotonic())
        control.training_begins(
            Training(
                publisher=publisher,
                meter=meter,
                device=device,
                total_steps=settings.steps,
                steps_per_epoch=job.steps_per_epoch,
            )
        )
        _log.info("trainer ready: control %s, device %s, store %s", control.address, device, settings.store)
        loop = _Loop(job=job, publisher=publisher, state=state, meter=meter, screen=screen, last_step=settings.steps)
        try:
            loop.run(stop)
        finally:
            screen.close()
        control.training_ends()
        loop.finish()


@dataclass(frozen=True, kw_only=True)
class _Loop:
    job: Job
    publisher: Publisher
    state: TrainingState
    meter: Meter
    screen: Screen
    last_step: int | None

    def run(self, stop: Stop) -> None:
        step = self.meter.step
        self.publisher.publish_if_due(step)
        now = time.monotonic()
        show_at, save_at = now + self.screen.every, now + SAVE_EVERY
        while not stop.requested and (self.last_step is None or step < self.last_step):
            loss = self.job.train_step()
            step += 1
            self.publisher.publish_if_due(step, {"loss": loss})
            now = time.monotonic()
            self.meter.advance(step, loss, now)
            if now >= show_at:
                self._show()
                show_at = now + self.screen.every
            if now >= save_at:
                self.state.save()
                save_at = time.monotonic() + SAVE_EVERY
        self._show()

    def finish(self) -> None:
        loss = self.meter.loss
        version = self.publisher.finish(self.meter.step, None if loss is None else {"loss": loss})
        self.state.save()
        published = "nothing was published" if version is None else f"version {version.number} is the last published"
        _log.info("training stopped at step %d, %s", self.meter.step, published)

    def _show(self) -> None:
        out_of = self.last_step or self.job.steps_per_epoch
        self.screen.show(self.meter, self.publisher.status().published, out_of=out_of)
