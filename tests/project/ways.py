"""python -m tests.project.ways: the modules on the way of a version, and on that of a Predict.

Counted by tracing every thread of one process, so that what is never run on the way does not count.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import tensorflow as tf

from paramsync import Follower, Publisher, PublishSchedule, Replica
from paramsync.status import EventKind
from tests.support.programs import ROOT
from tests.support.published import Publisher as StorePublisher
from tests.support.running import SERVING, LocalRunning, request

_PRODUCT = ("paramsync", "inferencer", "trainer")
_PAUSE = threading.Event()
_SECONDS = 30.0


class Trace:
    """Which modules of the product run while it is on."""

    def __init__(self) -> None:
        self.modules: set[str] = set()
        self._on = False

    def install(self) -> None:
        """Trace this thread, and threads that are started later."""
        threading.setprofile(self._called)
        sys.setprofile(self._called)

    def uninstall(self) -> None:
        threading.setprofile(None)
        sys.setprofile(None)

    def during(self, act: Callable[[], Any]) -> None:
        self.modules.clear()
        self._on = True
        try:
            act()
        finally:
            self._on = False

    def _called(self, frame: FrameType, event: str, _argument: Any) -> None:
        if self._on and event == "call":
            file = Path(frame.f_code.co_filename)
            if file.is_relative_to(ROOT) and file.relative_to(ROOT).parts[0] in _PRODUCT:
                self.modules.add(str(file.relative_to(ROOT)))


def of_a_version(trace: Trace, store: Path) -> dict[str, int]:
    """Modules with their lines, from `publish` to the swap, in one's own program."""
    model = tf.keras.Sequential([tf.keras.Input((8,)), tf.keras.layers.Dense(4)])
    with (
        Publisher(store, model, schedule=PublishSchedule(every_steps=1)) as publisher,
        Follower(Replica("m", store)) as follower,
    ):
        swapped = threading.Event()
        follower.subscribe(swapped.set, [EventKind.SWAPPED])  # a status that is asked for is not on the way

        def publish_and_swap(step: int) -> None:
            swapped.clear()
            publisher.publish(step)
            publisher.flush()
            assert swapped.wait(_SECONDS)

        publish_and_swap(1)
        trace.during(lambda: publish_and_swap(2))
    return _lines(trace.modules)


def of_a_predict(trace: Trace, store: Path) -> dict[str, int]:
    """Modules with their lines, of one call of Predict, from the port to the answer."""
    publisher = StorePublisher(store)
    publisher.publish(1)
    running = LocalRunning(store)
    try:
        until(lambda: running.health(store.name) == SERVING)
        running.call(running.server.models.close)  # what follows the store meanwhile is not on the way

        def predict() -> None:
            running.prediction_service.Predict(request(store.name, x=np.ones((1, 2), np.float32)))
            running.call(partial(asyncio.sleep, 0))  # the server counts the call after it has sent the answer

        predict()
        trace.during(predict)
    finally:
        running.close()
        publisher.close()
    return _lines(trace.modules)


def until(holds: Callable[[], bool]) -> None:
    """Look until it holds, for half a minute at most."""
    end = time.monotonic() + _SECONDS
    while not holds():
        if time.monotonic() > end:
            raise TimeoutError
        _PAUSE.wait(0.005)


def _lines(modules: set[str]) -> dict[str, int]:
    return {module: len((ROOT / module).read_text().splitlines()) for module in sorted(modules)}


def ways(folder: Path) -> dict[str, dict[str, int]]:
    """Both ways: the modules of each, with their lines."""
    trace = Trace()
    trace.install()
    try:
        return {
            "from publish to swap": of_a_version(trace, folder / "version"),
            "from a Predict to its answer": of_a_predict(trace, folder / "predict"),
        }
    finally:
        trace.uninstall()


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        measured = ways(Path(folder))
    for name, modules in measured.items():
        sys.stdout.write(f"{name}: {len(modules)} modules, {sum(modules.values())} lines\n")
        sys.stdout.writelines(f"  {lines:5}  {module}\n" for module, lines in modules.items())


if __name__ == "__main__":
    main()
