"""A publisher that is killed at any step, or dies in the middle of a copy, leaves a whole store to the next one."""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from paramsync.checkpoint.file_pool import SPARES
from paramsync.store.commit import StoreWriter
from tests.support.programs import ROOT
from tests.support.whole import assert_whole
from tests.support.written import files_of, is_spare, names, publish

KILLED = """
import os, signal, sys
from pathlib import Path
from paramsync.store.commit import StoreWriter
from tests.support.written import tensors, version
path, step = Path(sys.argv[1]), int(sys.argv[2])
events = {"os.rename", "os.remove", "os.link", "open", "fcntl.flock", "mmap.__new__", "os.posix_fallocate"}
seen = 0
def kill(event, arguments):
    global seen
    if event in events and (event == "fcntl.flock" or str(path) in str(arguments[0])):
        seen += 1
        if seen == step:
            os.kill(os.getpid(), signal.SIGKILL)
with StoreWriter(path, keep=2) as writer:
    writer.add_graph("ab", b"graph")
    for number in (1, 2, 3, 4):
        writer.commit(version(number, graph="ab"), tensors(number))
    writer.add_graph("cd", b"graph")
    sys.addaudithook(kill)
    for number in (5, 6):
        writer.commit(version(number, graph="cd"), tensors(number))
"""


@pytest.mark.promise
@pytest.mark.slow
def test_a_publisher_killed_at_any_step_leaves_a_whole_store(tmp_path: Path) -> None:
    """The steps include links to what did not change, and files that are overwritten in place."""
    for step in range(1, 200):
        path = tmp_path / str(step)
        command = [sys.executable, "-c", KILLED, str(path), str(step)]
        ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
        latest = assert_whole(path)
        assert latest in (4, 5, 6)
        StoreWriter(path).close()
        left = names(path)
        graphs = {"graph-ab.pb"} if latest == 4 else {"graph-cd.pb"} if latest == 6 else {"graph-ab.pb", "graph-cd.pb"}
        found = {name for name in left if not is_spare(name)}
        # a graph that no version had yet may wait for its first
        assert found | {"graph-cd.pb"} == files_of(latest - 1, latest) | graphs | {"graph-cd.pb"}, step
        assert sum(map(is_spare, left)) <= SPARES
        publish(path, 9, keep=2)
        assert assert_whole(path) == 9
        if ended.returncode != -signal.SIGKILL:
            assert ended.returncode == 0, ended.stderr
            assert step > 40
            return
        shutil.rmtree(path)
    pytest.fail("there are fewer steps than that")


HALF_WAY = """
import mmap, sys
from pathlib import Path
import numpy as np
from paramsync.store.commit import StoreWriter
from tests.support.written import tensors, version
path, reused = Path(sys.argv[1]), sys.argv[2] == "reused"
broken = path.with_name("broken")
broken.write_bytes(bytes(8000))
with broken.open("r+b") as file:
    missing = np.frombuffer(mmap.mmap(file.fileno(), 8000), np.float32).reshape(40, 50)
    file.truncate(0)  # whoever reads it now is ended by the kernel
with StoreWriter(path, keep=2) as writer:
    for number in range(1, 6 if reused else 2):
        writer.commit(version(number), tensors(number))
    writer.commit(version(7), {**tensors(7), "kernel": missing}, unchanged=["frozen"])
"""


@pytest.mark.slow
@pytest.mark.parametrize(("state", "latest"), [("fresh", 1), ("reused", 5)])
def test_a_publisher_that_dies_in_the_middle_of_a_copy_leaves_a_whole_store(
    tmp_path: Path, state: str, latest: int
) -> None:
    path = tmp_path / "store"
    command = [sys.executable, "-c", HALF_WAY, str(path), state]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, check=False)
    assert ended.returncode == -signal.SIGBUS
    assert any(is_spare(name) for name in names(path)) is (state == "reused")
    assert assert_whole(path) == latest
    publish(path, 8)
    assert assert_whole(path) == 8
    assert not any(name.startswith(".tmp-") for name in names(path))
