"""Tests here look into the parts of a server: it is one without workers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.running import LocalRunning


@pytest.fixture
def running(tmp_path: Path) -> Iterator[LocalRunning]:
    """A server of model `m`, whose store is empty as yet."""
    running = LocalRunning(tmp_path / "m")
    yield running
    running.drain()
    running.close()
