"""Publishing from sessions of TensorFlow 1, read back by a follower and by the script's own Saver."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from paramsync.dtypes import Array
from paramsync.errors import GraphError, PublishError, SettingsError
from paramsync.following.replica import Replica
from paramsync.publishing.session_values import SessionValues
from paramsync.session import PublishHook, SessionPublisher
from paramsync.store.store import Store
from paramsync.version import Version
from tests.support.checkpoints import assert_same
from tests.support.training import EVERY_STEP, latest
from tests.support.written import read

v1 = tf.compat.v1

ONES = np.ones((3, 4), np.float32)

kinds = pytest.mark.parametrize("use_resource", [True, False], ids=["resource", "reference"])


class Net:
    """A small network and its training step, in the default graph."""

    def __init__(self, *, use_resource: bool = True, partitioner: Any = None) -> None:
        self.step = v1.train.get_or_create_global_step()
        self.x = v1.placeholder_with_default(ONES, [None, 4], name="x")
        with v1.variable_scope("net", use_resource=use_resource, partitioner=partitioner):
            self.kernel = v1.get_variable("kernel", [4, 6])
            self.bias = v1.get_variable("bias", [6], initializer=v1.zeros_initializer())
        self.y = tf.identity(tf.nn.tanh(tf.matmul(self.x, self.kernel) + self.bias), name="y")
        self.loss = tf.reduce_mean(tf.square(self.y - 0.5), name="loss")
        self.train = v1.train.AdamOptimizer(0.05).minimize(self.loss, self.step)


class Counting:
    """Variables that all hold the number of steps taken."""

    def __init__(self, *, use_resource: bool, sparse: bool = False, size: int = 20_000, count: int = 8) -> None:
        self.step = v1.train.get_or_create_global_step()
        self.x = v1.placeholder(tf.float32, [], name="x")
        with v1.variable_scope("counting", use_resource=use_resource, initializer=v1.zeros_initializer()):
            self.many = [v1.get_variable(f"v{at}", [size]) for at in range(count)]
        self.y = self.x + tf.add_n([tf.reduce_sum(one) for one in self.many])
        every = tf.IndexedSlices(tf.ones([size]), tf.range(size))
        added = [one.scatter_add(every) if sparse else one.assign_add(every.values) for one in self.many]
        self.train = tf.group(*added, self.step.assign_add(1))


def answer(store: Path, inputs: Any = ONES) -> Any:
    """What a follower of the store computes."""

    def follow() -> Array:
        (output,) = Replica("net", Store(store)).restore(latest(store)).predict({"x": inputs}).values()
        return np.asarray(output)

    with ThreadPoolExecutor() as elsewhere:  # a thread has its own default graph: none
        return elsewhere.submit(follow).result(60)


def assert_computes(store: Path, expected: Any) -> None:
    """The follower's answer equals the session's, up to the rounding of the session's graph optimisations."""
    np.testing.assert_allclose(answer(store), expected, rtol=1e-6)


@pytest.mark.slow
@kinds
@pytest.mark.parametrize("sparse", [False, True], ids=["dense", "sparse"])
def test_a_session_at_full_speed_publishes_nothing_but_whole_steps(
    tmp_path: Path, use_resource: bool, sparse: bool
) -> None:
    steps = 0
    seen: list[tuple[int, set[float]]] = []

    def look(version: Version) -> None:
        found = read(Store(tmp_path), version)
        assert len(found) == 8
        seen.append((version.step, {float(one) for array in found.values() for one in np.unique(array)}))

    with tf.Graph().as_default():
        net = Counting(use_resource=use_resource, sparse=sparse)
        publisher = SessionPublisher(tmp_path, net.x, net.y, schedule=EVERY_STEP)
        publisher.subscribe(look)
        with v1.Session() as session, publisher:
            session.run(v1.global_variables_initializer())
            train = session.make_callable(net.train)
            while steps < 2000 or (len(seen) <= 20 and steps < 100_000):  # most are skipped where a machine is busy
                steps += 1
                train()
                publisher.publish_session_if_due(session, steps)
            publisher.finish(session, steps)
            status = publisher.status()
    assert status.last_error is None
    assert status.publishes + status.skipped == steps
    assert len(seen) == status.publishes > 20
    assert seen == [(number, {float(number)}) for number, _ in seen]


