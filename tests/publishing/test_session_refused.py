"""Sessions, graphs and values that cannot be published are refused, or named as the reason."""

from __future__ import annotations

import threading
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from paramsync.errors import GraphError, NotFiniteError, PublishError, SettingsError
from paramsync.publishing.schedule import PublishSchedule
from paramsync.session import SessionPublisher
from paramsync.version import Version
from tests.support.sessions import Net, assert_computes
from tests.support.training import EVERY_STEP, latest

v1 = tf.compat.v1


def test_a_graph_that_is_finalised_is_refused(tmp_path: Path) -> None:
    with tf.Graph().as_default() as graph:
        net = Net()
        graph.finalize()
        with pytest.raises(GraphError, match="finalised"):
            SessionPublisher(tmp_path, net.x, net.y, schedule=EVERY_STEP)


def test_names_that_are_no_tensors_are_refused(tmp_path: Path) -> None:
    with tf.Graph().as_default():
        Net()
        with pytest.raises(GraphError, match=r"expected the name of a tensor .* found 'z'"):
            SessionPublisher(tmp_path, "x", ["z"], schedule=EVERY_STEP)


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


def test_parameters_that_are_nan_are_refused_by_name(tmp_path: Path) -> None:
    with tf.Graph().as_default():
        net = Net()
        spoil = net.bias.assign_add([np.nan] * 6)
        publisher = SessionPublisher(tmp_path, net.x, net.y, schedule=PublishSchedule())
        with v1.Session() as session, publisher:
            session.run(v1.global_variables_initializer())
            publisher.publish_session(session, 1, wait=True)
            session.run(spoil)
            with pytest.raises(NotFiniteError, match="net/bias"):
                publisher.publish_session(session, 2, wait=True)
            assert publisher.status().refused == 1
            assert latest(tmp_path).step == 1
            session.run(net.bias.initializer)


def test_a_session_of_another_graph_is_refused(tmp_path: Path) -> None:
    with tf.Graph().as_default():
        net = Net()
        publisher = SessionPublisher(tmp_path, net.x, net.y, schedule=EVERY_STEP)
    with v1.Session(graph=tf.Graph()) as other, pytest.raises(SettingsError, match="Session of the graph"):
        publisher.publish_session(other, 0)
    publisher.close()


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
