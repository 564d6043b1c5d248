"""What is believed of a version, and what is looked at: our publisher's word, everything of what TensorFlow wrote."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from paramsync.errors import (
    CorruptCheckpointError,
    GraphError,
    ParameterError,
)
from paramsync.following.replica import Replica
from paramsync.store.store import Store
from tests.support.published import GATED_OPS, Publisher, captured, saver_store, values

X = {"x": np.ones([3, 2], np.float32)}


@pytest.fixture
def replica(publisher: Publisher) -> Replica:
    return Replica("m", Store(publisher.path), allowed=GATED_OPS)


def test_a_store_of_savers_checkpoints_is_served_with_the_graph_of_its_meta_file(tmp_path: Path) -> None:
    saver_store(tmp_path / "v1", 2)
    store = Store(tmp_path / "v1")
    replica = Replica("m", store, inputs=["x:0"], outputs=["y:0"])
    one, two = (replica.restore(version) for version in store.versions())
    replica.swap(two)
    outputs, version = replica.predict(X)
    assert version.number == 2
    assert next(iter(outputs.values())).numpy().tolist() == [[2.0, 2.0]] * 3
    assert one.graph is two.graph  # their .meta files are the same


def test_without_inputs_and_outputs_such_a_store_says_what_to_give(tmp_path: Path) -> None:
    saver_store(tmp_path / "v1", 1)
    store = Store(tmp_path / "v1")
    with pytest.raises(GraphError, match="--inputs and --outputs"):
        Replica("m", store).restore(store.versions()[0])


def test_a_checkpoint_of_tensorflow_that_is_cut_while_it_serves_goes_on_serving(tmp_path: Path) -> None:
    saver_store(tmp_path / "v1", 1)
    store = Store(tmp_path / "v1")
    replica = Replica("m", store, inputs=["x:0"], outputs=["y:0"])
    replica.swap(replica.restore(store.versions()[0]))
    os.truncate(next(tmp_path.glob("v1/*.data-*")), 0)
    assert next(iter(replica.predict(X)[0].values())).numpy().tolist() == [[1.0, 1.0]] * 3


def test_a_publisher_that_says_that_values_are_finite_is_believed(publisher: Publisher, replica: Replica) -> None:
    replica.swap(replica.restore(publisher.publish_believed(1, values(np.nan, captured()))))
    assert np.isnan(replica.predict(X)[0]["seen"].numpy()).all()


@pytest.mark.parametrize("finite", [True, False])
def test_damage_is_found_whether_or_not_values_are_looked_at(
    publisher: Publisher, replica: Replica, finite: bool
) -> None:
    version = publisher.publish(1, finite=finite)
    assert version.finite is finite
    publisher.flip(version)
    with pytest.raises(CorruptCheckpointError, match="expected checksum"):
        replica.restore(version)


def test_a_record_without_the_checksum_of_what_was_looked_at_is_not_believed(
    publisher: Publisher, replica: Replica
) -> None:
    version = publisher.publish_believed(1, values(np.nan, captured()))
    with pytest.raises(ParameterError, match="found NaN or infinity"):
        replica.restore(replace(version, checksum=""))
    with pytest.raises(CorruptCheckpointError, match="expected the record of the parameters in ckpt-1"):
        replica.restore(replace(version, checksum="ab12"))
