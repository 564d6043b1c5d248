"""What the tests of buckets share: servers of object stores, and a pair of stores with a bucket in memory between."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import cache
from pathlib import Path

import pytest

from paramsync.remote import child
from tests.support.buckets import SeaweedFs
from tests.support.mirrors import Pair
from tests.support.object_stores import SERVERS, ObjectStore


@pytest.fixture(scope="session")
def seaweedfs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SeaweedFs]:
    with SeaweedFs(tmp_path_factory.mktemp("seaweedfs")) as server:
        yield server


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], ObjectStore]]:
    """Starts the server of a name, once."""
    with ExitStack() as stack:
        yield cache(lambda name: stack.enter_context(SERVERS[name](tmp_path_factory.mktemp(name))))


@pytest.fixture
def folder(request: pytest.FixtureRequest) -> str:
    """The name of a folder of this test, for addresses."""
    return re.sub("[^a-z_]", "-", request.node.name)


@pytest.fixture
def address(seaweedfs: SeaweedFs, folder: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> str:
    """The address of a folder of this test, in a bucket that programs find by their environment."""
    for name, value in seaweedfs.environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(child, "_MEMORY", tmp_path)
    return f"s3://{seaweedfs.bucket}/{folder}"


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Pair]:
    made = Pair(tmp_path)
    yield made
    made.close()
