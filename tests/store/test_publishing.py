"""What is published in a store is its latest, whole; what cannot be published leaves the version before."""

from __future__ import annotations

import math
import os
import resource
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from paramsync.errors import ParameterError, StoreError
from paramsync.store.commit import StoreWriter
from paramsync.store.store import Store
from paramsync.version import Version
from tests.support.whole import assert_serves
from tests.support.written import changing, files_of, names, publish_changing, version


def test_what_is_published_is_the_latest(tmp_path: Path) -> None:
    for number in (1, 2, 30):
        (committed,) = publish_changing(tmp_path / "store", number)
        assert Store(tmp_path / "store").latest() == committed
        assert_serves(tmp_path / "store", number)


def test_a_committed_version_says_when_and_how_much(tmp_path: Path) -> None:
    (committed,) = publish_changing(tmp_path, 7)
    assert committed.prefix == "ckpt-7"
    assert committed.bytes == 4 * 5 * 4 + 5 * 8
    assert committed.committed_at is not None
    assert abs(committed.committed_at - (tmp_path / "checkpoint").stat().st_mtime) < 5


def test_a_record_keeps_everything(tmp_path: Path) -> None:
    full = Version(number=8, step=3, prefix="", graph="ab12", step_done_at=1.5, snapshot_at=2.5, metrics={"loss": 0.25})
    with StoreWriter(tmp_path) as writer:
        writer.add_graph("ab12", b"graph")
        committed = writer.commit(full, changing(8))
    assert Store(tmp_path).find(8) == committed
    assert committed.metrics == {"loss": 0.25}
    assert committed.step == 3


def test_a_number_is_the_step_where_that_is_above_all_before(tmp_path: Path) -> None:
    with StoreWriter(tmp_path) as writer:
        assert writer.next_number(0) == 0
        assert writer.next_number(10) == 10
        assert writer.next_number(10) == 11  # though neither is committed
        writer.commit(version(11), changing(11))
    with StoreWriter(tmp_path) as writer:
        assert writer.next_number(4) == 12
        assert writer.next_number(100) == 100


@pytest.mark.parametrize("number", [-1, 4, 5, 10**18])
def test_a_version_must_be_above_the_latest(tmp_path: Path, number: int) -> None:
    publish_changing(tmp_path, 5)
    with pytest.raises(StoreError, match=f"expected a version above 5, found {number}"):
        publish_changing(tmp_path, number)
    assert_serves(tmp_path, 5)


def test_a_version_of_a_graph_that_was_not_added_is_refused(tmp_path: Path) -> None:
    with StoreWriter(tmp_path) as writer:
        with pytest.raises(StoreError, match="expected graph ab12 to be added before version 1"):
            writer.commit(version(1, graph="ab12"), changing(1))
        writer.add_graph("ab12", b"graph")
        writer.commit(version(1, graph="ab12"), changing(1))
    assert Store(tmp_path).graph_file("ab12").read_bytes() == b"graph"


@pytest.mark.parametrize(
    "change",
    [{"step": -1}, {"step": 1 << 63}, {"graph": "../x"}, {"metrics": {"a\n": 1.0}}],
)
def test_a_version_that_no_follower_would_believe_is_refused(tmp_path: Path, change: dict[str, Any]) -> None:
    with StoreWriter(tmp_path) as writer, pytest.raises(StoreError, match=r"version 1: expected .* found"):
        writer.commit(replace(version(1), **change), changing(1))
    assert names(tmp_path, spares=False) == set()


def test_a_metric_may_be_no_number(tmp_path: Path) -> None:
    with StoreWriter(tmp_path) as writer:
        writer.commit(replace(version(1), metrics={"loss": float("nan")}), changing(1))
    assert math.isnan(Store(tmp_path).find(1).metrics["loss"])


def test_a_closed_writer_publishes_nothing(tmp_path: Path) -> None:
    writer = StoreWriter(tmp_path)
    writer.close()
    writer.close()
    with pytest.raises(StoreError, match="is closed"):
        writer.commit(version(1), changing(1))


# What fails -----------------------------------------------------------------------------------------------------------


def fill(path: Path) -> Callable[[], None]:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (30, before[1]))  # enough for a mark and the first bytes
    return lambda: resource.setrlimit(resource.RLIMIT_FSIZE, before)


def forbid(path: Path) -> Callable[[], None]:
    if os.geteuid():
        path.chmod(0o500)
        return lambda: path.chmod(0o700)
    aside = path.with_name("aside")  # nobody forbids root anything
    path.rename(aside)
    path.touch()

    def restore() -> None:
        path.unlink()
        aside.rename(path)

    return restore


def block(path: Path) -> Callable[[], None]:
    """The record cannot be written: what fails comes after data and index."""
    (path / ".tmp-ckpt-4.json").mkdir()
    return (path / ".tmp-ckpt-4.json").rmdir


@pytest.mark.parametrize("harm", [fill, forbid, block])
def test_a_publication_that_fails_leaves_the_version_before(
    tmp_path: Path, harm: Callable[[Path], Callable[[], None]]
) -> None:
    path = tmp_path / "store"
    with StoreWriter(path, keep=2) as writer:
        for number in (1, 2, 3):
            writer.commit(version(number), changing(number))
        heal = harm(path)
        with pytest.raises(StoreError, match=r"version 4 was not published: |expected a directory, found a file"):
            writer.commit(version(4), changing(4))
        heal()
        assert names(path, spares=False) == files_of(2, 3, data=1)
        assert_serves(path, 3)
        writer.commit(version(5), changing(5))
    assert names(path, spares=False) == files_of(3, 5, data=1)
    assert_serves(path, 5)


def test_a_tensor_that_cannot_be_stored_leaves_the_version_before(tmp_path: Path) -> None:
    with StoreWriter(tmp_path) as writer:
        writer.commit(version(1), changing(1))
        with pytest.raises(ParameterError, match="'zz'"):
            writer.commit(version(2), {**changing(2), "zz": np.array([1], object)})
        assert names(tmp_path, spares=False) == files_of(1, data=1)
    assert_serves(tmp_path, 1)
