"""Values of other frameworks, published for a graph of TensorFlow's that was put into the store beforehand."""

from __future__ import annotations

import functools
import os
import re
import subprocess
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import keras
import ml_dtypes
import numpy as np
import pytest
import tensorflow as tf

from paramsync.errors import ParameterError, PublishError, SettingsError
from paramsync.graphs.capturing import capture
from paramsync.publishing.publisher import Publisher
from paramsync.publishing.schedule import PublishSchedule
from paramsync.store.store import Store
from paramsync.version import Version
from tests.support.givens import VALUE, Affine, answer, put, values
from tests.support.programs import ROOT
from tests.support.training import EVERY_STEP


@pytest.fixture
def store(tmp_path: Path) -> Path:
    put(tmp_path, Affine())
    return tmp_path


def test_values_go_by_the_variables_names_or_by_their_keys(store: Path) -> None:
    with Publisher.of_graph(store, schedule=EVERY_STEP) as publisher:
        version = publisher.publish(1, values=values(2.0), wait=True)
        assert answer(store) == [4.0] * 4
        keyed = {"scale" + VALUE: np.full(4, 3.0, np.float32), "shift_of_all": np.full(4, 1, ml_dtypes.bfloat16)}
        publisher.publish(2, values=keyed, wait=True)
    assert answer(store) == [4.0] * 4
    assert version.graph == capture(Affine()).graph.digest


def test_tensorflow_reads_them_into_the_object_that_the_graph_is_of(store: Path) -> None:
    with Publisher.of_graph(store, schedule=EVERY_STEP) as publisher:
        publisher.publish(1, values=values(5.0), wait=True)
    model = Affine()
    tf.train.Checkpoint(model).read(tf.train.latest_checkpoint(store)).assert_consumed()
    assert (model.scale.numpy() == 5).all()
    assert (model.shift.numpy() == 5).all()


def test_keras_variables_go_by_their_paths(tmp_path: Path) -> None:
    model = keras.Sequential([keras.Input((4,), name="x"), keras.layers.Dense(3, name="hidden"), keras.layers.Dense(1)])
    put(tmp_path, model)
    with Publisher.of_graph(tmp_path, schedule=EVERY_STEP) as publisher:
        publisher.publish(1, values=lambda: {one.path: one for one in model.variables}, wait=True)
    expected = model(np.ones([1, 4], np.float32)).numpy().reshape(-1)
    np.testing.assert_allclose(answer(tmp_path), expected, rtol=1e-6)


def test_names_that_two_variables_have_do_not_count(tmp_path: Path) -> None:
    class Twins(tf.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.other = tf.Variable([1.0], name="same"), tf.Variable([2.0], name="same")

        @tf.function(input_signature=[tf.TensorSpec([1], name="x")])
        def __call__(self, x: tf.Tensor) -> tf.Tensor:
            return x * self.one + self.other

    put(tmp_path, Twins())
    with Publisher.of_graph(tmp_path, schedule=EVERY_STEP) as publisher:
        with pytest.raises(ParameterError, match=f"expected one{VALUE}, other{VALUE}"):
            publisher.publish(1, values={"same": np.ones(1, np.float32)})
        publisher.publish(2, values={f"{one}{VALUE}": np.ones(1, np.float32) for one in ("one", "other")})


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({}, "expected scale_of_all, shift_of_all (2 missing), found nothing"),
        ({"scale_of_all": 1}, "expected shift_of_all (1 missing), found scale_of_all"),
        (values() | {"more": 1}, "expected scale_of_all, shift_of_all, found more too (1 not needed)"),
        (values() | {"scale" + VALUE: 1}, "expected each value once, found scale/.ATTRIBUTES/VARIABLE_VALUE under two"),
        (values() | {"scale_of_all": np.ones(4)}, "expected scale_of_all float32 [4], found float64 [4]"),
        (values() | {"scale_of_all": np.ones([4, 1], np.float32)}, "expected scale_of_all float32 [4], found float32"),
        (values() | {"scale_of_all": 1.5}, "expected scale_of_all float32 [4], found float64 []"),
        (values() | {"scale_of_all": jnp.ones(3)}, "expected scale_of_all float32 [4], found float32 [3]"),
        (values() | {"scale_of_all": tf.ones(4, tf.int64)}, "expected scale_of_all float32 [4], found int64 [4]"),
        (values() | {"scale_of_all": None}, "expected scale_of_all float32 [4], found string []"),
        (values() | {"scale_of_all": np.ones(4, ">f4")}, "expected scale_of_all float32 [4], found >f4 [4]"),
    ],
)
def test_values_that_do_not_fit_are_refused_by_name_and_nothing_is_published(
    store: Path, given: Mapping[str, Any], message: str
) -> None:
    with Publisher.of_graph(store, schedule=PublishSchedule(at_start=False, at_end=False)) as publisher:
        with pytest.raises(ParameterError, match=re.escape(message)):
            publisher.publish(1, values=given)
        with pytest.raises(ParameterError, match=re.escape(message)):
            publisher.publish(1, values=lambda: given)
    assert Store(store).latest() is None


