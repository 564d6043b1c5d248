"""Publisher.of_graph: values of other frameworks for a TensorFlow graph that is already in the store."""

from __future__ import annotations

import functools
import os
import re
import subprocess
import sys
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

from paramsync.errors import GraphError, ParameterError, SettingsError, StoreError
from paramsync.graphs.capturing import capture
from paramsync.publishing.external_values import ExternalValues, NamedArrays
from paramsync.publishing.publisher import Publisher
from paramsync.publishing.schedule import PublishSchedule
from paramsync.store.store import Store
from paramsync.version import Version
from tests.support.programs import ROOT
from tests.support.training import EVERY_STEP, VALUE, Affine, answer, put, values


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


def test_keras_variables_go_by_their_paths(tmp_path: Path) -> None:
    model = keras.Sequential([keras.Input((4,), name="x"), keras.layers.Dense(3, name="hidden"), keras.layers.Dense(1)])
    put(tmp_path, model)
    with Publisher.of_graph(tmp_path, schedule=EVERY_STEP) as publisher:
        publisher.publish(1, values=lambda: {one.path: one for one in model.variables}, wait=True)
    expected = model(np.ones([1, 4], np.float32)).numpy().reshape(-1)
    np.testing.assert_allclose(answer(tmp_path), expected, rtol=1e-6)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({}, "expected scale_of_all, shift_of_all (2 missing), found nothing"),
        ({"scale_of_all": 1}, "expected shift_of_all (1 missing), found scale_of_all"),
        (values() | {"more": 1}, "expected scale_of_all, shift_of_all, found more too (1 not needed)"),
        (values() | {"scale" + VALUE: 1}, "expected each value once, found scale/.ATTRIBUTES/VARIABLE_VALUE under two"),
        (values() | {"scale_of_all": np.ones(4)}, "expected scale_of_all float32 [4], found float64 [4]"),
        (values() | {"scale_of_all": jnp.ones(3)}, "expected scale_of_all float32 [4], found float32 [3]"),
        (values() | {"scale_of_all": tf.ones(4, tf.int64)}, "expected scale_of_all float32 [4], found int64 [4]"),
        (values() | {"scale_of_all": None}, "expected scale_of_all float32 [4], found string []"),
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


NOT_CLOSED = """
import sys
import numpy as np, ml_dtypes
from paramsync.publishing.external_values import ExternalValues, NamedArrays
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


def test_a_store_without_a_graph_says_how_to_put_one_there(tmp_path: Path) -> None:
    for store in (tmp_path, tmp_path / "none"):
        with pytest.raises(
            SettingsError, match=f"found none; publish it: paramsync graph publish MODULE:BUILD {store}"
        ):
            Publisher.of_graph(store, schedule=EVERY_STEP)
    assert not (tmp_path / "none").exists()


def test_the_address_of_a_bucket_wants_the_directory_of_the_graph() -> None:
    with pytest.raises(SettingsError, match=r"of_graph\('s3://b/m'\): expected graph=DIR with it, found none"):
        Publisher.of_graph("s3://b/m")


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


# Copies -------------------------------------------------------------------------------------------------------------


def pinned(store: Path, given: Mapping[str, Any], *, copy: bool = True) -> dict[str, Any]:
    return ExternalValues.in_store(store, None, copy=copy).pin(given)


def test_arrays_are_copied_where_they_can_be_written_to(store: Path) -> None:
    given = values(1.0)
    whole = np.ones(4, np.float32)
    given["scale_of_all"] = whole.view()
    given["scale_of_all"].flags.writeable = False
    copied, shared = pinned(store, given), pinned(store, given, copy=False)
    whole[:] = 7
    given["shift_of_all"][:] = 7
    assert [found["scale" + VALUE].tolist() for found in (copied, shared)] == [[1.0] * 4, [7.0] * 4]
    assert [found["shift" + VALUE].tolist() for found in (copied, shared)] == [[1.0] * 4, [7.0] * 4]


@pytest.mark.parametrize("hide", [bytes, bytearray, memoryview, lambda buffer: memoryview(buffer).toreadonly()])
def test_what_looks_at_memory_of_others_is_copied_where_they_can_write_to_it(
    store: Path, hide: Callable[[bytearray], Any]
) -> None:
    shared = np.frombuffer(hide(bytearray(np.ones(4, np.float32).tobytes())), np.float32)
    shared.flags.writeable = False
    kept = pinned(store, values(1.0) | {"scale_of_all": shared})["scale" + VALUE]
    assert np.shares_memory(kept, shared) == (hide is bytes)  # the only one whose memory nobody can write to


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


def test_arrays_by_name_may_be_variables_and_tensors() -> None:
    given = {"variable": tf.Variable([1.0]), "half": tf.constant([1.0], tf.bfloat16), "jax": jnp.ones(1), "number": 1.0}
    pinned = NamedArrays().pin(given)
    assert {name: float(np.asarray(value).item()) for name, value in pinned.items()} == dict.fromkeys(given, 1.0)


@pytest.mark.parametrize("copy", [True, False])
@pytest.mark.parametrize(
    ("given", "message"),
    [([np.ones(1)], r"expected \{name: array\}, found a list"), ({3: np.ones(1)}, "type str, found 3")],
)
def test_values_without_names_are_refused(store: Path, given: Any, message: str, copy: bool) -> None:
    with pytest.raises(SettingsError, match=message):
        NamedArrays(copy=copy).pin(given)
    with Publisher.of_graph(store, copy=copy) as publisher, pytest.raises(SettingsError, match=message):
        publisher.publish(1, values=lambda: given)
