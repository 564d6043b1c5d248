"""Live tensors of a v1 graph are captured: alone, in sequences and mappings, sparse and ragged."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from paramsync.errors import GraphError
from paramsync.graphs.draft import finish
from paramsync.graphs.sources.v1_graphs import draft_of_tensors
from paramsync.graphs.specs import DEFAULT_SIGNATURE
from tests.support.v1_captured import two_layers

v1 = tf.compat.v1


@pytest.mark.parametrize(
    "ends",
    [lambda x, y: (x, y), lambda x, y: ([x], (y,)), lambda x, y: ({"x": x}, {"y": y})],
    ids=["tensor", "sequence", "mapping"],
)
def test_ends_are_a_tensor_a_sequence_or_a_mapping(ends: Callable[..., Any]) -> None:
    with tf.Graph().as_default():
        draft = draft_of_tensors(*ends(*two_layers()))
    signature = finish(draft).signatures[DEFAULT_SIGNATURE]
    assert (list(signature.inputs), list(signature.outputs)) == (["x"], ["y"])


def test_sparse_and_ragged_inputs_are_several() -> None:
    with tf.Graph().as_default():
        sparse = v1.sparse_placeholder(tf.float32, (None, 4), name="s")
        ragged = v1.ragged.placeholder(tf.float32, 1, (), name="r")
        y = tf.sparse.to_dense(sparse) * v1.get_variable("w", (4,)), tf.reduce_sum(ragged, 1)
        draft = draft_of_tensors({"s": sparse, "r": ragged}, {"dense": y[0], "sums": y[1]})
    graph = finish(draft)
    found = graph(
        [tf.constant([1.0, 2.0, 3.0, 4.0])],
        {
            "s_indices": tf.constant([[0, 1], [1, 3]], tf.int64),
            "s_values": tf.constant([1.0, 2.0]),
            "s_dense_shape": tf.constant([2, 4], tf.int64),
            "r_values": tf.constant([1.0, 2.0, 3.0]),
            "r_row_splits": tf.constant([0, 2, 3], tf.int64),
        },
    )
    np.testing.assert_array_equal(found["dense"], [[0, 2, 0, 0], [0, 0, 0, 8]])
    np.testing.assert_array_equal(found["sums"], [3, 3])


def test_what_are_no_tensors_of_one_graph_is_refused() -> None:
    with tf.Graph().as_default():
        x, y = two_layers()
    with tf.Graph().as_default():
        other, _ = two_layers()
    with pytest.raises(GraphError, match="of one graph, found some of 2"):
        draft_of_tensors([other], [y])
    with pytest.raises(GraphError, match="expected tensors of a v1 graph, found 'x:0'"):
        draft_of_tensors(["x:0"], [y])
    with pytest.raises(GraphError, match="found 'x' twice"):
        draft_of_tensors([x, x], [y])
    with pytest.raises(GraphError, match="at least one"):
        draft_of_tensors([x], [])


@pytest.mark.slow
def test_a_program_without_eager_execution_makes_the_same_graph() -> None:
    script = """
import tensorflow as tf
tf.compat.v1.disable_v2_behavior()
from tests.graphs.test_capture_v1_tensors import spoken
from paramsync.graphs.draft import finish
from paramsync.graphs.sources.v1_graphs import draft_of_tensors
print(finish(draft_of_tensors(*spoken())).digest)
"""
    root = Path(__file__).parents[2]
    there = subprocess.run([sys.executable, "-c", script], cwd=root, capture_output=True, text=True, check=True)
    with tf.Graph().as_default():
        here = finish(draft_of_tensors(*spoken()))
    assert there.stdout.split() == [here.digest]


def spoken() -> tuple[tf.Tensor, tf.Tensor]:
    text = v1.placeholder(tf.string, (None,), name="text")
    words = tf.lookup.KeyValueTensorInitializer(["one", "two"], tf.range(2, dtype=tf.int64))
    found = tf.lookup.StaticHashTable(words, -1).lookup(text)
    return text, tf.identity(tf.cast(found, tf.float32) * v1.get_variable("scale", (), dtype=tf.float32), name="y")
