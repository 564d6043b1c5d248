"""Snapshots share the variables' buffers; values on a device are fetched in pieces."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from paramsync.graphs.capturing import capture
from paramsync.publishing.live_variables import LiveVariables, VariableReader
from paramsync.publishing.write_behind import FrozenVariables, Snapshot, device_of, fetch
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
    """Publish a snapshot; the store finds `unchanged`. Returns the variables already known to be unchanged."""
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


DTYPES = (tf.float32, tf.float16, tf.bfloat16, tf.float64, tf.int32, tf.int64, tf.bool, tf.complex64, tf.uint8)


def variables() -> list[tf.Variable]:
    return [tf.Variable(tf.cast(tf.ones([257, at + 1]), dtype)) for at, dtype in enumerate(DTYPES)]


def places(values: Sequence[Any]) -> list[int]:
    return [np.asarray(one).ctypes.data for one in values]


def one_by_one(some: Sequence[tf.Variable]) -> list[tf.Tensor]:
    return [one.value() for one in some]


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


# Values of a device, which here is the CPU ----------------------------------------------------------------------------


def away(value: Any) -> str | None:
    """The device of a tensor, also if it is the CPU; None for other values."""
    found: str | None = getattr(value, "backing_device", None)
    return found


def tensors() -> dict[str, tf.Tensor]:
    shapes: list[tuple[int, ...]] = [(), (3,), (0, 4), (17, 5), (64, 64), (2, 3, 4)]
    source = np.random.default_rng(0)
    return {
        f"{dtype.name}/{at}": tf.cast(source.integers(0, 100, shape), dtype)
        for at, shape in enumerate(shapes)
        for dtype in DTYPES
    }


@pytest.mark.parametrize("piece", [1, 1000, 1 << 20])
def test_what_is_fetched_is_bit_for_bit_what_was_there(piece: int) -> None:
    values = tensors()
    found = fetch(values, away=away, piece=piece)
    assert list(found) == list(values)
    for name, value in values.items():
        here = value.numpy()
        assert (found[name].dtype, found[name].shape) == (here.dtype, here.shape)
        assert found[name].tobytes() == here.tobytes()


def test_values_are_let_go_of_piece_by_piece() -> None:
    values = {f"{at}": tf.fill([1000], float(at)) for at in range(5)}
    left: list[int] = []

    def let_go(name: str) -> None:
        del values[name]
        left.append(len(values))

    found = fetch(values, away=away, piece=8000, fetched=let_go)
    assert left == [4, 3, 2, 1, 0]
    assert [array[0] for array in found.values()] == [0, 1, 2, 3, 4]


def test_what_is_in_the_hosts_memory_stays_where_it_is() -> None:
    value, other = tf.fill([1000], 1.0), np.array(b"graph", dtype=object)
    called: list[str] = []
    found = fetch({"value": value, "other": other}, fetched=called.append)
    assert device_of(value) is None
    assert np.shares_memory(found["value"], np.asarray(value))
    assert found["other"] is other
    assert called == []
