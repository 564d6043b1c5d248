"""python -m tests.project.ways: the modules on the way of a version, and on that of a Predict.

Counted by tracing every thread of one process, so that what is never run on the way does not count.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

import grpc
import numpy as np
import tensorflow as tf
from tensorflow_serving.apis import prediction_service_pb2_grpc

from paramsync import Follower, Publisher, PublishSchedule, Replica
from paramsync.status import EventKind
from tests.support.in_process import InProcess
from tests.support.programs import ROOT
from tests.support.published import Publisher as StorePublisher
from tests.support.running import request

_PRODUCT = ("paramsync", "inferencer", "trainer")
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
            self.stop()

    def stop(self) -> None:
        self._on = False

    def _called(self, frame: FrameType, event: str, _argument: Any) -> None:
        if self._on and event == "call":
            file = Path(frame.f_code.co_filename)
            if file.is_relative_to(ROOT) and file.relative_to(ROOT).parts[0] in _PRODUCT:
                self.modules.add(str(file.relative_to(ROOT)))


def of_a_version(trace: Trace, store: Path) -> dict[str, int]:
    """Modules with their lines, from `publish` to the swap, in one's own program."""
    model = tf.keras.Sequential([tf.keras.Input((8,)), tf.keras.layers.Dense(4)])
    with Publisher(store, model, schedule=PublishSchedule(every_steps=1)) as publisher:
        publisher.publish(1)
        publisher.flush()
        with Follower(Replica("m", store)) as follower:
            follower.looked.result(_SECONDS)  # its round is over: nothing of it is traced
            swapped = threading.Event()

            def end() -> None:
                trace.stop()
                swapped.set()

            def publish_and_swap() -> None:
                publisher.publish(2)
                publisher.flush()
                assert swapped.wait(_SECONDS)

            follower.subscribe(end, [EventKind.SWAPPED])
            trace.during(publish_and_swap)
    return _lines(trace.modules)


def of_a_predict(trace: Trace, store: Path) -> dict[str, int]:
    """Modules with their lines, of one call of Predict, from the port to the answer."""
    publisher = StorePublisher(store)
    running = InProcess(store)
    try:
        running.restore(publisher.publish(1), store.name)
        address, options = f"127.0.0.1:{running.port}", [("grpc.http2.bdp_probe", 0)]  # a client pings by chance
        with grpc.insecure_channel(address, options) as channel:
            service = prediction_service_pb2_grpc.PredictionServiceStub(channel)

            def predict() -> None:
                service.Predict(request(store.name, x=np.ones((1, 2), np.float32)))
                running.call(partial(asyncio.sleep, 0))  # the server counts the call after it has sent the answer

            predict()
            trace.during(predict)
    finally:
        running.close()
        publisher.close()
    return _lines(trace.modules)


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
