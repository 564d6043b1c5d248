"""Strangers in a store: what they remove, replace, write and leave there while a publisher has it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from paramsync.errors import StoreError, StoreLockedError
from paramsync.store.commit import StoreWriter
from paramsync.store.store import Store
from tests.support.programs import ROOT
from tests.support.whole import assert_whole
from tests.support.written import tensors, version


def test_a_store_that_was_removed_is_made_again(tmp_path: Path) -> None:
    path = tmp_path / "store"
    with StoreWriter(path) as writer:
        writer.commit(version(1), tensors(1))
        shutil.rmtree(path)
        writer.commit(version(2), tensors(2), unchanged=["frozen"])  # the same, but there is nothing left of it
        writer.commit(version(3), tensors(3), unchanged=["frozen"])
    assert assert_whole(path) == 3


def test_a_store_that_was_replaced_has_one_publisher_all_the_same(tmp_path: Path) -> None:
    path = tmp_path / "store"
    with StoreWriter(path) as first:
        first.commit(version(1), tensors(1))
        path.rename(tmp_path / "aside")
        with StoreWriter(path) as second:
            second.commit(version(5), tensors(5))
            with pytest.raises(StoreLockedError, match=f"process {os.getpid()} on"):
                first.commit(version(6), tensors(6))
            second.commit(version(7), tensors(7))
        first.commit(version(8), tensors(8))  # the other one has gone
    assert assert_whole(path) == 8


def test_a_checkpoint_of_another_writer_is_found_though_the_state_was_remembered(tmp_path: Path) -> None:
    with StoreWriter(tmp_path) as writer:
        writer.commit(version(1), tensors(1))
        tf.train.Checkpoint(weights=tf.Variable(1.0)).write(str(tmp_path / "theirs-5"))
        tf.compat.v1.train.update_checkpoint_state(
            str(tmp_path), "theirs-5", all_model_checkpoint_paths=["ckpt-1", "theirs-5"]
        )
        with pytest.raises(StoreError, match="expected a version above 5"):
            writer.commit(version(2), tensors(2))
        writer.commit(version(6), tensors(6))
    assert [one.prefix for one in Store(tmp_path).versions()] == ["ckpt-1", "theirs-5", "ckpt-6"]


def largest(path: Path, number: int) -> Path:
    return max(path.glob(f"ckpt-{number}.data-*"), key=lambda file: file.stat().st_size)


@pytest.mark.parametrize("told", [[], ["frozen", "kernel", "bias"]], ids=["compared", "told"])
@pytest.mark.parametrize("harm", ["cut", "changed"])
def test_a_data_file_that_a_stranger_harmed_is_written_anew(tmp_path: Path, harm: str, told: list[str]) -> None:
    with StoreWriter(tmp_path, keep=2) as writer:
        writer.commit(version(1), tensors(1))
        file = largest(tmp_path, 1)
        if harm == "cut":
            os.truncate(file, 100)
        else:
            with file.open("r+b") as harmed:
                harmed.write(b"harm")
        writer.commit(version(2), tensors(1), unchanged=told)
        opened = Store(tmp_path).open(Store(tmp_path).find(2))
        opened.verify(opened.entries)
        assert all(np.array_equal(opened.array(name), array) for name, array in tensors(1).items())


def test_closing_in_a_forked_child_leaves_the_parent_its_store(tmp_path: Path) -> None:
    script = (
        "import os, sys; from pathlib import Path\n"
        "from paramsync.store.commit import StoreWriter; from paramsync.errors import StoreLockedError\n"
        "writer = StoreWriter(Path(sys.argv[1]))\n"
        "if os.fork() == 0:\n    writer.close()\n    os._exit(0)\n"
        "os.wait()\n"
        "try:\n    StoreWriter(Path(sys.argv[1]))\n"
        "except StoreLockedError:\n    print('locked')\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, tmp_path], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout == "locked\n"


@pytest.mark.parametrize("kind", ["link", "fifo"])
def test_what_lies_under_a_temporary_name_is_replaced_and_never_followed(tmp_path: Path, kind: str) -> None:
    victim = tmp_path / "victim"
    victim.write_text("safe")
    store = tmp_path / "store"
    with StoreWriter(store) as writer:
        if kind == "link":
            (store / ".tmp-checkpoint").symlink_to(victim)
        else:
            os.mkfifo(store / ".tmp-checkpoint")
        writer.commit(version(1), tensors(1))
    assert victim.read_text() == "safe"
    assert assert_whole(store) == 1
