"""PublishHook in monitored sessions: their start, schedule and end, also where one is lost or made again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import tensorflow as tf

from paramsync.errors import SettingsError
from paramsync.session import PublishHook
from paramsync.store.store import Store
from tests.support.sessions import Net, kinds

v1 = tf.compat.v1


def monitored(hook: PublishHook, train: tf.Operation, steps: int, **arguments: Any) -> None:
    stop = v1.train.StopAtStepHook(last_step=steps)
    arguments = {"log_step_count_steps": None, "save_summaries_steps": None, "save_summaries_secs": None} | arguments
    with v1.train.MonitoredTrainingSession(chief_only_hooks=[hook], hooks=[stop], **arguments) as session:
        while not session.should_stop():
            session.run(train)


def published(store: Path) -> list[int]:
    return [version.step for version in Store(store).versions()]


class Unhurried(PublishHook):
    """Waits for the publication of its start, and of every `patient`-th run, so that none overtakes them."""

    patient = 1

    def after_create_session(self, session: Any, coord: Any) -> None:
        super().after_create_session(session, coord)
        self._runs = 0
        assert self._made.flush(60)

    def after_run(self, run_context: Any, run_values: Any) -> None:
        super().after_run(run_context, run_values)
        self._runs += 1
        assert self._runs % self.patient or self._made.flush(60)


@kinds
def test_a_monitored_session_publishes_its_start_its_schedule_and_its_end(tmp_path: Path, use_resource: bool) -> None:
    with tf.Graph().as_default():
        net = Net(use_resource=use_resource)
        hook = Unhurried(
            tmp_path, inputs=net.x, outputs=net.y, every_steps=4, keep=100, metrics={"loss": "loss:0"}, on_error="raise"
        )
        monitored(hook, net.train, 10)
    assert published(tmp_path) == [0, 4, 8, 10]
    metrics = [version.metrics for version in Store(tmp_path).versions()]
    assert [set(one) for one in metrics] == [set(), {"loss"}, {"loss"}, set()]
    assert 0 < metrics[2]["loss"] < 1


def test_a_session_that_is_lost_and_made_again_goes_on_publishing(tmp_path: Path) -> None:
    class Lost(v1.train.SessionRunHook):  # type: ignore[name-defined]
        """Takes the session away once, as a preempted worker does."""

        def __init__(self) -> None:
            self.at = 0

        def before_run(self, run_context: Any) -> None:
            self.at += 1
            if self.at == 7:
                raise tf.errors.AbortedError(None, None, "preempted")

    store = tmp_path / "store"
    with tf.Graph().as_default():
        net = Net()
        hook = Unhurried(store, inputs=net.x, outputs=net.y, every_steps=2, keep=100, on_error="raise")
        arguments = {"checkpoint_dir": str(tmp_path / "checkpoints"), "save_checkpoint_steps": 1}
        with v1.train.MonitoredTrainingSession(
            chief_only_hooks=[hook, Lost()], log_step_count_steps=None, **arguments
        ) as session:
            for _ in range(12):
                session.run(net.train)
    assert published(store) == [0, 2, 4, 6, 8, 10, 12]


def test_a_graph_without_a_global_step_is_refused(tmp_path: Path) -> None:
    with tf.Graph().as_default():
        x = v1.placeholder(tf.float32, [2])
        hook = PublishHook(tmp_path, inputs=x, outputs=x * v1.get_variable("v", [2]))
        with pytest.raises(SettingsError, match="no global step"):
            v1.train.MonitoredTrainingSession(chief_only_hooks=[hook])
