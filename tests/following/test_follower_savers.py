"""What TensorFlow's Saver writes is followed too, its graphs as soon as they are whole."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest

from paramsync.following.policy import Failures
from paramsync.status import EventKind
from paramsync.version import Candidate, Version
from tests.support.followers import LONG, SILENT, quarantined, saver_follower, serving
from tests.support.programs import eventually
from tests.support.published import saver_store


def test_each_checkpoint_of_a_saver_is_served_soon_and_none_is_quarantined(tmp_path: Path) -> None:
    path = tmp_path / "m"
    path.mkdir()
    follower = saver_follower(path)
    events = follower.subscribe(lambda: None)
    follower.start()

    def served(step: int) -> None:
        eventually(lambda: serving(follower) == step, lambda: f"version {step}")

    began = time.monotonic()
    saver_store(path, 5, served)
    assert time.monotonic() - began < 20.0  # far below one poll
    follower.close()
    assert EventKind.QUARANTINED not in [one.kind for one in events.take()]


def test_a_graph_still_being_written_is_waited_for_and_then_a_fault(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "m"
    path.mkdir()
    saver_store(path, 1)
    meta = path / "model-1.meta"
    content = meta.read_bytes()
    follower = saver_follower(path)
    meta.unlink()
    for part in (None, b"", content[:100]):
        if part is not None:
            meta.write_bytes(part)
        follower.run_once()
        assert (serving(follower), quarantined(follower)) == (None, [])
    monkeypatch.setattr("paramsync.following.policy.UNFINISHED_SECONDS", 0.0)
    follower.run_once()
    assert "not a readable meta graph" in follower.status().quarantined[0].reason
    meta.unlink()
    follower.run_once()
    reason = follower.status().quarantined[0].reason
    assert f"needs the graph file {meta}, which is not there: have Saver.save write it" in reason
    meta.write_bytes(content)
    follower.run_once()
    assert (serving(follower), quarantined(follower)) == (1, [])


def test_a_graph_that_comes_unnoticed_is_found_long_before_the_next_poll(tmp_path: Path) -> None:
    path = tmp_path / "m"
    path.mkdir()
    saver_store(path, 1)
    content = (path / "model-1.meta").read_bytes()
    (path / "model-1.meta").unlink()
    follower = saver_follower(path)
    looked = threading.Event()
    follower.subscribe(looked.set)
    follower.start(SILENT)
    assert looked.wait(LONG)
    (path / "model-1.meta").write_bytes(content)
    eventually(lambda: serving(follower) == 1, lambda: "version 1")
    follower.close()


def test_patience_doubles_and_ends_and_begins_again_with_other_files() -> None:
    patience = Failures()
    one = Candidate(Version(number=1, step=1, prefix="model-1", step_done_at=0.0, snapshot_at=0.0), "files")
    assert [patience.incomplete(one, now) for now in (10.0, 10.05, 10.1, 11.0, 12.0)] == pytest.approx(
        [0.05, 0.05, 0.1, 1.0, None]
    )
    assert patience.incomplete(Candidate(one.version, "others"), 13.0) == 0.05