@kinds
@pytest.mark.parametrize("parts", [1, 3])
@pytest.mark.parametrize("whole", [False, True], ids=["what y needs", "what the script's saver restores"])
def test_a_version_is_what_the_session_computes_and_what_a_saver_restores(
    tmp_path: Path, use_resource: bool, parts: int, whole: bool
) -> None:
    with tf.Graph().as_default():
        net = Net(use_resource=use_resource, partitioner=None if parts == 1 else v1.fixed_size_partitioner(parts))
        variables = v1.global_variables() if whole else v1.trainable_variables()
        saver = v1.train.Saver(variables)
        given = {"saver": saver} if whole else {}
        publisher = SessionPublisher(tmp_path, {"x": net.x}, {"y": net.y}, schedule=EVERY_STEP, **given)
        with v1.Session() as session, publisher:
            session.run(v1.global_variables_initializer())
            for _ in range(3):
                session.run(net.train)
            version = publisher.publish_session(session, 3, wait=True)
            expected, values = session.run([net.y, variables])
            session.run(net.train)
            assert whole or set(read(Store(tmp_path), version)) == {"net/kernel", "net/bias"}
            assert_computes(tmp_path, expected)
            saver.restore(session, str(tmp_path / version.prefix))
            for found, wanted in zip(session.run(variables), values, strict=True):
                assert_same(np.asarray(found), np.asarray(wanted))


def test_what_was_overtaken_is_let_go_of(tmp_path: Path) -> None:
    """Values that are pinned and never written are released at the next pin, or at the end."""
    with tf.Graph().as_default():
        net = Counting(use_resource=True)
        values = SessionValues(net.x, net.y)
        with v1.Session() as session:
            session.run(v1.global_variables_initializer())
            handles = []
            for _ in range(3):
                pinned = values.pin(session)
                handles += next(iter(pinned.values())).pinned._handles
                session.run(net.train)
            assert {float(one) for value in pinned.values() for one in np.unique(np.asarray(value))} == {2.0}
            del pinned
            values.tidy()
            holder, reader = v1.placeholder(tf.string, []), None
            reader = tf.raw_ops.GetSessionTensor(handle=holder, dtype=tf.float32)
            for handle in handles:
                with pytest.raises(tf.errors.InvalidArgumentError, match="not in the session store"):
                    session.run(reader, {holder: handle})


@kinds
def test_a_session_of_another_process_is_published_too(tmp_path: Path, use_resource: bool) -> None:
    server = v1.train.Server.create_local_server()
    with tf.Graph().as_default():
        net = Net(use_resource=use_resource)
        publisher = SessionPublisher(tmp_path, net.x, net.y, schedule=EVERY_STEP)
        with v1.Session(server.target) as session, publisher:
            session.run(v1.global_variables_initializer())
            session.run(net.train)
            publisher.publish_session(session, 1, wait=True)
            assert_computes(tmp_path, session.run(net.y))


def test_variables_without_a_value_are_an_error_of_the_publication(tmp_path: Path) -> None:
    with tf.Graph().as_default():
        net = Net()
        publisher = SessionPublisher(tmp_path, "x", "y", schedule=EVERY_STEP)
        with v1.Session() as session, publisher:
            with pytest.raises(PublishError, match=r"no value to be published yet.*net/"):
                publisher.publish_session(session, 0)
            session.run(v1.global_variables_initializer())
            publisher.publish_session(session, 0, wait=True)
            assert_computes(tmp_path, session.run(net.y))


def test_a_session_that_ended_is_named_as_the_reason(tmp_path: Path) -> None:
    with tf.Graph().as_default():
        net = Net()
        publisher = SessionPublisher(tmp_path, net.x, net.y, schedule=EVERY_STEP)
        with v1.Session() as session:
            session.run(v1.global_variables_initializer())
        with pytest.raises(PublishError, match="the session is closed"):
            publisher.publish_session(session, 0)
        publisher.close()


def test_a_partial_use_of_a_partitioned_variable_needs_a_saver_of_the_whole(tmp_path: Path) -> None:
    with tf.Graph().as_default():
        x = v1.placeholder(tf.float32, [2], name="x")
        with v1.variable_scope("net", partitioner=v1.fixed_size_partitioner(2)):
            table = v1.get_variable("table", [4])
        y = x + next(iter(table))
        with pytest.raises(GraphError, match="only some parts of 'net/table', 2 of 4 values"):
            SessionPublisher(tmp_path, x, y, schedule=EVERY_STEP)


# PublishHook in monitored sessions ------------------------------------------------------------------------------------


def monitored(hook: PublishHook, train: tf.Operation, steps: int, **arguments: Any) -> None:
    stop = v1.train.StopAtStepHook(last_step=steps)
    arguments = {"log_step_count_steps": None, "save_summaries_steps": None, "save_summaries_secs": None} | arguments
    with v1.train.MonitoredTrainingSession(chief_only_hooks=[hook], hooks=[stop], **arguments) as session:
        while not session.should_stop():
            session.run(train)


def published(store: Path) -> list[int]:
    return [version.step for version in Store(store).versions()]


class Unhurried(PublishHook):
    """Waits for the publication of the start, and after every `patient`-th run, so that no version is overtaken."""

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
