"""A failed publication does not stop training; NaN and infinity are refused by name; on_error="raise" raises once."""

from __future__ import annotations

import contextlib
import shutil
from pathlib import Path
from typing import Any

import keras
import ml_dtypes
import numpy as np
import pytest
import tensorflow as tf

from paramsync.errors import GraphError, NotFiniteError, ParameterError, PublishError, SettingsError
from paramsync.publishing.publisher import Publisher
from paramsync.publishing.schedule import PublishSchedule
from paramsync.store.store import Store
from tests.support.training import EVERY_STEP, TIMEOUT, Affine, Counters, latest, put, values


def test_training_survives_a_store_that_goes_away_and_publishes_when_it_is_back(tmp_path: Path) -> None:
    store = tmp_path / "store"
    with Publisher(store, Counters(), schedule=EVERY_STEP) as publisher:
        publisher.publish(1, wait=True)
        shutil.rmtree(store)
        store.touch()
        publisher.publish_if_due(2)
        assert publisher.flush(TIMEOUT)
        error = publisher.status().last_error
        assert error is not None
        assert str(store) in error
        store.unlink()
        store.mkdir()
        publisher.publish(3, wait=True)
        assert publisher.status().last_error is None
    latest = Store(store).latest()
    assert latest is not None
    assert latest.step == 3


def test_an_error_is_raised_at_the_next_call_where_that_is_wanted(tmp_path: Path) -> None:
    store = tmp_path / "store"
    schedule = PublishSchedule(every_steps=1, at_end=False)
    with Publisher(store, Counters(), schedule=schedule, on_error="raise") as publisher:
        shutil.rmtree(store)
        store.touch()
        publisher.publish_if_due(1)
        with pytest.raises(PublishError, match="an earlier publication failed"):
            publisher.flush(TIMEOUT)
        assert publisher.flush(TIMEOUT)


def test_leaving_the_block_raises_where_the_last_step_cannot_be_published(tmp_path: Path) -> None:
    store = tmp_path / "store"
    schedule = PublishSchedule(at_start=False)
    with contextlib.ExitStack() as block:
        publisher = block.enter_context(Publisher(store, Counters(), schedule=schedule, on_error="raise"))
        publisher.publish_if_due(1)
        shutil.rmtree(store)
        store.touch()
        with pytest.raises(PublishError, match="an earlier publication failed"):
            block.close()
    store.unlink()
    Publisher(store, Counters(), schedule=schedule).close()  # it was given up all the same


def test_a_model_that_is_not_built_is_refused_and_leaves_the_store_free(tmp_path: Path) -> None:
    with pytest.raises(GraphError, match="build it"):
        Publisher(tmp_path, keras.Sequential([keras.layers.Dense(1)]), schedule=EVERY_STEP)
    Publisher(tmp_path, Counters(), schedule=EVERY_STEP).close()


NAN = values() | {"shift_of_all": np.full(4, np.nan, ml_dtypes.bfloat16)}


@pytest.mark.parametrize("given", [{}, values() | {"more": 1}, None])
@pytest.mark.parametrize("on_error", ["log", "raise"])
def test_values_that_were_refused_are_not_refused_again_at_the_end(tmp_path: Path, given: Any, on_error: Any) -> None:
    put(tmp_path, Affine())
    with Publisher.of_graph(tmp_path, schedule=EVERY_STEP, on_error=on_error) as publisher:
        publisher.publish(1, values=values(), wait=True)
        with pytest.raises((ParameterError, SettingsError)):
            publisher.publish_if_due(2, values=given)
        with pytest.raises((ParameterError, SettingsError)):
            publisher.publish(3, values=given)
    assert latest(tmp_path).step == 1


def test_nan_that_was_waited_for_is_not_refused_again_at_the_end(tmp_path: Path) -> None:
    put(tmp_path, Affine())
    with Publisher.of_graph(tmp_path, on_error="raise") as publisher, pytest.raises(PublishError, match="NaN"):
        publisher.publish(1, values=NAN, wait=True)
    assert Store(tmp_path).latest() is None


def test_a_store_that_cannot_be_written_is_logged_once_and_then_counted(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store = tmp_path / "store"
    with Publisher(store, Counters()) as publisher:
        shutil.rmtree(store)
        store.touch()
        for step in range(1, 31):
            with pytest.raises(PublishError):
                publisher.publish(step, wait=True)
        store.unlink()
        publisher.publish(31, wait=True)
    first, tenth, last = [record.getMessage() for record in caplog.records if record.name == "paramsync.trainer"]
    assert first.startswith(f"a publication failed, training goes on: store {store}: ")
    assert tenth == f"{first} (failure 10 of this kind in a row)"
    assert last == "version 31 is published, after 30 failures in a row"


class Precise(tf.Module):
    """A parameter of each floating dtype, of integers and of strings."""

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


def test_not_finite_is_published_where_that_is_allowed(tmp_path: Path) -> None:
    model = Counters()
    model.many[0].assign(model.many[0] * np.nan)
    with Publisher(tmp_path, model, schedule=EVERY_STEP, allow_nan=True) as publisher:
        published = publisher.publish(1, wait=True)
        assert (published.number, published.finite) == (1, False)
    assert publisher.status().refused == 0


def test_float32_is_rounded_to_bfloat16_on_request_and_the_record_says_so(tmp_path: Path) -> None:
    model = Precise()
    trained = tf.constant([1.0, np.pi, -1e-3, 3e38, 1.00390625])
    for number in model.numbers.values():
        number.assign(tf.cast(trained if number.dtype != tf.float16 else tf.minimum(trained, 6e4), number.dtype))
    with Publisher(tmp_path, model, schedule=EVERY_STEP, precision="bfloat16") as publisher:
        version = publisher.publish(1, wait=True)
    assert (version.precision, version.finite) == ("bfloat16", True)
    found = tf.train.load_checkpoint(tf.train.latest_checkpoint(str(tmp_path)))
    for name, number in model.numbers.items():
        values = found.get_tensor(f"numbers/{name}/.ATTRIBUTES/VARIABLE_VALUE")
        expected = number.numpy()
        if name == "float32":
            expected = tf.cast(tf.cast(number, tf.bfloat16), tf.float32).numpy()
            assert not (values.view(np.uint32) & 0xFFFF).any()
        assert values.dtype == expected.dtype
        assert (values == expected).all()
    assert [version.number for version in Store(tmp_path).versions()] == [1]  # the end has no other values


def test_an_unknown_precision_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="precision"):
        Publisher(tmp_path, Precise(), precision="float8")  # type: ignore[arg-type]
