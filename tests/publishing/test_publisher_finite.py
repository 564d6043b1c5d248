"""Values that are not finite are not published, and their names are told, unless they are allowed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from paramsync.errors import NotFiniteError, PublishError
from paramsync.graphs.capturing import capture
from paramsync.publishing.publisher import Publisher
from paramsync.publishing.schedule import PublishSchedule
from paramsync.store.commit import StoreWriter
from paramsync.store.store import Store
from paramsync.version import Version
from tests.support.training import EVERY_STEP, TIMEOUT, Counters, latest


class Precise(tf.Module):
    """One parameter of every kind of number, and strings."""

    FLOATS = ("float16", "bfloat16", "float32", "float64", "complex64", "complex128")

    def __init__(self) -> None:
        super().__init__()
        self.numbers = {name: tf.Variable(tf.ones([5], name), name=name) for name in self.FLOATS}
        self.whole = tf.Variable([np.iinfo(np.int64).max, -1])
        self.words = tf.Variable(["nan", "inf"])

    @tf.function(input_signature=[tf.TensorSpec([], name="x")])
    def __call__(self, x: tf.Tensor) -> tf.Tensor:
        parts = [tf.reduce_sum(tf.cast(tf.math.real(one), tf.float32)) for one in self.numbers.values()]
        lengths = tf.cast(tf.strings.length(self.words), tf.float32)
        return x + tf.add_n(parts) + tf.cast(self.whole[0], tf.float32) + lengths[0]


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("name", Precise.FLOATS)
def test_a_parameter_that_is_not_finite_is_refused_and_the_version_before_stays(
    tmp_path: Path, name: str, bad: float
) -> None:
    model = Precise()
    with Publisher(tmp_path, model, schedule=PublishSchedule(at_end=False)) as publisher:
        good = publisher.publish(1, wait=True)
        values = np.ones(5, model.numbers[name].dtype.as_numpy_dtype)
        values[3] = bad
        model.numbers[name].assign(values)
        with pytest.raises(NotFiniteError, match=rf"in numbers/{name}/\.ATTRIBUTES/VARIABLE_VALUE: not pub") as told:
            publisher.publish(2, wait=True)
        assert told.value.names == (f"numbers/{name}/.ATTRIBUTES/VARIABLE_VALUE",)
        status = publisher.status()
        assert (status.refused, status.publishes, status.published, good.finite) == (1, 1, good, True)
        assert "allow_nan=True" in (status.last_error or "")
        assert Store(tmp_path).latest() == good
        assert {one.name for one in tmp_path.iterdir() if one.name.startswith("ckpt-2")} == set()
        model.numbers[name].assign(np.ones(5))
        assert publisher.publish(3, wait=True).number == 3
        assert publisher.status().last_error is None


def test_training_that_diverged_is_told_of_once_with_the_names_of_a_few(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    model = Counters()
    model.more = [tf.Variable([np.nan]) for _ in range(5)]
    with Publisher(tmp_path, capture(model, signatures={"all": both(model)}), schedule=EVERY_STEP) as publisher:
        for step in range(3):
            for one in model.many:
                one.assign(one * np.nan)
            publisher.publish_if_due(step)
            publisher.flush(TIMEOUT)
        assert publisher.status().refused == 3
    (said,) = [record.getMessage() for record in caplog.records]
    assert "NaN or infinity in many/0/.ATTRIBUTES/VARIABLE_VALUE, many/1/" in said
    assert " and 4 more: not published" in said


def both(model: Counters) -> Any:
    @tf.function(input_signature=[tf.TensorSpec([], name="x")])
    def call(x: tf.Tensor) -> tf.Tensor:
        return model(x) + tf.add_n(model.more)

    return call


def test_not_finite_is_raised_at_the_next_call_where_that_is_wanted(tmp_path: Path) -> None:
    model = Counters()
    schedule = PublishSchedule(every_steps=1, at_end=False)
    with Publisher(tmp_path, model, schedule=schedule, on_error="raise") as publisher:
        model.many[1].assign(model.many[1] * np.inf)
        publisher.publish_if_due(1)
        with pytest.raises(PublishError, match="an earlier publication failed: NaN or infinity in many/1/"):
            publisher.flush(TIMEOUT)


def test_not_finite_is_published_where_that_is_allowed(tmp_path: Path) -> None:
    model = Counters()
    model.many[0].assign(model.many[0] * np.nan)
    with Publisher(tmp_path, model, schedule=EVERY_STEP, allow_nan=True) as publisher:
        published = publisher.publish(1, wait=True)
        assert (published.number, published.finite) == (1, False)
    assert publisher.status().refused == 0


def test_what_was_published_unseen_is_not_taken_over_by_who_looks(tmp_path: Path) -> None:
    frozen = np.full(1 << 19, np.nan, np.float32)
    with StoreWriter(tmp_path) as writer:
        for number, finite in ((1, False), (2, False), (3, True)):
            version = Version(number=number, step=0, prefix="", step_done_at=0.0, snapshot_at=0.0)
            tensors = {"frozen": frozen, "step": np.array(number)}
            if finite:
                with pytest.raises(NotFiniteError, match="in frozen: not published"):
                    writer.commit(version, tensors, unchanged=["frozen"], finite=True)
            else:
                writer.commit(version, tensors)
        assert latest(tmp_path).number == 2
