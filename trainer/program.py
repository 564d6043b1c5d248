"""The training program up to its first step: what can be wrong is found as early as can be."""

from __future__ import annotations

import os
from contextlib import closing
from pathlib import Path

from paramsync import noise
from paramsync.errors import CorruptCheckpointError, SettingsError
from paramsync.writer import StoreWriter
from trainer import job_source
from trainer.control import Control
from trainer.job import JobSettings
from trainer.screen import Screen
from trainer.settings import Settings
from trainer.stop import Stop

STATES = 2  # training states that are kept: one may turn out to be unreadable


def run(settings: Settings, *, stop: Stop) -> None:
    """Train until the last step, or until told to stop. Raises ParamsyncError where it cannot begin."""
    screen = Screen()
    screen.take_logs()
    for directory in (settings.store, settings.state, settings.tensorboard):
        if directory is not None:
            _make_writable(directory)
    with noise.left_out():  # a job's module may import TensorFlow
        function = job_source.find(settings.job)
    with (
        StoreWriter(settings.store, keep=settings.keep, durable=settings.durable) as store,
        _states(settings) as states,
        closing(Control(settings.host, settings.control_port, store=settings.store)) as control,
    ):
        given = JobSettings(seed=settings.seed, data=settings.data, held_out=settings.held_out)
        with noise.left_out():
            job = job_source.make(settings.job, function, given)
            from trainer import device
            from trainer.loop import train

            name = device.name()
        train(settings, job, store=store, states=states, device=name, control=control, screen=screen, stop=stop)


def _states(settings: Settings) -> StoreWriter:
    try:
        return StoreWriter(settings.state, keep=STATES, durable=settings.durable)
    except CorruptCheckpointError as error:
        problem = f"{error}; remove {settings.state} to begin anew, or give another --state"
        raise SettingsError(problem) from error


def _make_writable(directory: Path) -> None:
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except FileExistsError as error:
        raise SettingsError(f"{directory} is a file; expected a directory, or a place for one") from error
    except OSError as error:
        raise SettingsError(f"{directory} cannot be made: {error.strerror}") from error
    if not os.access(directory, os.R_OK | os.W_OK | os.X_OK):
        raise SettingsError(f"{directory} cannot be read and written; check its owner and mode")
