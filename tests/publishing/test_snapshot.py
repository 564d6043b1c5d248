"""Snapshots of real variables."""

from __future__ import annotations

import numpy as np
import tensorflow as tf

from paramsync.graphs.capturing import capture
from paramsync.publishing.live_variables import LiveVariables
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


def test_a_snapshot_keeps_the_values_of_its_step_through_later_updates() -> None:
    model = Affine()
    taken = snapshot(model)
    model.scale.assign_add(tf.ones_like(model.scale))
    model.shift.assign_add(tf.ones_like(model.shift))
    arrays = {array.shape: array for name, array in taken.tensors().items() if array.dtype != object}
    assert (arrays[1024, 1024] == 1).all()
    assert (arrays[1024,].astype(np.float32) == 0).all()
    assert (model.scale.numpy() == 2).all()


def test_a_snapshot_shares_the_variables_memory() -> None:
    model = Affine()
    live = np.asarray(model.scale.read_value())
    assert any(np.shares_memory(live, array) for array in snapshot(model).tensors().values() if array.dtype != object)


def test_a_snapshot_names_what_tensorflow_looks_for_in_a_checkpoint() -> None:
    assert set(snapshot(Affine()).tensors()) == {
        "scale/.ATTRIBUTES/VARIABLE_VALUE",
        "shift/.ATTRIBUTES/VARIABLE_VALUE",
        "_CHECKPOINTABLE_OBJECT_GRAPH",
    }


def written(model: tf.Module, frozen: FrozenVariables, unchanged: set[str]) -> set[str]:
    """Publish a snapshot of which the store finds these unchanged; returns what was known to be."""
    taken = snapshot(model)
    tensors = taken.tensors()
    known = frozen.names(tensors)
    frozen.published(taken, tensors, unchanged)
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


def test_a_variable_that_is_rewritten_with_its_own_values_is_held_once_and_no_more() -> None:
    model, frozen = Affine(), FrozenVariables()
    written(model, frozen, {SCALE})
    places = []
    for _ in range(4):
        model.scale.assign_add(tf.zeros_like(model.scale))
        places.append(np.asarray(model.scale.read_value()).ctypes.data)
        assert written(model, frozen, {SCALE}) == set()
    assert len(set(places)) == 1


def test_what_has_no_buffer_of_its_own_is_never_known() -> None:
    model, frozen = Affine(), FrozenVariables()
    for _ in range(3):
        assert "_CHECKPOINTABLE_OBJECT_GRAPH" not in written(model, frozen, {"_CHECKPOINTABLE_OBJECT_GRAPH"})
