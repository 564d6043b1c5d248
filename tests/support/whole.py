"""Checks that versions published by tests are whole: we and TensorFlow read their values."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import tensorflow as tf

from paramsync.dtypes import Array
from paramsync.store.store import Store
from paramsync.version import Version
from tests.support.written import changing, tensors


def assert_whole(path: Path) -> int:
    """Fail unless every listed version has the values `tensors(number)`. Returns the latest version's number."""
    store = Store(path)
    for one in store.versions():
        _assert_holds(store, one, tensors(one.number))
    return _latest(store).number


def assert_serves(path: Path, number: int) -> None:
    """Fail unless the latest version has this number, and the values `changing(number)`."""
    store = Store(path)
    latest = _latest(store)
    assert latest.number == number
    _assert_holds(store, latest, changing(number))


def _assert_holds(store: Store, version: Version, expected: Mapping[str, Array]) -> None:
    opened = store.open(version)
    opened.verify(opened.entries)
    reader = tf.train.load_checkpoint(str(store.prefix(version)))
    for name, array in expected.items():
        assert np.array_equal(opened.array(name), array)
        assert np.array_equal(reader.get_tensor(name), array)


def _latest(store: Store) -> Version:
    """Return the latest version. Fails unless TensorFlow finds the same one."""
    latest = store.latest()
    assert latest is not None
    assert tf.train.latest_checkpoint(str(store.path)) == str(store.prefix(latest))
    return latest
