"""The training loop: step, publish if due, save now and then; the ending is the same for the last step and a signal."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass
from functools import partial

from paramsync.publishing.control_port import ControlPort, Training
from paramsync.publishing.job import Job
from paramsync.publishing.metrics import Meter
from paramsync.publishing.publisher import Publisher
from paramsync.store.commit import StoreWriter
from paramsync.version import Version

from .scalars import EVERY, Scalars
from .screen import Screen
from .settings import Settings
from .state import TrainingState
from .stop import Stop

_log = logging.getLogger("paramsync.trainer")


def train(
    settings: Settings,
    job: Job,
    *,
    store: StoreWriter,
    states: StoreWriter,
    device: str,
    control: ControlPort,
    screen: Screen,
    stop: Stop,
) -> None:
    """Train from where the state left off.

    Raises SettingsError, StoreError and GraphError before the first step, and SettingsError after it where the job does
    not count its steps or tells no loss. What the job's own step raises passes through.
    """
    stop.training_begins()
    with ExitStack() as stack:
        publisher = stack.enter_context(
            Publisher(store, job.model, schedule=settings.schedule, allow_nan=settings.allow_nan)
        )
        state = stack.enter_context(closing(TrainingState(states, settings.state, job, allow_nan=settings.allow_nan)))
        scalars = None if settings.tensorboard is None else stack.enter_context(closing(Scalars(settings.tensorboard)))
        state.restore()
        meter = Meter(job.steps_done(), time.monotonic())
        control.training_begins(
            Training(
                publisher=publisher,
                meter=meter,
                device=device,
                total_steps=settings.steps,
                steps_per_epoch=job.steps_per_epoch,
                state=state,
            )
        )
        _log.info("trainer ready: control %s, device %s, store %s", control.address, device, settings.store)
        loop = _Loop(
            job=job,
            publisher=publisher,
            state=state,
            meter=meter,
            screen=screen,
            scalars=scalars,
            last_step=settings.steps,
            save_every=settings.state_seconds,
        )
        try:
            loop.run(stop)
        finally:
            with suppress(OSError):  # the terminal was closed: training goes on to its end
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
    scalars: Scalars | None
    last_step: int | None
    save_every: float

    def run(self, stop: Stop) -> None:
        first = step = self.meter.step
        self._publish(partial(self.publisher.begin, step))
        now = time.monotonic()
        show_at, draw_at, save_at = now + self.screen.every, now + EVERY, now + self.save_every
        while not stop.requested and (self.last_step is None or step < self.last_step):
            loss = self.job.train_step()
            step += 1
            if step == first + 1:
                self.job.check(step, loss)
            self._publish(partial(self.publisher.publish_if_due, step, {"loss": loss}))
            now = time.monotonic()
            self.meter.advance(step, loss, now)
            if now >= show_at:
                self._show()
                show_at = now + self.screen.every
            if now >= draw_at:
                self._draw()
                draw_at = now + EVERY
            if now >= save_at and self.state.save(step):
                save_at = now + self.save_every
        self._show()
        self._draw()

    def finish(self) -> None:
        """Publish and save the last step, side by side."""
        step, loss = self.meter.step, self.meter.loss
        self.state.finish()
        self.state.save(step)
        version = self.publisher.finish(step, None if loss is None else {"loss": loss})
        self.state.finish(step)
        published = "nothing was published" if version is None else f"version {version.number} is the last published"
        _log.info("training stopped at step %d, %s", step, published)

    def _publish(self, publish: Callable[[], Version | None]) -> None:
        began = time.perf_counter()
        if publish() is not None:
            self.meter.stall = time.perf_counter() - began

    def _show(self) -> None:
        out_of = self.last_step or self.job.steps_per_epoch
        with suppress(OSError):  # as above
            self.screen.show(self.meter, self.publisher.status().published, out_of=out_of)

    def _draw(self) -> None:
        if self.scalars is not None:
            self.scalars.write(self.meter, self.publisher.status().published)
