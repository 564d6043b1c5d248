"""Hostile requests do not hold the event loop: others are answered meanwhile."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.hostile.campaigns.bodies import NONE, holds, holds_by_grpc
from tests.support.http import small_limits
from tests.support.running import LONG

KINDS = {
    60_000: ("keys, one twice", "objects", "v2, many parameters"),
    1 << 20: ("lists", "bytes, as examples", "spaces, packed", "v2, strings", "v2, binary", "v2, a long id", "answers"),
}
MOST = 0.3
"""Seconds, on a busy machine: 20 ms is what `python -m tests.hostile.campaigns.bodies` shows on one that is not."""


@contextmanager
def frozen() -> Iterator[None]:
    """What was made so far is no work for the garbage collector, as in a worker."""
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.mark.slow
def test_no_request_holds_the_event_loop(tmp_path: Path) -> None:
    with small_limits(tmp_path, patience=LONG) as web, frozen():
        for size, kinds in KINDS.items():
            found = holds(web.rest_port, web.loop, size, kinds=kinds)
            assert found.keys() == {*kinds, NONE}
            assert {name: seconds for name, (seconds, _) in found.items() if seconds > MOST} == {}
        assert [found[kind][1] for kind in ("answers", "v2, binary", "v2, a long id")] == ["200"] * 3
        found = holds_by_grpc((web.port, web.control_port), web.loop, 1 << 20)
        assert {name: seconds for name, (seconds, _) in found.items() if seconds > MOST} == {}
        assert found["tensor_content"][1] == found["raw"][1] == "OK"
