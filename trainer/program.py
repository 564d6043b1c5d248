"""The training program up to its first step: what can be wrong is found before TensorFlow is imported."""

from __future__ import annotations

import logging
import os
from contextlib import closing
from pathlib import Path

from paramsync import noise
from paramsync.errors import SettingsError
from paramsync.writer import StoreWriter
from trainer.control import Control
from trainer.jobs import examples
from trainer.screen import Screen
from trainer.settings import Settings
from trainer.stop import Stop

_log = logging.getLogger("paramsync.trainer")


def run(settings: Settings, *, stop: Stop) -> None:
    """Train until the last step, or until told to stop. Raises ParamsyncError where it cannot begin."""
    screen = Screen()
    screen.take_logs()
    _make_writable(settings.store)
    _make_writable(settings.state)
    learnt, held_out = examples.drawn(seed=settings.seed) if settings.data is None else examples.read(settings.data)
    with (
        StoreWriter(settings.store, keep=settings.keep, durable=settings.durable) as store,
        closing(Control(settings.host, settings.control_port, store=settings.store)) as control,
    ):
        if settings.held_out is not None:
            held_out.save(settings.held_out)
        _log.info("importing TensorFlow")
        with noise.left_out():
            from trainer import device
            from trainer.loop import train

            name = device.prepare()
        train(
            settings,
            store=store,
            device=name,
            examples=learnt,
            control=control,
            screen=screen,
            stop=stop,
        )


def _make_writable(directory: Path) -> None:
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except FileExistsError as error:
        raise SettingsError(f"{directory} is a file; expected a directory, or a place for one") from error
    except OSError as error:
        raise SettingsError(f"{directory} cannot be made: {error.strerror}") from error
    if not os.access(directory, os.R_OK | os.W_OK | os.X_OK):
        raise SettingsError(f"{directory} cannot be read and written; check its owner and mode")
