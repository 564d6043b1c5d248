"""A replica restores aside, refuses what does not fit or is not signed, and swaps by one assignment."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from paramsync.errors import (
    CorruptCheckpointError,
    GraphError,
    ParameterError,
    UnsafeGraphError,
)
from paramsync.following.follower import Follower
from paramsync.following.replica import Replica
from paramsync.store.store import Store
from paramsync.version import Version
from tests.support.followers import freed_by
from tests.support.keys import Keys, keys, listed
from tests.support.published import (
    GATED_OPS,
    PARAMETERS,
    Doubled,
    Gated,
    Publisher,
    ask,
    captured,
    proven,
    values,
)

X = {"x": np.ones([3, 2], np.float32)}


@pytest.fixture
def replica(publisher: Publisher) -> Replica:
    return Replica("m", Store(publisher.path), allowed=GATED_OPS)


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


def test_a_graph_file_of_another_graph_is_refused(publisher: Publisher, replica: Replica) -> None:
    version = publisher.publish(1)
    other = captured(Doubled).graph
    (publisher.path / f"graph-{version.graph}.pb").write_bytes(other.to_bytes())
    with pytest.raises(GraphError, match=f"{version.graph}.*{other.digest}"):
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


def test_a_record_without_the_checksum_of_what_was_looked_at_is_not_believed(
    publisher: Publisher, replica: Replica
) -> None:
    version = publisher.publish_believed(1, values(np.nan, captured()))
    with pytest.raises(ParameterError, match="found NaN or infinity"):
        replica.restore(replace(version, checksum=""))
    with pytest.raises(CorruptCheckpointError, match="expected the record of the parameters in ckpt-1"):
        replica.restore(replace(version, checksum="ab12"))


def is_mapped(inode: int) -> bool:
    """Whether a reader in this process maps the file; a writer's mapping is shared, a reader's private."""
    mappings = [line.split() for line in Path("/proc/self/maps").read_text().splitlines()]
    return any(access.endswith("p") and number == str(inode) for _, access, _, _, number, *_ in mappings)


def data_inode(publisher: Publisher, version: Version) -> int:
    return (publisher.path / f"{version.prefix}.data-00000-of-00001").stat().st_ino


def test_a_version_dropped_while_a_request_holds_it_is_freed_by_the_follower(publisher: Publisher) -> None:
    follower = Follower(Replica("m", publisher.path))
    first = publisher.publish(1)
    inode = data_inode(publisher, first)
    follower.run_once()
    request = [follower.replica.take()]
    threads = freed_by(request[0])
    for step in (2, 3):
        publisher.publish(step)
        follower.run_once()
    assert 1 not in follower.status().resident
    assert request[0].predict(X)["seen"].numpy().tolist() == [1.0] * PARAMETERS
    ends = threading.Thread(target=request.clear, name="request")
    ends.start()
    ends.join()
    assert threads == []
    assert is_mapped(inode)
    assert follower.run_once() is None
    assert threads == [threading.current_thread().name]
    assert not is_mapped(inode)


@pytest.fixture
def pair(tmp_path: Path) -> Keys:
    return keys(tmp_path)


@pytest.fixture
def signing(tmp_path: Path, pair: Keys) -> Iterator[Publisher]:
    publisher = Publisher(tmp_path / "store", signing_key=pair.private)
    yield publisher
    publisher.close()


def following(path: Path, pair: Keys) -> Follower:
    return Follower(Replica("m", path, trust=[pair.public]), poll_seconds=60.0)


def reasons(follower: Follower) -> dict[int, str]:
    return {one.number: one.reason for one in follower.status().quarantined}


def test_signed_versions_serve_and_an_unsigned_one_is_passed_over(
    tmp_path: Path, pair: Keys, signing: Publisher
) -> None:
    follower = following(signing.path, pair)
    signing.publish(1)
    follower.run_once()
    assert proven(ask(follower)[0], 1)
    assert follower.status().signed_by == pair.id
    signing.close()
    unsigned = Publisher(signing.path)
    unsigned.publish(2)
    unsigned.close()
    follower.run_once()
    assert ask(follower)[1] == 1
    assert "expected a signature" in reasons(follower)[2]
    again = Publisher(signing.path, signing_key=pair.private)
    again.publish(3)
    again.close()
    follower.run_once()
    assert proven(ask(follower)[0], 3)


def test_a_signed_version_serves_from_a_copy_that_no_writer_of_the_store_can_change(
    pair: Keys, signing: Publisher
) -> None:
    follower = following(signing.path, pair)
    version = signing.publish(1)
    follower.run_once()
    for data in signing.path.glob(f"{version.prefix}.data-*"):
        with data.open("r+b") as file:
            file.write(b"\1" * data.stat().st_size)
    assert proven(ask(follower)[0], 1)


def test_an_old_version_is_not_taken_for_the_newest_while_a_newer_one_serves(pair: Keys, signing: Publisher) -> None:
    """An attacker who can write into the store lists only the old version, whose signature is valid."""
    follower = following(signing.path, pair)
    old = signing.publish(1)
    signing.publish(2)
    follower.run_once()
    listed(signing.path, old.prefix)
    follower.run_once()
    assert ask(follower)[1] == 2
