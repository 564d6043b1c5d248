"""Publishing from sessions of TensorFlow 1, read back by a follower and by the script's own Saver."""

from __future__ import annotations

import threading
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from paramsync.errors import GraphError, PublishError
from paramsync.publishing.session_values import SessionValues
from paramsync.session import SessionPublisher
from paramsync.store.store import Store
from paramsync.version import Version
from tests.support.checkpoints import assert_same
from tests.support.sessions import Counting, Net, assert_computes, kinds
from tests.support.training import EVERY_STEP
from tests.support.written import read

v1 = tf.compat.v1


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
def test_a_version_is_what_the_session_computes_and_what_a_saver_restores(
    tmp_path: Path, use_resource: bool, parts: int
) -> None:
    with tf.Graph().as_default():
        net = Net(use_resource=use_resource, partitioner=None if parts == 1 else v1.fixed_size_partitioner(parts))
        publisher = SessionPublisher(tmp_path, {"x": net.x}, {"y": net.y}, schedule=EVERY_STEP)
        saver = v1.train.Saver(v1.trainable_variables())
        with v1.Session() as session, publisher:
            session.run(v1.global_variables_initializer())
            for _ in range(3):
                session.run(net.train)
            version = publisher.publish_session(session, 3, wait=True)
            expected, weights = session.run([net.y, v1.trainable_variables()])
            session.run(net.train)
            assert set(read(Store(tmp_path), version)) == {"net/kernel", "net/bias"}
            assert_computes(tmp_path, expected)
            saver.restore(session, str(tmp_path / version.prefix))
            for found, wanted in zip(session.run(v1.trainable_variables()), weights, strict=True):
                assert_same(found, wanted)


@kinds
def test_with_the_scripts_saver_versions_hold_all_that_it_restores(tmp_path: Path, use_resource: bool) -> None:
    with tf.Graph().as_default():
        net = Net(use_resource=use_resource, partitioner=v1.fixed_size_partitioner(2))
        saver = v1.train.Saver()
        publisher = SessionPublisher(tmp_path, net.x, net.y, schedule=EVERY_STEP, saver=saver)
        with v1.Session() as session, publisher:
            session.run(v1.global_variables_initializer())
            for _ in range(3):
                session.run(net.train)
            version = publisher.publish_session(session, 3, wait=True)
            expected = session.run(v1.global_variables())
            for _ in range(3):
                session.run(net.train)
            saver.restore(session, str(tmp_path / version.prefix))
            for found, wanted in zip(session.run(v1.global_variables()), expected, strict=True):
                assert_same(np.asarray(found), np.asarray(wanted))
            assert_computes(tmp_path, session.run(net.y))


def test_what_was_overtaken_is_let_go_of(tmp_path: Path) -> None:
    """Whatever is pinned and never written is let go of by what is pinned next, or at the end."""
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
            gate = threading.Event()

            def wait(version: Version) -> None:
                gate.wait(60)

            publisher.subscribe(wait)
            publisher.publish_session(session, 0)
            publisher.publish_session(session, 1)
            publisher.publish_session(session, 2)
        gate.set()
        publisher.flush(60)
        error = publisher.status().last_error
        assert error is None or "the session ended before" in error
        with pytest.raises(PublishError, match="the session is closed"):
            publisher.publish_session(session, 3)
        publisher.close()


def test_a_partial_use_of_a_partitioned_variable_needs_a_saver_of_the_whole(tmp_path: Path) -> None:
    with tf.Graph().as_default():
        x = v1.placeholder(tf.float32, [2], name="x")
        with v1.variable_scope("net", partitioner=v1.fixed_size_partitioner(2)):
            table = v1.get_variable("table", [4])
        y = x + next(iter(table))
        with pytest.raises(GraphError, match="only some parts of 'net/table', 2 of 4 values"):
            SessionPublisher(tmp_path, x, y, schedule=EVERY_STEP)
