"""Reading many variables at once: their own memory, and what they had then."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from paramsync.publishing.live_variables import VariableReader

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


def add(some: Sequence[tf.Variable]) -> None:
    for one in some:
        one.assign_add(tf.ones_like(one))


def add_rows(some: Sequence[tf.Variable]) -> None:
    for one in some:
        one.scatter_add(tf.IndexedSlices(tf.ones_like(one), tf.range(one.shape[0])))


@pytest.mark.parametrize(
    "update",
    [add, tf.function(add), tf.function(add, jit_compile=True), add_rows, tf.function(add_rows)],
    ids=["eager", "function", "compiled", "sparse", "sparse function"],
)
def test_what_was_read_stays_as_it_was(update: Callable[[Any], object]) -> None:
    some = [tf.Variable(tf.zeros([257, at + 1])) for at in range(40)]
    read = VariableReader(some)
    for number in range(20):
        found = read(some)
        update(some)
        assert {float(one) for value in found for one in np.unique(value)} == {number}


def test_updates_are_in_place_once_what_was_read_is_let_go_of() -> None:
    some = variables()[:5]
    read = VariableReader(some)
    before = places(one_by_one(some))
    for _ in range(3):
        read(some)
        add(some)
    assert places(one_by_one(some)) == before


def test_others_can_be_read_than_before_of_any_dtype_and_any_shape_they_come_to_have() -> None:
    some = variables()
    read = VariableReader(some[:1])
    for chosen in (some, some[2:], [], some[::-1]):
        assert places(read(chosen)) == places(one_by_one(chosen))
    words = tf.Variable(["a", "bc"], shape=tf.TensorShape(None))
    assert read([words])[0].numpy().tolist() == [b"a", b"bc"]
    words.assign([["d"]])
    assert read([words])[0].numpy().tolist() == [[b"d"]]
