"""A replica restores aside, refuses what does not fit, swaps by one assignment and answers from one version."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from paramsync.errors import (
    CorruptCheckpointError,
    GraphError,
    InputError,
    ParameterError,
    UnknownSignatureError,
    UnsafeGraphError,
)
from paramsync.following.replica import Replica
from paramsync.graphs.graph import Graph
from paramsync.store.store import Store
from tests.support.published import (
    GATED_OPS,
    PARAMETERS,
    Doubled,
    Gated,
    Publisher,
    captured,
    saver_store,
    values,
)

X = {"x": np.ones([3, 2], np.float32)}


@pytest.fixture
def replica(publisher: Publisher) -> Replica:
    return Replica("m", Store(publisher.path), allowed=GATED_OPS)


def test_an_answer_comes_from_the_version_it_names(publisher: Publisher, replica: Replica) -> None:
    replica.swap(replica.restore(publisher.publish(7)))
    outputs, version = replica.predict(X)
    assert version.number == 7
    assert outputs["seen"].numpy().tolist() == [7.0] * PARAMETERS
    assert outputs["total"].numpy().tolist() == [2.0 * 7 * PARAMETERS] * 3


def test_restoring_changes_nothing_before_the_swap(publisher: Publisher, replica: Replica) -> None:
    replica.swap(replica.restore(publisher.publish(1)))
    restored = replica.restore(publisher.publish(2))
    assert replica.predict(X)[1].number == 1
    replica.swap(restored)
    assert replica.predict(X)[1].number == 2


def test_a_version_in_use_outlives_its_files_and_its_place(publisher: Publisher, replica: Replica) -> None:
    replica.swap(replica.restore(publisher.publish(1)))
    held = replica.take()
    for step in range(2, 10):
        replica.swap(replica.restore(publisher.publish(step)))
    assert not (publisher.path / "ckpt-1.index").exists()
    assert held.predict(X)["seen"].numpy().tolist() == [1.0] * PARAMETERS


def test_restored_parameters_are_the_mapped_file(publisher: Publisher, replica: Replica) -> None:
    restored = replica.restore(publisher.publish(5))
    path = publisher.path / "ckpt-5.data-00000-of-00001"
    assert str(path) in Path("/proc/self/maps").read_text()
    del restored


def test_a_missing_graph_file_is_named(publisher: Publisher, replica: Replica) -> None:
    version = publisher.publish(1)
    (publisher.path / f"graph-{version.graph}.pb").unlink()
    with pytest.raises(GraphError, match=f"version 1 needs the graph file .*{version.graph}"):
        replica.restore(version)


def test_a_program_that_is_missing_while_a_graph_is_built_is_no_missing_graph_file(
    publisher: Publisher, replica: Replica, monkeypatch: pytest.MonkeyPatch
) -> None:
    version = publisher.publish(1)

    def build(*_: object, **__: object) -> Graph:
        raise FileNotFoundError("no python3 to start")

    monkeypatch.setattr(Graph, "from_bytes", build)
    with pytest.raises(FileNotFoundError, match="no python3 to start"):
        replica.restore(version)


def test_a_graph_file_of_another_graph_is_refused(publisher: Publisher, replica: Replica) -> None:
    version = publisher.publish(1)
    other = captured(Doubled).graph
    (publisher.path / f"graph-{version.graph}.pb").write_bytes(other.to_bytes())
    with pytest.raises(GraphError, match=f"{version.graph}.*{other.digest}"):
        replica.restore(version)


def test_a_graph_file_of_garbage_is_refused(publisher: Publisher, replica: Replica) -> None:
    version = publisher.publish(1)
    (publisher.path / f"graph-{version.graph}.pb").write_bytes(os.urandom(1000))
    with pytest.raises(GraphError):
        replica.restore(version)


def test_a_graph_that_does_more_than_compute_is_refused_by_the_name_of_its_op(publisher: Publisher) -> None:
    version = publisher.publish(1, kind=Gated)
    with pytest.raises(UnsafeGraphError, match=r"'MatchingFiles'.*, 'WriteFile'.*--allow-op NAME"):
        Replica("m", Store(publisher.path)).restore(version)
    with pytest.raises(UnsafeGraphError, match=r"^((?!WriteFile).)*$"):
        Replica("m", Store(publisher.path), allowed=["WriteFile"]).restore(version)
    assert Replica("m", Store(publisher.path), allowed=GATED_OPS).restore(version).version == version
    with pytest.raises(UnsafeGraphError):  # allowed there, and nowhere else
        Replica("m", Store(publisher.path)).restore(version)


def test_a_graph_that_cannot_compute_on_made_up_inputs_is_served(publisher: Publisher, replica: Replica) -> None:
    replica.swap(replica.restore(publisher.publish(1, kind=Gated)))  # it cannot write a file without a name
    assert replica.take().version.number == 1


def first_name() -> str:
    return captured().graph.parameters[0].name


def test_a_missing_parameter_is_named(publisher: Publisher, replica: Replica) -> None:
    tensors = values(1, captured())
    del tensors[first_name()]
    with pytest.raises(ParameterError, match=first_name().replace(".", r"\.")):
        replica.restore(publisher.publish(1, tensors=tensors))


@pytest.mark.parametrize(
    ("broken", "found"),
    [
        (np.zeros([64, 31], np.float32), r"float32 \[64, 31\]"),
        (np.zeros([64, 32, 1], np.float32), r"float32 \[64, 32, 1\]"),
        (np.zeros([64, 32], np.float64), r"float64 \[64, 32\]"),
        (np.full([64, 32], b"no", object), r"string \[64, 32\]"),
    ],
)
def test_a_parameter_that_does_not_fit_is_named_with_both_sides(
    publisher: Publisher, replica: Replica, broken: np.ndarray, found: str
) -> None:
    tensors = values(1, captured()) | {first_name(): broken}
    with pytest.raises(ParameterError, match=rf"expected {first_name()} float32 \[64, 32\], found {found}"):
        replica.restore(publisher.publish(1, tensors=tensors))


def test_wrong_requests_are_refused_with_both_sides(publisher: Publisher, replica: Replica) -> None:
    replica.swap(replica.restore(publisher.publish(1)))
    with pytest.raises(UnknownSignatureError, match="serving_default"):
        replica.predict(X, signature="train")
    with pytest.raises(InputError, match="expected 'x', found 'y'"):
        replica.predict({"y": X["x"]})
    with pytest.raises(InputError, match=r"expected float32 \[\?, 2\], found float32 \[3, 3\]"):
        replica.predict({"x": np.ones([3, 3])})
    with pytest.raises(InputError, match=r"expected some of 'seen', 'total', found 'logits'"):
        replica.predict(X, outputs=["logits"])


def test_lists_and_numbers_of_another_dtype_are_taken_where_nothing_is_lost(
    publisher: Publisher, replica: Replica
) -> None:
    replica.swap(replica.restore(publisher.publish(3)))
    for value in ([[1.0, 2.0]], [[1, 2]], np.array([[1.0, 2.0]]), np.array([[1, 2]], np.uint8)):
        answer, version = replica.predict({"x": value})
        assert (answer["total"].numpy().tolist(), version.number) == ([3.0 * 3 * PARAMETERS], 3)
    with pytest.raises(InputError, match=r"pass \.astype"):
        replica.predict({"x": [[1j, 2.0]]})


X = {"x": np.ones([3, 2], np.float32)}


def test_without_inputs_and_outputs_such_a_store_says_what_to_give(tmp_path: Path) -> None:
    saver_store(tmp_path / "v1", 1)
    store = Store(tmp_path / "v1")
    with pytest.raises(GraphError, match="--inputs and --outputs"):
        Replica("m", store).restore(store.versions()[0])


def test_a_record_without_the_checksum_of_what_was_looked_at_is_not_believed(
    publisher: Publisher, replica: Replica
) -> None:
    version = publisher.publish_believed(1, values(np.nan, captured()))
    with pytest.raises(ParameterError, match="found NaN or infinity"):
        replica.restore(replace(version, checksum=""))
    with pytest.raises(CorruptCheckpointError, match="expected the record of the parameters in ckpt-1"):
        replica.restore(replace(version, checksum="ab12"))
