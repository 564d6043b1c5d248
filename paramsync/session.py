"""SessionPublisher and PublishHook: for training in sessions of TensorFlow 1."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paramsync.errors import SettingsError
from paramsync.program.packages import with_tensorflow
from paramsync.publishing.metrics import Metrics
from paramsync.publishing.options import PublishOptions, check_options
from paramsync.publishing.publisher import Publisher
from paramsync.publishing.schedule import PublishSchedule
from paramsync.version import Version

with with_tensorflow("paramsync.session"):
    import tensorflow as tf

    from paramsync.publishing.session_values import Averages, SessionValues, tensors

if TYPE_CHECKING:
    from typing_extensions import Unpack

v1 = tf.compat.v1


class SessionPublisher(Publisher):
    """A Publisher for a program that trains in a session.

        publisher = SessionPublisher("/dev/shm/net", x, y, schedule=PublishSchedule(every_steps=100))
        with tf.compat.v1.Session() as session, publisher:
            for step in range(steps):
                session.run(train)
                publisher.publish_session_if_due(session, step)

    What is published lies between the tensors `inputs` and `outputs`: one, several, or by the name that callers say;
    names of tensors in the default graph do as well. It is made before the graph is finalised. With `saver`, versions
    hold all that this Saver saves, under its names, so that `saver.restore(session, prefix)` takes them; without, only
    what lies between the tensors, by the variables' names, as `tf.compat.v1.train.Saver(those_variables)` restores it.
    `averages`, such as `tf.train.ExponentialMovingAverage.average`, gives the variable that is published in place of
    another. Everything else is as Publisher has it; call `flush` or leave the block before the session ends.

    Resource variables are pinned in microseconds each, whatever their size; reference variables, which TensorFlow 1
    makes where nothing is said, are copied on the thread that trains (see SessionValues). Where several workers update
    the variables without waiting for each other, what is pinned is of no one step.
    """

    def __init__(
        self,
        store: str | Path,
        inputs: Any,
        outputs: Any,
        *,
        schedule: PublishSchedule | None = None,
        saver: Any = None,
        averages: Averages | None = None,
        **options: Unpack[PublishOptions],
    ) -> None:
        check_options(options)
        allow_ops = options.get("allow_ops", ())
        self._values = SessionValues(inputs, outputs, saver=saver, averages=averages, allow_ops=allow_ops)
        super().__init__(store, self._values, schedule=schedule, **options)

    def begin(self, session: Any, step: int) -> Version | None:  # type: ignore[override]  # a session comes first
        """Training begins at this step: publish it where the schedule wants the start; see `Publisher.begin`."""
        return super().begin(step, values=session)

    def publish_session_if_due(self, session: Any, step: int, metrics: Metrics | None = None) -> Version | None:
        """Publish this step where that is due; see `Publisher.publish_if_due`."""
        return self.publish_if_due(step, metrics, values=session)

    def publish_session(
        self, session: Any, step: int, *, wait: bool = False, metrics: Metrics | None = None
    ) -> Version:
        """Publish this step now; see `Publisher.publish`."""
        return self.publish(step, wait=wait, metrics=metrics, values=session)

    def finish(  # type: ignore[override]  # a session comes first
        self, session: Any, step: int, metrics: Metrics | None = None
    ) -> Version | None:
        """Training is over: publish its last step, and wait until it is written; see `Publisher.finish`."""
        version = self._finish(step, metrics, session)
        self._values.tidy()
        return version

    def _release(self, *, finished: bool = True) -> None:
        super()._release(finished=finished)
        self._values.tidy()


class PublishHook(tf.compat.v1.train.SessionRunHook):
    """Publishes what a MonitoredTrainingSession trains: at the start, whenever due, and at the end.

        hook = PublishHook("/dev/shm/net", inputs={"x": x}, outputs={"y": y}, every_steps=100)
        with tf.compat.v1.train.MonitoredTrainingSession(chief_only_hooks=[hook]) as session:
            while not session.should_stop():
                session.run(train)

    Steps are those of the graph's global step. Where neither steps nor seconds are given, every second. `metrics` are
    scalar tensors, or their names, by the name that versions have them under: they are computed within the run that is
    published, which has to feed what they need. The start is published where the store has no version yet, or where
    `at_start` says so, and with `publish_if` what that lets through (see Publisher), which the end, without metrics,
    never is. Everything else is as SessionPublisher has it.

    One process publishes: give it as one of `chief_only_hooks`. Training that ends in an error leaves the store locked
    until the hook is used again, or the process ends. Raises what SessionPublisher does when the session is made.
    """

    def __init__(
        self,
        store: str | Path,
        *,
        inputs: Any,
        outputs: Any,
        every_steps: int | None = None,
        every_seconds: float | None = None,
        saver: Any = None,
        averages: Averages | None = None,
        metrics: Mapping[str, Any] | None = None,
        at_start: bool | None = None,
        **options: Unpack[PublishOptions],
    ) -> None:
        check_options(options)
        if every_steps is None and every_seconds is None:
            every_seconds = 1.0
        schedule = PublishSchedule(every_steps=every_steps, every_seconds=every_seconds, at_start=at_start)
        self._make = partial(
            SessionPublisher,
            store,
            inputs,
            outputs,
            schedule=schedule,
            saver=saver,
            averages=averages,
            **options,
        )
        self._metrics = dict(metrics or {})
        self._publisher: SessionPublisher | None = None

    @property
    def control(self) -> str | None:
        """Where an operator is answered now; None outside sessions, and without `control_port`."""
        return None if self._publisher is None else self._publisher.control

    def begin(self) -> None:
        """Adds what is needed to the graph, which is finalised after this."""
        self._release()  # of training that ended in an error
        self._step = v1.train.get_global_step()
        if self._step is None:
            raise SettingsError(
                "the graph has no global step: tf.compat.v1.train.get_or_create_global_step() makes one"
            )
        self._fetched = {name: tensors(metric) for name, metric in self._metrics.items()}
        self._publisher = self._make()
        self._is_due = False

    def after_create_session(self, session: Any, coord: Any) -> None:
        self._made.begin(session, self._counted(session))

    def before_run(self, run_context: Any) -> Any:
        self._is_due = self._made.is_due(self._next)
        return v1.train.SessionRunArgs({"step": self._step, "metrics": self._fetched if self._is_due else {}})

    def after_run(self, run_context: Any, run_values: Any) -> None:
        if self._is_due:  # decided before, for metrics are of the run that is published
            session = run_context.session
            self._made.publish_session_if_due(session, self._counted(session), run_values.results["metrics"])
        else:  # the step was read before or after this run's update, nobody knows
            self._next = int(run_values.results["step"]) + 2

    def end(self, session: Any) -> None:
        try:
            self._made.finish(session, int(session.run(self._step)))
        finally:
            self._release()

    def _counted(self, session: Any) -> int:
        step = int(session.run(self._step))
        self._next = step + 1  # the highest that the next run may end with
        return step

    @property
    def _made(self) -> SessionPublisher:
        assert self._publisher is not None  # begin comes first
        return self._publisher

    def _release(self) -> None:
        publisher, self._publisher = self._publisher, None
        if publisher is not None:
            publisher.close()
