"""`python -m bench stall`: how long publishing blocks training, and how much slower steps get meanwhile."""

from __future__ import annotations

import gc
import random
import statistics
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from bench import arrays
from bench.progress import Progress
from bench.settings import Settings
from bench.training import PEERS, Ours, Saving, Training, Window
from paramsync.errors import SettingsError

Kinds = Mapping[str, Callable[[Training, Path], Saving]]

_COPIES = 5


def run(settings: Settings, folder: Path) -> dict[str, Any]:
    """Measure our way to publish, and the requested peers."""
    device = _choose(settings.device)
    kinds: Kinds = {"ours": Ours, **{name: PEERS[name] for name in settings.peers}}
    return {"device": device, **measure(settings, folder, kinds)}


def measure(settings: Settings, folder: Path, kinds: Kinds) -> dict[str, Any]:
    """Measure in rounds. Each way to save has a window of training, between two windows of training alone."""
    with Progress() as progress, ExitStack() as stack:
        progress.say("making the network")
        training = Training(settings.bytes, settings.tensors)
        gc.collect()
        gc.freeze()  # the collector must not look at a model's many objects while steps are timed
        stack.callback(gc.unfreeze)
        rounds = _Rounds(training, folder, settings, kinds, stack)
        for _ in progress.track(range(settings.runs), settings.runs):
            rounds.run()
    return rounds.figures()


def _choose(device: str) -> str:
    """Choose the device to train on, and return its name. Raises SettingsError if there is no GPU."""
    gpus = tf.config.list_physical_devices("GPU")
    if device == "cpu":
        tf.config.set_visible_devices([], "GPU")
        return "CPU"
    if not gpus:
        raise SettingsError("--device gpu: expected a GPU that TensorFlow can use, found none; use --device cpu")
    return f"GPU ({tf.config.experimental.get_device_details(gpus[0]).get('device_name', 'unknown')})"


@dataclass(slots=True)
class _Way:
    """A way to save, its windows, and by how many percent steps were slower in each window than before and after it."""

    saving: Saving
    windows: list[Window] = field(default_factory=list)
    inflations: list[float] = field(default_factory=list)

    @property
    def stalls_ms(self) -> list[float]:
        return [stall * 1000 for window in self.windows for stall in window.stalls]


class _Rounds:
    def __init__(self, training: Training, folder: Path, settings: Settings, kinds: Kinds, stack: ExitStack) -> None:
        self._training = training
        self._seconds = settings.seconds
        self._absent: dict[str, str] = {}
        self._order = random.Random(0)
        self._quiet: list[Window] = []
        self._copy = arrays.memcpy(training.values)
        self._copies: list[float] = []
        self._ways: dict[str, _Way] = {}
        for name, kind in kinds.items():
            saving = kind(training, folder / name)
            stack.callback(saving.close)
            self._ways[name] = _Way(saving)
            self._window(name)  # not counted: the first save is slower

    def run(self) -> None:
        self._copies += [_time(self._copy) for _ in range(_COPIES)]
        gc.collect()
        before = self._training.window(seconds=self._seconds)
        self._quiet.append(before)
        for name in self._order.sample(list(self._ways), len(self._ways)):
            during = self._window(name)
            if during is None:
                continue
            gc.collect()
            after = self._training.window(seconds=self._seconds)
            alone = (before.step_ms + after.step_ms) / 2
            way = self._ways[name]
            way.windows.append(during)
            way.inflations.append((during.step_ms / alone - 1) * 100)
            self._quiet.append(after)
            before = after

    def _window(self, name: str) -> Window | None:
        """Train while saving in this way. If a peer fails, leaves it out from then on and returns None."""
        saving = self._ways[name].saving
        try:
            window = self._training.window(seconds=self._seconds, saving=saving)
            saving.wait()
        except Exception as error:  # a peer that fails is reported, and does not end the benchmark
            if name == "ours":
                raise
            self._absent[name] = f"failed: {type(error).__name__}: {error}"
            del self._ways[name]
            return None
        return window

    def figures(self) -> dict[str, Any]:
        ours = self._ways["ours"]
        memcpy = statistics.median(self._copies)
        trained = sum(window.seconds for window in ours.windows)
        share = memcpy * len(ours.stalls_ms) / (trained * 1000) * 100
        figures: dict[str, Any] = {
            "bytes": arrays.size(self._training.values()),
            "variables": len(self._training.variables),
            "step_ms": statistics.median(window.step_ms for window in self._quiet),
            "memcpy_ms": memcpy,
            "copy_share_pct": share,
            "ours_inflation_beyond_copy_pct": statistics.median(ours.inflations) - share,
        }
        samples = {"quiet": [window.step_ms for window in self._quiet], "memcpy": self._copies}
        for name, way in self._ways.items():
            p50, p99 = np.percentile(way.stalls_ms, (50, 99))
            figures[f"{name}_stall_ms_p50"], figures[f"{name}_stall_ms_p99"] = float(p50), float(p99)
            figures[f"{name}_inflation_pct"] = statistics.median(way.inflations)
            if name != "ours":
                figures[f"{name}_over_ours"] = float(p50) / figures["ours_stall_ms_p50"]
            samples |= {name: [window.step_ms for window in way.windows], f"{name}_stall": way.stalls_ms}
        inflations = {name: way.inflations for name, way in self._ways.items()}
        return figures | {"samples_ms": samples, "samples_pct": inflations, "absent": self._absent}


def _time(work: Callable[[], None]) -> float:
    """Return the milliseconds that the work takes."""
    started = time.perf_counter()
    work()
    return (time.perf_counter() - started) * 1000
