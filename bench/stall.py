"""`python -m bench stall`: how long publishing holds training up, and how much slower steps are beside it."""

from __future__ import annotations

import gc
import random
import statistics
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from bench import arrays
from bench.options import SAVINGS
from bench.progress import Progress
from bench.savings import PEERS, Ours
from bench.settings import NOT_ASKED_FOR, Settings
from bench.training import Saving, Training, Window
from paramsync.errors import SettingsError
from paramsync.publishing.schedule import PublishSchedule

SCHEDULES = {
    "every_second": PublishSchedule(every_seconds=1, at_start=False, at_end=False),
    "every_10_steps": PublishSchedule(every_steps=10, at_start=False, at_end=False),
}

_LEAST_STEPS = {"every_second": 1, "every_10_steps": 20}
_COPIES = 5


def run(settings: Settings, folder: Path) -> dict[str, Any]:
    """Every size at both paces; at the top, the figures of the size asked for, at one publication a second."""
    device = _choose(settings.device)
    cases: dict[str, dict[str, Any]] = {}
    absent = {name: NOT_ASKED_FOR for name in SAVINGS if name not in settings.peers}
    with Progress() as progress:
        for size in settings.sizes:
            name = f"{size / 1e6:g} MB"
            progress.say(f"{name}: making the network")
            training = Training(size, settings.tensors)
            gc.collect()
            gc.freeze()  # a model has more objects than the collector should look at while steps are timed
            try:
                for pace in SCHEDULES:
                    progress.say(f"{name}, {pace}: preparing")
                    place = folder / f"{size}-{pace}"
                    case = _Case(training, place, pace, settings)
                    cases[f"mb_{size / 1e6:g}_{pace}"] = case.measure(partial(progress.track, count=settings.runs))
                    absent |= case.absent
            finally:
                gc.unfreeze()
            del training, case
    top = cases[f"mb_{settings.bytes / 1e6:g}_every_second"]
    return {
        "benchmark": settings.benchmark,
        "device": device,
        **{key: value for key, value in top.items() if not key.startswith("samples")},
        "cases": cases,
        "absent": absent,
    }


def _choose(device: str) -> str:
    """What is trained on, in words. Raises SettingsError where there is no GPU."""
    gpus = tf.config.list_physical_devices("GPU")
    if device == "cpu":
        tf.config.set_visible_devices([], "GPU")
        return "CPU"
    if not gpus:
        raise SettingsError("--device gpu: expected a GPU that TensorFlow can use, found none; use --device cpu")
    return f"GPU ({tf.config.experimental.get_device_details(gpus[0]).get('device_name', 'unknown')})"


@dataclass(slots=True)
class _Found:
    """What one way to save came to: its windows, and by how much each was slower than training alone around it."""

    windows: list[Window] = field(default_factory=list)
    inflations: list[float] = field(default_factory=list)

    @property
    def stalls_ms(self) -> list[float]:
        return [held * 1000 for window in self.windows for held in window.stalls]


class _Case:
    """One size at one pace."""

    def __init__(self, training: Training, folder: Path, pace: str, settings: Settings) -> None:
        self.absent: dict[str, str] = {}
        self._training = training
        self._folder = folder
        self._schedule = SCHEDULES[pace]
        self._window = partial(training.window, seconds=settings.seconds, steps=_LEAST_STEPS[pace])
        self._settings = settings

    def measure(self, track: Callable[[range], Any]) -> dict[str, Any]:
        """In each round, everyone saves during a window of training, in an order drawn for it, between two without."""
        training = self._training
        found: dict[str, _Found] = {}
        quiet: list[Window] = []
        copy = arrays.memcpy(training.values)
        copies: list[float] = []
        order = random.Random(0)
        with ExitStack() as stack:
            savings = self._savings(stack)
            for _ in track(range(self._settings.runs)):
                copies += [_time(copy) for _ in range(_COPIES)]
                gc.collect()
                before = self._window()
                quiet.append(before)
                for name in order.sample(list(savings), len(savings)):
                    try:
                        during = self._window(saving=savings[name])
                        savings[name].wait()
                    except Exception as error:  # a peer that fails is reported, and ours is measured
                        if name == "ours":
                            raise
                        self.absent[name] = f"failed: {type(error).__name__}: {error}"
                        del savings[name]
                        found.pop(name, None)
                        continue
                    gc.collect()
                    after = self._window()
                    alone = (before.step_ms + after.step_ms) / 2
                    one = found.setdefault(name, _Found())
                    one.windows.append(during)
                    one.inflations.append((during.step_ms / alone - 1) * 100)
                    quiet.append(after)
                    before = after
        return self._figures(found, quiet, copies)

    def _savings(self, stack: ExitStack) -> dict[str, Saving]:
        kinds: dict[str, Callable[[Training, Path, PublishSchedule], Saving]] = {"ours": Ours}
        kinds |= {name: PEERS[name] for name in self._settings.peers}
        savings: dict[str, Saving] = {}
        for name, kind in kinds.items():
            try:
                one = kind(self._training, self._folder / name, self._schedule)
                stack.callback(one.close)
                savings[name] = one
                self._window(saving=one)  # the first save of all is another matter
                one.wait()
            except Exception as error:
                if name == "ours":
                    raise
                missing = isinstance(error, ImportError)
                self.absent[name] = f"not installed: {error}" if missing else f"failed: {type(error).__name__}: {error}"
                savings.pop(name, None)
        return savings

    def _figures(self, found: Mapping[str, _Found], quiet: list[Window], copies: list[float]) -> dict[str, Any]:
        ours = found["ours"]
        memcpy = statistics.median(copies)
        published, trained = len(ours.stalls_ms), sum(window.seconds for window in ours.windows)
        share = memcpy * published / (trained * 1000) * 100
        inflation = statistics.median(ours.inflations)
        figures: dict[str, Any] = {
            "bytes": arrays.size(self._training.values()),
            "variables": len(self._training.variables),
            "step_ms": statistics.median(window.step_ms for window in quiet),
            "memcpy_ms": memcpy,
            "copy_share_pct": share,
            "ours_inflation_beyond_copy_pct": inflation - share,
        }
        names = ("ours", *SAVINGS)
        for name in names:
            one = found.get(name)
            p50, p99 = np.percentile(one.stalls_ms, (50, 99)) if one else (None, None)
            figures |= {
                f"{name}_stall_ms_p50": None if p50 is None else float(p50),
                f"{name}_stall_ms_p99": None if p99 is None else float(p99),
                f"{name}_inflation_pct": statistics.median(one.inflations) if one else None,
            }
        for name in SAVINGS:
            p50 = figures[f"{name}_stall_ms_p50"]
            figures[f"{name}_over_ours"] = None if p50 is None else p50 / figures["ours_stall_ms_p50"]
        figures["samples_ms"] = {"quiet": [window.step_ms for window in quiet], "memcpy": copies}
        for name, one in found.items():
            figures["samples_ms"] |= {name: [one.step_ms for one in one.windows], f"{name}_stall": one.stalls_ms}
        figures["samples_pct"] = {name: one.inflations for name, one in found.items()}
        return figures


def _time(what: Callable[[], None]) -> float:
    """Milliseconds."""
    started = time.perf_counter()
    what()
    return (time.perf_counter() - started) * 1000
