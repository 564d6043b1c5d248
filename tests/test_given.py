"""Values of other frameworks, published for a graph of TensorFlow's that was put into the store beforehand."""

from __future__ import annotations

import functools
import os
import re
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import keras
import ml_dtypes
import numpy as np
import pytest
import tensorflow as tf

from inferencer.replica import Replica
from paramsync.errors import GraphError, ParameterError, PublishError, SettingsError, StoreError
from paramsync.graphs.capture import Capture, capture
from paramsync.store import Store
from paramsync.version import Version
from paramsync.writer import StoreWriter
from trainer.given import Given
from trainer.publisher import Publisher
from trainer.schedule import PublishSchedule

ROOT = Path(__file__).parent.parent
EVERY_STEP = PublishSchedule(every_steps=1)
VALUE = "/.ATTRIBUTES/VARIABLE_VALUE"


class Affine(tf.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale = tf.Variable(tf.ones([4]), name="scale_of_all")
        self.shift = tf.Variable(tf.zeros([4], tf.bfloat16), name="shift_of_all")

    @tf.function(input_signature=[tf.TensorSpec([None, 4], name="x")])
    def __call__(self, x: tf.Tensor) -> dict[str, tf.Tensor]:
        return {"y": x * self.scale + tf.cast(self.shift, tf.float32)}


def values(number: float = 1.0) -> dict[str, Any]:
    shift = np.full(4, number, ml_dtypes.bfloat16)
    return {"scale_of_all": np.full(4, number, np.float32), "shift_of_all": shift}


def put(store: Path, source: Any) -> Capture:
    captured = capture(source)
    with StoreWriter(store) as writer:
        writer.add_graph(captured.graph.digest, captured.graph.to_bytes())
    return captured


@pytest.fixture
def store(tmp_path: Path) -> Path:
    put(tmp_path, Affine())
    return tmp_path


def answer(store: Path) -> list[float]:
    """What a follower serves from the newest version."""
    replica = Replica("m", Store(store))
    latest = Store(store).latest()
    assert latest is not None
    replica.swap(replica.restore(latest))
    outputs, _ = replica.predict({"x": np.ones([1, 4], np.float32)})
    found: list[float] = next(iter(outputs.values())).numpy().reshape(-1).tolist()
    return found


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


class Pinned:
    """What another source pinned before."""

    def __init__(self, source: Given, values: Mapping[str, Any]) -> None:
        self.digest, self.content = source.digest, source.content
        self._pinned = source.pin(values)

    def pin(self, values: Any = None) -> dict[str, Any]:
        return dict(self._pinned)


def published_after(
    store: Path, given: Mapping[str, Any], change: Callable[[], object], *, copy: bool = True
) -> list[float]:
    """What is served where `change` happens between the publication and its being written."""
    source = Pinned(Given.in_store(store, None, copy=copy), given)
    change()
    with Publisher(store, source, schedule=EVERY_STEP) as publisher:
        publisher.publish(1, wait=True)
    return answer(store)


def test_arrays_are_copied_where_they_can_be_written_to(store: Path) -> None:
    given = values(1.0)
    whole = np.ones(4, np.float32)
    frozen = whole.view()
    frozen.flags.writeable = False
    given["scale_of_all"] = frozen

    def change() -> None:
        whole[:] = 7
        given["shift_of_all"][:] = 7

    assert published_after(store, given, change) == [2.0] * 4


def test_nothing_is_copied_where_that_is_wanted(store: Path) -> None:
    given = values(1.0)
    assert published_after(store, given, lambda: given["scale_of_all"].fill(6), copy=False) == [7.0] * 4


def test_what_cannot_be_written_to_is_not_copied(store: Path) -> None:
    scale, shift = np.ones(4, np.float32), tf.ones(4, tf.bfloat16)
    scale.flags.writeable = False
    pinned = Given.in_store(store, None, copy=True).pin({"scale_of_all": scale, "shift_of_all": shift})
    assert pinned["scale" + VALUE] is scale
    assert pinned["shift" + VALUE] is shift


@functools.partial(jax.jit, donate_argnums=0)
def donating(given: dict[str, jax.Array]) -> dict[str, jax.Array]:
    return {name: one + 1 for name, one in given.items()}


def test_every_version_of_jax_steps_that_take_their_arguments_memory_is_of_one_step(store: Path) -> None:
    seen: list[tuple[int, list[float]]] = []

    def look(version: Version) -> None:
        reader = tf.train.load_checkpoint(str(store / version.prefix))
        found = [reader.get_tensor(f"{one}{VALUE}") for one in ("scale", "shift")]
        seen.append((version.step, np.unique([one.astype(np.float32) for one in found]).tolist()))

    parameters = {"scale_of_all": jnp.zeros(4), "shift_of_all": jnp.zeros(4, jnp.bfloat16)}
    with Publisher.of_graph(store, schedule=EVERY_STEP, on_error="raise") as publisher:
        publisher.subscribe(look)
        for step in range(200):
            publisher.publish_if_due(step, values=parameters)
            parameters = donating(parameters)
        publisher.finish(200, values=parameters)
    assert len(seen) > 1
    assert seen == [(step, [float(step)]) for step, _ in seen]
    assert seen[-1][0] == 200


def test_jax_arrays_are_not_copied_on_the_cpu(store: Path) -> None:
    given = {"scale_of_all": jnp.ones(4), "shift_of_all": jnp.ones(4, jnp.bfloat16)}
    pinned = Given.in_store(store, None, copy=True).pin(given)
    assert pinned["scale" + VALUE].ctypes.data == given["scale_of_all"].unsafe_buffer_pointer()


def test_not_finite_values_are_refused_here_too(store: Path) -> None:
    with Publisher.of_graph(store, schedule=EVERY_STEP) as publisher:
        with pytest.raises(PublishError, match="NaN or infinity in shift/"):
            publisher.publish(1, values=values() | {"shift_of_all": np.full(4, np.nan, ml_dtypes.bfloat16)}, wait=True)
        assert publisher.status().refused == 1


def test_a_store_without_a_graph_says_how_to_put_one_there(tmp_path: Path) -> None:
    for store in (tmp_path, tmp_path / "none"):
        with pytest.raises(
            SettingsError, match=f"found none; publish it: paramsync graph publish MODULE:BUILD {store}"
        ):
            Publisher.of_graph(store, schedule=EVERY_STEP)
    assert not (tmp_path / "none").exists()


def test_which_of_several_graphs_has_to_be_said(store: Path) -> None:
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    digests = sorted([put(store, model).graph.digest, capture(Affine()).graph.digest])
    with pytest.raises(SettingsError, match=f"found 2; say which by its digest: {', '.join(digests)}"):
        Publisher.of_graph(store, schedule=EVERY_STEP)
    with pytest.raises(SettingsError, match=f"expected graph 'abc', found {', '.join(digests)}"):
        Publisher.of_graph(store, "abc", schedule=EVERY_STEP)
    with Publisher.of_graph(store, capture(Affine()).graph.digest, schedule=EVERY_STEP) as publisher:
        publisher.publish(1, values=values())


def test_a_graph_file_that_is_damaged_is_refused(store: Path) -> None:
    (path,) = store.glob("graph-*.pb")
    for content, message in ((b"\xff", "not readable"), (b"", "expected graph")):
        path.write_bytes(content)
        with pytest.raises(GraphError, match=message):
            Publisher.of_graph(store, schedule=EVERY_STEP)
    path.unlink()
    path.mkdir()
    with pytest.raises((GraphError, StoreError), match="graph-"):
        Publisher.of_graph(store, schedule=EVERY_STEP)


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
from trainer.publisher import Publisher
from trainer.schedule import PublishSchedule

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
from trainer.publisher import Publisher
from trainer.schedule import PublishSchedule

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
