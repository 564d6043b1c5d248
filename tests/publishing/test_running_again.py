"""A training script that runs again does not replace the published model with an untrained one."""

from __future__ import annotations

import itertools
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from paramsync.keras import PublishCallback
from paramsync.publishing.publisher import Publisher
from paramsync.publishing.schedule import PublishSchedule
from paramsync.store.store import Store
from tests.publishing.test_keras import Unhurried, fit, network, steps_of
from tests.support.programs import PATIENCE, ROOT, eventually
from tests.support.training import Counters, latest

RARELY = PublishSchedule(every_steps=1000)


def test_a_fit_that_runs_again_leaves_what_is_published_until_it_has_trained(tmp_path: Path) -> None:
    fit(network(keras.Input((4,))), PublishCallback(tmp_path, every_seconds=3600, on_error="raise"))
    trained = latest(tmp_path)
    untrained = network(keras.Input((4,)))
    seen = []

    class Look(keras.callbacks.Callback):
        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            seen.append(latest(tmp_path).number)

    fit(untrained, PublishCallback(tmp_path), callbacks=[Unhurried(tmp_path, every_steps=6, keep=100), Look()])
    assert seen[:5] == [trained.number] * 5
    assert steps_of(tmp_path) == [0, 16, 6, 12, 16]


def test_weights_restored_by_a_callback_that_comes_later_are_the_start(tmp_path: Path) -> None:
    class Restore(keras.callbacks.Callback):
        def on_train_begin(self, logs: Any = None) -> None:
            self.model.set_weights([np.full(one.shape, 7.0, np.float32) for one in self.model.get_weights()])

    publishing = Unhurried(tmp_path, every_seconds=3600, keep=100, on_error="raise")
    fit(network(keras.Input((4,))), publishing, callbacks=[publishing, Restore()])
    first = Store(tmp_path).versions()[0]
    found = tf.train.load_checkpoint(str(tmp_path / first.prefix))
    values = {float(one) for name in found.get_variable_to_shape_map() if "VARIABLE_VALUE" in name
              for one in np.unique(found.get_tensor(name))}  # fmt: skip
    assert values == {7.0}


@pytest.mark.parametrize(("steps", "published"), [((), [5]), ((6,), [5, 6])])
def test_a_loop_that_says_where_it_begins_publishes_what_came_after(
    tmp_path: Path, steps: tuple[int, ...], published: list[int]
) -> None:
    with Publisher(tmp_path, Counters(), schedule=RARELY) as publisher:
        publisher.begin(5)
    with Publisher(tmp_path, Counters(), schedule=RARELY) as publisher:
        assert publisher.begin(5) is None
        for step in steps:
            publisher.publish_if_due(step)
    assert steps_of(tmp_path) == published


def documented(store: Path, backup: Path) -> str:
    """The documentation's script, changed to publish every step."""
    scripts: list[str] = re.findall(
        r"```python\n(.*?)```", (ROOT / "docs" / "train-with-keras.md").read_text(), re.DOTALL
    )
    (script,) = [one for one in scripts if "BackupAndRestore" in one]
    for text, other in (
        ("/dev/shm/line", str(store)),
        ("/var/tmp/line", str(backup)),
        ("every_seconds=1", 'every_steps=1, keep=1000, on_error="raise"'),
        ("callbacks=[", "verbose=0, callbacks=["),
    ):
        assert script.count(text) == 1
        script = script.replace(text, other)
    return script


def run_until(step: int, store: Path, backup: Path, log: Path) -> None:
    """Run the script until it has published that step, and kill it."""
    with log.open("wb") as output:
        script = subprocess.Popen(
            [sys.executable, "-c", documented(store, backup)],
            cwd=ROOT,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=os.environ | {"TF_CPP_MIN_LOG_LEVEL": "2", "CUDA_VISIBLE_DEVICES": "-1"},
        )

    def done() -> bool:
        assert script.poll() is None, log.read_text()
        newest = Store(store).latest()
        return newest is not None and newest.step >= step

    try:
        eventually(done, lambda: f"step {step} in {log.read_text()}")
    finally:
        script.send_signal(signal.SIGKILL)
        script.wait(PATIENCE)


@pytest.mark.promise
@pytest.mark.slow
def test_a_fit_that_is_killed_and_run_again_goes_on_and_publishes_no_untrained_model(tmp_path: Path) -> None:
    store, backup = tmp_path / "store", tmp_path / "backup"
    run_until(30, store, backup, tmp_path / "first.log")
    before = Store(store).versions()
    assert before[0].step == 0  # the store was empty: what had learnt nothing was published
    run_until(before[-1].step + 30, store, backup, tmp_path / "second.log")
    both = Store(store).versions()
    after = both[len(before) :]
    assert both[: len(before)] == before
    assert all(one.number > before[-1].number for one in after)
    assert after[0].step > before[-1].step - 8  # where the last whole epoch, of four steps, or the one before had ended
    assert all(earlier.step < later.step for earlier, later in itertools.pairwise(after))
