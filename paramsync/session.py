"""SessionPublisher and PublishHook: publish from sessions of TensorFlow 1."""

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

    The published graph computes the tensors `outputs` from `inputs`. Each is one tensor, several tensors, or tensors
    by the names that callers use. A tensor may be given by its name in the default graph. Create the publisher before
    the graph is finalised. With `saver`, a version contains everything that this Saver saves, under its names, so that
    `saver.restore(session, prefix)` restores it. Without `saver`, a version contains the variables that the graph uses,
    under their own names, so that `tf.compat.v1.train.Saver(variables)` restores it. `averages`, such as
    `tf.train.ExponentialMovingAverage.average`, maps a variable to the variable that is published instead. Other
    options are Publisher's. Call `flush`, or leave the block, before the session ends.

    Pinning a resource variable takes microseconds, whatever its size. Reference variables, the default of TensorFlow 1,
    are copied on the thread that trains (see SessionValues). If several workers update the variables
    without waiting for each other, the values are not those of a single step.
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
        """Call this before the first step is trained; see `Publisher.begin`."""
        return super().begin(step, values=session)

    def publish_session_if_due(self, session: Any, step: int, metrics: Metrics | None = None) -> Version | None:
        """Publish this step if it is due; see `Publisher.publish_if_due`."""
        return self.publish_if_due(step, metrics, values=session)

    def publish_session(
        self, session: Any, step: int, *, wait: bool = False, metrics: Metrics | None = None
    ) -> Version:
        """Publish this step now; see `Publisher.publish`."""
        return self.publish(step, wait=wait, metrics=metrics, values=session)

    def finish(  # type: ignore[override]  # a session comes first
        self, session: Any, step: int, metrics: Metrics | None = None
    ) -> Version | None:
        """End training: publish the last step, and wait until it is written; see `Publisher.finish`."""
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

    The graph's global step counts the steps. Without `every_steps` and `every_seconds`, the hook publishes every
    second. `metrics` maps names to scalar tensors, or to the names of tensors. The run whose step is published computes
    the metrics, and must feed their placeholders. The start is published if the store has no version yet, or if
    `at_start` is true. With `publish_if` (see Publisher), a step without metrics, such as the end, is never published;
    a start with `at_start=True` is. Other options are passed to SessionPublisher.

    Only one process may publish, so use `chief_only_hooks`. Training that ends in an error leaves the store locked
    until the hook is used again, or the process ends. Raises the errors of SessionPublisher when the session is made.
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
        """The address of the control port; None outside sessions, and without `control_port`."""
        return None if self._publisher is None else self._publisher.control

    def begin(self) -> None:
        """Make the publisher, which adds operations to the graph, before the graph is finalised."""
        self._release()  # closes the publisher of training that ended in an error
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
        if self._is_due:  # decided before the run, which computed the metrics
            session = run_context.session
            self._made.publish_session_if_due(session, self._counted(session), run_values.results["metrics"])
        else:  # + 2, because this run may have read the step before it increased the step
            self._next = int(run_values.results["step"]) + 2

    def end(self, session: Any) -> None:
        try:
            self._made.finish(session, int(session.run(self._step)))
        finally:
            self._release()

    def _counted(self, session: Any) -> int:
        step = int(session.run(self._step))
        self._next = step + 1  # the highest step that the next run may end with
        return step

    @property
    def _made(self) -> SessionPublisher:
        assert self._publisher is not None  # `begin` is called first
        return self._publisher

    def _release(self) -> None:
        publisher, self._publisher = self._publisher, None
        if publisher is not None:
            publisher.close()
