"""The training program up to its first step: what can be wrong is found as early as can be."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from paramsync.errors import SettingsError
from paramsync.program import stderr_filter
from paramsync.program.process import raise_descriptor_limit
from paramsync.publishing.control_port import ControlPort
from paramsync.publishing.job import JobSettings
from paramsync.publishing.write_behind import device_name
from paramsync.store.commit import StoreWriter

from . import job_source
from .metrics import MetricsPort, TrainerMetrics
from .screen import Screen
from .settings import Settings
from .stop import Stop

_log = logging.getLogger("paramsync.trainer")
STATES = 2  # training states that are kept: one may turn out to be unreadable


def run(settings: Settings, *, stop: Stop) -> None:
    """Train until the last step, or until told to stop. Raises ParamsyncError where it cannot begin."""
    raise_descriptor_limit()
    screen = Screen()
    screen.take_logs()
    for directory in (settings.store, settings.state, settings.tensorboard):
        if directory is not None:
            _make_writable(directory)
    with stderr_filter.left_out():  # a job's module may import TensorFlow
        function = job_source.find(settings.job)
    with (
        StoreWriter(settings.store, keep=settings.keep, durable=settings.durable) as store,
        StoreWriter(settings.state, keep=STATES, durable=settings.durable) as states,
        closing(ControlPort(settings.host, settings.control_port, store=settings.store)) as control,
        _metrics(settings, control) as metrics,
    ):
        given = JobSettings(seed=settings.seed, data=settings.data, held_out=settings.held_out)
        with stderr_filter.left_out():
            job = job_source.make(settings.job, function, given)
            from .loop import train

            device = device_name()
        if metrics is not None:
            _log.info("metrics by HTTP: %s", metrics.address)
        train(settings, job, store=store, states=states, device=device, control=control, screen=screen, stop=stop)


@contextmanager
def _metrics(settings: Settings, control: ControlPort) -> Iterator[MetricsPort | None]:
    if settings.metrics_port is None:
        yield None
        return
    exposition = TrainerMetrics(lambda: control.training)
    with closing(MetricsPort(settings.host, settings.metrics_port, exposition.text)) as port:
        yield port


def _make_writable(directory: Path) -> None:
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except FileExistsError as error:
        raise SettingsError(f"{directory} is a file; expected a directory, or a place for one") from error
    except OSError as error:
        raise SettingsError(f"{directory} cannot be made: {error.strerror}") from error
    if not os.access(directory, os.R_OK | os.W_OK | os.X_OK):
        raise SettingsError(f"{directory} cannot be read and written; check its owner and mode")
