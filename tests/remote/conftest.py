"""What the tests of buckets share: one real S3 server, and a pair of stores with a bucket in memory between them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.buckets import SeaweedFs
from tests.support.mirrors import Pair


@pytest.fixture(scope="session")
def seaweedfs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SeaweedFs]:
    with SeaweedFs(tmp_path_factory.mktemp("seaweedfs")) as server:
        yield server


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Pair]:
    made = Pair(tmp_path)
    yield made
    made.close()
