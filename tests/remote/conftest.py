"""What the tests of buckets share: one real S3 server."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.buckets import SeaweedFs


@pytest.fixture(scope="session")
def seaweedfs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SeaweedFs]:
    with SeaweedFs(tmp_path_factory.mktemp("seaweedfs")) as server:
        yield server
