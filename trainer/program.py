"""Runs training: checks all settings first, then trains, publishes steps that are due, and saves states at intervals.

A signal ends training in the same way as the last step does.
"""

from __future__ import annotations

import logging
import os
import time
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from paramsync.errors import SettingsError
from paramsync.program import traces
from paramsync.program.process import Stop, raise_descriptor_limit
from paramsync.program.settings import service_manager
from paramsync.publishing.control_port import ControlPort, Training
from paramsync.publishing.job import Job, JobSettings
from paramsync.publishing.publisher import Publisher
from paramsync.publishing.write_behind import device_name
from paramsync.rpc.access import Access
from paramsync.rpc.tls import ServerTls
from paramsync.store.commit import StoreWriter
from paramsync.store.state_file import Retention

from . import job_source
from .metrics import MetricsPort, TrainerMetrics
from .screen import TrainingScreen
from .settings import Settings

if TYPE_CHECKING:
    from paramsync.remote.outgoing import Outgoing

    from .scalars import Scalars
    from .state import TrainingState

STATES = 2  # how many saved states are kept; two, because the newest may be unreadable
_DRAW_SECONDS = 1.0  # seconds between two points for TensorBoard

_log = logging.getLogger("paramsync.trainer")


def run(settings: Settings, *, stop: Stop) -> None:
    """Train from the saved state, if any, until the last step or a signal.

    Raises ParamsyncError if training cannot begin. Raises SettingsError after the first step if the job did not count
    it, or returned no loss. Errors of the job's own step are passed on.
    """
    raise_descriptor_limit()
    manager = service_manager()
    screen = TrainingScreen(settings.log_format)
    screen.take_logs()
    for directory in (settings.store, settings.state, settings.tensorboard):
        if isinstance(directory, Path):
            _make_writable(directory)
    function = job_source.find(settings.job)
    with ExitStack() as stack:
        enter = stack.enter_context
        enter(traces.exported("paramsync-trainer"))
        store = _open_store(settings, stack)
        states = enter(StoreWriter(settings.state, keep=STATES, durable=settings.durable))
        access, tls = _access(settings), None if settings.tls is None else ServerTls(settings.tls)
        host, port = settings.host, settings.control_port
        address = None if isinstance(store, StoreWriter) else store.address
        control = enter(closing(ControlPort(host, port, store=store.path, address=address, access=access, tls=tls)))
        if settings.metrics_port is not None:
            registry = TrainerMetrics(lambda: control.training).registry
            metrics = enter(closing(MetricsPort(host, settings.metrics_port, registry, access=access, tls=tls)))
            _log.info("metrics by HTTP: %s", metrics.address)
        given = JobSettings(seed=settings.seed, data=settings.data, held_out=settings.held_out)
        job = job_source.make(settings.job, function, given)
        from .scalars import Scalars  # here, because both import TensorFlow
        from .state import TrainingState

        device = device_name()
        stop.arm()
        state = enter(closing(TrainingState(states, settings.state, job, allow_nan=settings.allow_nan)))
        state.restore()
        scalars = enter(closing(Scalars(settings.tensorboard)))
        publisher = enter(
            Publisher(
                store,  # the Publisher is made last, because it ends any other publisher of the same bucket
                job.model,
                durable=settings.durable,
                signing_key=settings.signing_key,
                schedule=settings.schedule,
                allow_nan=settings.allow_nan,
                allow_ops=settings.allow_ops,
                publish_if=settings.publish_if,
                serve_after=settings.serve_after,
            )
        )
        publisher.meter.first = publisher.meter.step = job.steps_done()
        total, epoch = settings.steps, job.steps_per_epoch
        control.training_begins(
            Training(publisher=publisher, device=device, total_steps=total, steps_per_epoch=epoch, state=state)
        )
        _log.info("trainer ready: control %s, device %s, store %s", control.address, device, settings.store)
        manager.ready(f"control {control.address}, device {device}, store {settings.store}")
        loop = _Loop(settings, job, publisher, state, screen, scalars)
        try:
            loop.run(stop)
        finally:
            with suppress(OSError):  # the terminal may be closed; training still ends normally
                screen.close()
        control.training_ends()
        manager.stopping("publishing and saving the last step")
        loop.finish()


def _open_store(settings: Settings, stack: ExitStack) -> StoreWriter | Outgoing:
    """Open the store, or the connection to a bucket, which is not taken over yet. The stack closes the result."""
    if isinstance(settings.store, str):
        from paramsync.remote.outgoing import Outgoing  # here, because most trainers have no bucket

        return stack.enter_context(closing(Outgoing(settings.store, keep=settings.keep)))
    keep = Retention(keep=settings.keep, keep_for=settings.keep_for, keep_every=settings.keep_every)
    writer = StoreWriter(settings.store, keep=keep, durable=settings.durable, signing_key=settings.signing_key)
    return stack.enter_context(writer)


def _access(settings: Settings) -> Access:
    certificates = settings.tls is not None and settings.tls.client_ca is not None
    return Access(host=settings.host, tokens=settings.tokens, certificates=certificates, reads=settings.auth_reads)


def _make_writable(directory: Path) -> None:
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except FileExistsError as error:
        raise SettingsError(f"{directory} is a file; expected a directory, or a place for one") from error
    except OSError as error:
        raise SettingsError(f"{directory} cannot be made: {error.strerror}") from error
    if not os.access(directory, os.R_OK | os.W_OK | os.X_OK):
        raise SettingsError(f"{directory} cannot be read and written; check its owner and mode")


@dataclass(frozen=True)
class _Loop:
    settings: Settings
    job: Job
    publisher: Publisher
    state: TrainingState
    screen: TrainingScreen
    scalars: Scalars

    def run(self, stop: Stop) -> None:
        first = step = self.publisher.meter.step
        self.publisher.begin(step)
        last, save_seconds = self.settings.steps, self.settings.state_seconds
        now = time.monotonic()
        show_at, draw_at, save_at = now + self.screen.every, now + _DRAW_SECONDS, now + save_seconds
        while not stop.requested and (last is None or step < last):
            loss = self.job.train_step()
            step += 1
            if step == first + 1:
                self.job.check(step, loss)
            self.publisher.publish_if_due(step, {"loss": loss})
            now = time.monotonic()
            if now >= show_at:
                self._show()
                show_at = now + self.screen.every
            if now >= draw_at:
                self._draw()
                draw_at = now + _DRAW_SECONDS
            if now >= save_at and self.state.save(step):
                save_at = now + save_seconds
        self._show()
        self._draw()

    def finish(self) -> None:
        """Publish and save the last step at the same time."""
        step, loss = self.publisher.meter.step, self.publisher.meter.loss
        self.state.finish()
        self.state.save(step)
        version = self.publisher.finish(step, None if loss is None else {"loss": loss})
        self.state.finish(step)
        published = "nothing was published" if version is None else f"version {version.number} is the last published"
        number = None if version is None else version.number
        _log.info("training stopped at step %d, %s", step, published, extra={"step": step, "version": number})

    def _show(self) -> None:
        out_of = self.settings.steps or self.job.steps_per_epoch
        with suppress(OSError):  # the terminal may be closed
            self.screen.show(self.publisher.meter, self.publisher.status().published, out_of=out_of)

    def _draw(self) -> None:
        self.scalars.write(self.publisher.meter, self.publisher.status().published)
