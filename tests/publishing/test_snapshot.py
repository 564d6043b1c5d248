"""Snapshots of real variables."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from paramsync.graphs.capturing import capture
from paramsync.publishing.live_variables import LiveVariables, VariableReader
from paramsync.publishing.write_behind import FrozenVariables, Snapshot
from paramsync.version import Version


class Affine(tf.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale = tf.Variable(tf.ones([1024, 1024]))
        self.shift = tf.Variable(tf.zeros([1024], tf.bfloat16))

    @tf.function(input_signature=[tf.TensorSpec([None, 1024], name="x")])
    def __call__(self, x: tf.Tensor) -> tf.Tensor:
        return x @ self.scale + tf.cast(self.shift, tf.float32)


def snapshot(model: tf.Module) -> Snapshot:
    version = Version(number=1, step=1, prefix="ckpt-1", step_done_at=0.0, snapshot_at=0.0)
    return Snapshot(version=version, values=LiveVariables(capture(model)).pin(), metrics={"loss": tf.constant(1.5)})


def written(model: tf.Module, frozen: FrozenVariables, unchanged: set[str]) -> set[str]:
    """Publish a snapshot of which the store finds these unchanged; returns what was known to be."""
    taken = snapshot(model)
    tensors = taken.tensors()
    known = frozen.unchanged(tensors)
    frozen.note_published(taken, tensors, unchanged)
    return known


SCALE = "scale/.ATTRIBUTES/VARIABLE_VALUE"


def test_a_variable_found_unchanged_once_is_known_to_be_while_it_is_not_updated() -> None:
    model, frozen = Affine(), FrozenVariables()
    assert written(model, frozen, set()) == set()
    assert written(model, frozen, {SCALE}) == set()
    for _ in range(3):
        assert written(model, frozen, {SCALE}) == {SCALE}
    model.scale.assign_add(tf.ones_like(model.scale))
    assert written(model, frozen, set()) == set()
    assert written(model, frozen, {SCALE}) == set()
    assert written(model, frozen, {SCALE}) == {SCALE}


def test_a_variable_that_is_trained_is_updated_in_place() -> None:
    model, frozen = Affine(), FrozenVariables()
    before = np.asarray(model.scale.read_value()).ctypes.data
    for _ in range(3):
        written(model, frozen, set())
        model.scale.assign_add(tf.ones_like(model.scale))
        assert np.asarray(model.scale.read_value()).ctypes.data == before


DTYPES = (tf.float32, tf.bfloat16, tf.float64, tf.int32, tf.int64, tf.bool, tf.complex64, tf.uint8)


def variables() -> list[tf.Variable]:
    return [tf.Variable(tf.cast(tf.ones([257, at + 1]), dtype)) for at, dtype in enumerate(DTYPES)]


def places(values: Sequence[Any]) -> list[int]:
    return [np.asarray(one).ctypes.data for one in values]


def one_by_one(some: Sequence[tf.Variable]) -> list[tf.Tensor]:
    return [one.value() for one in some]


def test_what_is_read_is_the_variables_own_memory() -> None:
    some = variables()
    found = VariableReader(some)(some)
    assert places(found) == places(one_by_one(some))
    assert [(one.dtype, one.shape) for one in found] == [(one.dtype, one.shape) for one in some]


def test_others_can_be_read_than_before_of_any_dtype_and_any_shape_they_come_to_have() -> None:
    some = variables()
    read = VariableReader(some[:1])
    for chosen in (some, some[2:], [], some[::-1]):
        assert places(read(chosen)) == places(one_by_one(chosen))
    words = tf.Variable(["a", "bc"], shape=tf.TensorShape(None))
    assert read([words])[0].numpy().tolist() == [b"a", b"bc"]
    words.assign([["d"]])
    assert read([words])[0].numpy().tolist() == [[b"d"]]


Use = Callable[[Any], Any]
USES: dict[str, Use] = {
    "looked up": lambda table: tf.gather(table, [1, 2]),
    "updated": lambda table: table.scatter_add(tf.IndexedSlices(tf.ones([2, 4]), tf.constant([1, 2]))),
}
uses = pytest.mark.parametrize("use", USES.values(), ids=USES.keys())


def place(value: Any) -> int:
    return int(np.asarray(value).ctypes.data)


@uses
def test_a_table_is_read_where_it_lies(use: Use) -> None:
    table = tf.Variable(tf.zeros([1000, 4]))
    read = VariableReader([table])
    for number in range(3):
        tf.function(use)(table)
        values, again = read([table]), read([table])
        assert place(values[0]) == place(again[0]), number
        before = values[0].numpy().copy()
        tf.function(use)(table)
        assert np.array_equal(values[0], before)
