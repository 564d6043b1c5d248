"""Variables whose rows are looked up or updated, which TensorFlow then copies for whoever reads them: not for us."""

from __future__ import annotations

import resource
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from paramsync.publishing.live_variables import VariableReader
from paramsync.publishing.session_values import SessionValues

v1 = tf.compat.v1

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


def memory() -> int:
    """Bytes that this process has."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def test_tables_of_a_session_are_pinned_without_a_copy() -> None:
    with tf.Graph().as_default():
        x = v1.placeholder(tf.float32, [4], name="x")
        zeros = v1.zeros_initializer()
        tables = {name: v1.get_variable(name[:2], [4 << 20, 4], use_resource=True, initializer=zeros) for name in USES}
        values = SessionValues(x, x + tf.add_n([tf.reduce_sum(one, 0) for one in tables.values()]))
        used = [USES[name](one) for name, one in tables.items()]
        with v1.Session() as session:
            session.run(v1.global_variables_initializer())
            session.run(used)
            before = memory()
            pinned = [values.pin(session) for _ in range(4)]
            assert memory() - before < 64 << 20  # of 512 for copies
            session.run(used)
            for one in pinned:
                assert [float(np.sum(np.asarray(one[name[:2]]))) for name in USES] == [0.0, 8.0]
