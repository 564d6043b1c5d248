"""A graph that every follower would put in quarantine is refused before anything is published."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tensorflow as tf

from paramsync.errors import UnsafeGraphError
from paramsync.following.replica import Replica
from paramsync.graphs.graph import Graph
from paramsync.publishing.publisher import Publisher
from paramsync.session import SessionPublisher
from paramsync.store.store import Store
from tests.support.training import latest

v1 = tf.compat.v1
STACKS = ["StackV2", "StackPushV2", "StackPopV2"]


def by_python(x: Any, w: Any) -> Any:
    return v1.py_func(lambda value: value + 1, [x * w], tf.float32)


def by_a_loops_gradient(x: Any, w: Any) -> Any:
    _, y = v1.while_loop(lambda i, y: i < 3, lambda i, y: (i + 1, tf.sin(y * w)), [tf.constant(0), x])
    return tf.gradients(y, x)[0]


class ByPython(tf.Module):
    def __init__(self) -> None:
        super().__init__()
        self.w = tf.Variable([1.0, 2.0])

    @tf.function(input_signature=[tf.TensorSpec([2], name="x")])
    def __call__(self, x: tf.Tensor) -> tf.Tensor:
        return tf.ensure_shape(tf.numpy_function(lambda value: value + 1, [x * self.w], tf.float32), [2])


@pytest.fixture
def loops_of_v1() -> Any:
    v2 = v1.control_flow_v2_enabled()
    v1.disable_control_flow_v2()
    yield
    if v2:
        v1.enable_control_flow_v2()


@pytest.mark.usefixtures("loops_of_v1")
@pytest.mark.parametrize(("build", "op"), [(by_python, "PyFunc"), (by_a_loops_gradient, "StackV2")])
def test_a_session_is_refused_what_a_follower_would_refuse(
    tmp_path: Path, build: Callable[[Any, Any], Any], op: str
) -> None:
    with tf.Graph().as_default():
        x = v1.placeholder(tf.float32, [3], name="x")
        y = build(x, v1.get_variable("w", [3]))
        with pytest.raises(UnsafeGraphError, match=rf"'{op}' \(node .*publisher: allow_ops") as refused:
            SessionPublisher(tmp_path, x, y, on_error="raise")
        with SessionPublisher(tmp_path, x, y, allow_ops=["PyFunc", *STACKS]) as publisher:
            content = publisher._values.content
    with pytest.raises(UnsafeGraphError) as followers:
        Graph.from_bytes(content)
    assert str(followers.value) == str(refused.value)


def test_a_model_is_refused_too_unless_the_op_is_allowed(tmp_path: Path) -> None:
    with pytest.raises(UnsafeGraphError, match="'PyFunc'"):
        Publisher(tmp_path, ByPython())
    with Publisher(tmp_path, ByPython(), allow_ops=["PyFunc"]) as publisher:
        publisher.publish(1, wait=True)
    with pytest.raises(UnsafeGraphError, match="'PyFunc'"):
        Replica("m", Store(tmp_path)).restore(latest(tmp_path))