def test_who_asked_for_a_version_is_answered_by_the_next_values_that_fit(store: Path) -> None:
    with Publisher.of_graph(store, schedule=PublishSchedule(at_start=False)) as publisher:
        asked = publisher.request()
        with pytest.raises(ParameterError):
            publisher.publish_if_due(1, values={})
        publisher.publish_if_due(2, values=values())
        assert asked.result(60).step == 2


def test_without_values_there_is_nothing_to_publish(store: Path) -> None:
    publisher = Publisher.of_graph(store, schedule=EVERY_STEP)
    with pytest.raises(SettingsError, match="are needed: publish"):
        publisher.publish(1)
    publisher.close()


def test_a_models_own_publisher_takes_no_values(tmp_path: Path) -> None:
    publisher = Publisher(tmp_path, Affine(), schedule=EVERY_STEP)
    with pytest.raises(SettingsError, match=r"only Publisher\.of_graph"):
        publisher.publish(1, values=values())
    publisher.close()


def test_values_are_asked_for_only_where_they_are_due(store: Path) -> None:
    asked: list[int] = []

    def give(step: int) -> dict[str, Any]:
        asked.append(step)
        return values(step)

    schedule = PublishSchedule(every_steps=10)
    with Publisher.of_graph(store, schedule=schedule) as publisher:
        for step in range(15):
            publisher.publish_if_due(step, values=functools.partial(give, step))
    assert asked == [0, 10, 14]
    assert answer(store) == [28.0] * 4


def test_not_finite_values_are_refused_here_too(store: Path) -> None:
    with Publisher.of_graph(store, schedule=EVERY_STEP) as publisher:
        with pytest.raises(PublishError, match="NaN or infinity in shift/"):
            publisher.publish(1, values=values() | {"shift_of_all": np.full(4, np.nan, ml_dtypes.bfloat16)}, wait=True)
        assert publisher.status().refused == 1


def test_the_graph_stays_while_versions_come_and_go(store: Path) -> None:
    with Publisher.of_graph(store, schedule=EVERY_STEP, keep=1) as publisher:
        for step in range(4):
            publisher.publish(step, values=values(step), wait=True)
    assert answer(store) == [6.0] * 4


WITHOUT_TENSORFLOW = """
import sys

class Refusing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("tensorflow", "keras"):
            raise AssertionError(f"{name} is imported")

sys.meta_path.insert(0, Refusing())

import numpy as np, ml_dtypes
from paramsync.publishing.publisher import Publisher
from paramsync.publishing.schedule import PublishSchedule

with Publisher.of_graph(sys.argv[1], schedule=PublishSchedule(every_steps=1), on_error="raise") as publisher:
    for step in range(3):
        shift = np.full(4, step, ml_dtypes.bfloat16)
        publisher.publish_if_due(step, values={"scale_of_all": np.full(4, step, np.float32), "shift_of_all": shift})
"""


def test_neither_tensorflow_nor_keras_is_imported(store: Path) -> None:
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", WITHOUT_TENSORFLOW, str(store)]
    subprocess.run(command, check=True, timeout=120, env=environment)
    assert answer(store) == [4.0] * 4


NOT_CLOSED = """
import sys
import numpy as np, ml_dtypes
from paramsync.publishing.publisher import Publisher
from paramsync.publishing.schedule import PublishSchedule

publisher = Publisher.of_graph(sys.argv[1], schedule=PublishSchedule())
publisher.subscribe(lambda version: sys.stdin.read())  # until it ends, what comes next has to wait
for step in (1, 2):
    shift = np.full(4, step, ml_dtypes.bfloat16)
    values = {"scale_of_all": np.full(4, step, np.float32), "shift_of_all": shift}
    publisher.publish(step, values=values, wait=step == 1)
"""


def test_what_waits_is_written_where_a_program_ends_without_closing(store: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", NOT_CLOSED, str(store)],
        stdin=subprocess.PIPE,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
    )
    process.communicate(timeout=120)
    assert process.returncode == 0
    assert answer(store) == [4.0] * 4


def test_metrics_are_those_of_the_call(store: Path) -> None:
    metrics = {"loss": 1.0}
    begun, go_on = threading.Event(), threading.Event()

    def wait(version: Version) -> None:
        begun.set()
        assert go_on.wait(60)

    with Publisher.of_graph(store, schedule=EVERY_STEP) as publisher:
        publisher.subscribe(wait)
        publisher.publish(1, values=values())
        assert begun.wait(60)
        publisher.publish(2, values=values(), metrics=metrics)
        metrics["loss"] = 2.0
        go_on.set()
        assert publisher.flush(60)
        published = publisher.status().published
    assert published is not None
    assert published.metrics == {"loss": 1.0}
