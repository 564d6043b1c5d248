"""A version that is copied in slowly, whatever comes first: once it is whole it serves, till then the one before."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tensorflow as tf

from paramsync.following.follower import Follower
from paramsync.following.replica import Replica
from paramsync.store.store import CheckpointState, read_state, state_file, state_text
from tests.support.followers import serving
from tests.support.published import Publisher, saver_store
from tests.support.stores import Scaled, saved_by_v2

Write = Callable[[Path], dict[str, Any]]
"""Writes versions 1 and 2; returns what a replica has to be told."""


def ours(path: Path) -> dict[str, Any]:
    publisher = Publisher(path)
    for step in (1, 2):
        publisher.publish(step)
    publisher.close()
    return {}


def savers(path: Path) -> dict[str, Any]:
    saver_store(path, 2)
    return {"inputs": ["x:0"], "outputs": ["y:0"]}


def managers(path: Path) -> dict[str, Any]:
    scaled = Scaled()
    manager = tf.train.CheckpointManager(tf.train.Checkpoint(net=scaled), str(path), None)
    for step in (1, 2):
        scaled.fill(step)
        manager.save(step)
    tf.saved_model.save(scaled, str(path.with_name("graph")), signatures=scaled.__call__)
    return {"graph": path.with_name("graph")}


def numbered(path: Path) -> dict[str, Any]:
    for number in (1, 2):
        saved_by_v2(path / str(number), number)
    return {}


BY_NAME = ""
CASES: list[tuple[Write, str]] = [
    (ours, BY_NAME),
    (ours, ".json"),
    (ours, ".data-"),
    (ours, ".index"),
    (savers, BY_NAME),
    (savers, ".meta"),
    (savers, ".data-"),
    (managers, ".data-"),
    (managers, ".index"),
    (numbered, ".data-"),
    (numbered, ".index"),
    (numbered, "saved_model.pb"),
]


@pytest.mark.parametrize(("write", "last"), CASES, ids=[f"{write.__name__}, {last}" for write, last in CASES])
def test_it_serves_as_soon_as_its_last_file_is_whole(tmp_path: Path, write: Write, last: str) -> None:
    whole, base = tmp_path / "whole", tmp_path / "base"
    told = write(whole)
    shutil.copytree(whole, base)
    take_away_the_second(base)
    follower = Follower(Replica("m", base, **told))
    follower.run_once()
    files = [one.relative_to(whole) for one in sorted(whole.rglob("*")) if one.is_file()]
    missing = [one for one in files if one.name == "checkpoint" or not (base / one).exists()]
    missing.sort(key=lambda one: (one.name != "fingerprint.pb", bool(last) and last in one.name))
    assert len(missing) > 2
    for one in missing:
        content = (whole / one).read_bytes()
        (base / one).parent.mkdir(parents=True, exist_ok=True)
        for part in (content[:0], content[: len(content) // 2], content):
            assert serving(follower) == 1
            (base / one).write_bytes(part)
            follower.run_once()
    assert (serving(follower), follower.status().quarantined, follower.status().reason) == (2, (), "")


def take_away_the_second(base: Path) -> None:
    state = read_state(base)
    if state is None:
        shutil.rmtree(base / "2")
        return
    state_file(base).write_text(state_text(CheckpointState(state.names[0], state.names[:1])))
    for one in base.glob(f"{state.latest}.*"):
        one.unlink()
