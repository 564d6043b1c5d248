"""What a version leaves behind goes when no request needs it, and the follower is who pays for that."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from paramsync.following.follower import Follower
from paramsync.following.replica import Replica
from paramsync.store.store import Store
from paramsync.version import Version
from tests.support.followers import freed_by
from tests.support.published import GATED_OPS, PARAMETERS, Publisher

X = {"x": np.ones([3, 2], np.float32)}


@pytest.fixture
def publisher(tmp_path: Path) -> Iterator[Publisher]:
    publisher = Publisher(tmp_path / "store")
    yield publisher
    publisher.close()


@pytest.fixture
def replica(publisher: Publisher) -> Replica:
    return Replica("m", Store(publisher.path), allowed=GATED_OPS)


def is_mapped(inode: int) -> bool:
    """Whether a reader in this process has it; writers share what they map."""
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
