"""ExternalValues arrays are copied where somebody might write to them, and nowhere else."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tensorflow as tf

from paramsync.publishing.external_values import ExternalValues
from paramsync.publishing.publisher import Publisher
from paramsync.version import Version
from tests.support.givens import VALUE, Affine, answer, put, values
from tests.support.training import EVERY_STEP


@pytest.fixture
def store(tmp_path: Path) -> Path:
    put(tmp_path, Affine())
    return tmp_path


class Pinned:
    """What another source pinned before."""

    def __init__(self, source: ExternalValues, values: Mapping[str, Any]) -> None:
        self.digest, self.content = source.digest, source.content
        self._pinned = source.pin(values)

    def pin(self, values: Any = None) -> dict[str, Any]:
        return dict(self._pinned)


def published_after(
    store: Path, given: Mapping[str, Any], change: Callable[[], object], *, copy: bool = True
) -> list[float]:
    """What is served where `change` happens between the publication and its being written."""
    source = Pinned(ExternalValues.in_store(store, None, copy=copy), given)
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


@pytest.mark.parametrize("hide", [bytes, bytearray, memoryview, lambda buffer: memoryview(buffer).toreadonly()])
def test_what_looks_at_memory_of_others_is_copied_where_they_can_write_to_it(
    store: Path, hide: Callable[[bytearray], Any]
) -> None:
    buffer = bytearray(np.ones(4, np.float32).tobytes())
    shared = np.frombuffer(hide(buffer), np.float32)
    shared.flags.writeable = False

    def change() -> None:
        buffer[:] = np.full(4, 7, np.float32).tobytes()

    assert published_after(store, values(1.0) | {"scale_of_all": shared}, change) == [2.0] * 4
    source = ExternalValues.in_store(store, None, copy=True)
    kept = source.pin(values(1.0) | {"scale_of_all": shared})["scale" + VALUE] is shared
    assert kept is (hide is bytes)  # the only one whose memory nobody can write to


def test_nothing_is_copied_where_that_is_wanted(store: Path) -> None:
    given = values(1.0)
    assert published_after(store, given, lambda: given["scale_of_all"].fill(6), copy=False) == [7.0] * 4


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
