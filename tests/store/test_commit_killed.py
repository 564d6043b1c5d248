"""A publisher that is killed, or whose disk is full, leaves a whole store; durable versions are synced."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from paramsync.checkpoint.file_pool import SPARES
from paramsync.keras import PublishCallback
from paramsync.publishing.publisher import Publisher
from paramsync.publishing.schedule import PublishSchedule
from paramsync.store.commit import StoreWriter
from tests.support.programs import ROOT
from tests.support.troubles import run_on_small_disk
from tests.support.whole import assert_whole
from tests.support.written import files_of, is_spare, names, publish, tensors, version

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


FULL = """
import os, sys
from pathlib import Path
import numpy as np
from paramsync.errors import StoreError
from paramsync.store.commit import StoreWriter
from tests.support.whole import assert_whole
from tests.support.written import names, tensors, version
path = Path(sys.argv[1])
large = {"large": np.ones(9 << 20, np.uint8)}
with StoreWriter(path, keep=2) as writer:
    for number in (1, 2, 3):
        writer.commit(version(number), tensors(number))
    for number in (4, 5):
        try:
            writer.commit(version(number), {**tensors(number), **large})
        except StoreError as error:
            assert str(error).endswith(f"version {number} was not published: No space left on device"), error
        else:
            raise AssertionError("there was room")
        assert assert_whole(path) == 3
        assert not any(f"ckpt-{number}" in name for name in names(path)), names(path)
    free = os.statvfs(path)
    (path / "other").write_bytes(bytes(free.f_bavail * free.f_frsize - 200_000))
    writer.commit(version(6), tensors(6))
    assert assert_whole(path) == 6
    rest = (path / "rest").open("wb", buffering=0)
    try:
        while rest.write(bytes(4096)):
            pass
    except OSError:
        pass
    try:
        writer.commit(version(7), tensors(7))
    except StoreError as error:
        assert "version 7 was not published: No space left" in str(error), error
    else:
        raise AssertionError("there was room")
    assert assert_whole(path) == 6
    rest.truncate(0)
    writer.commit(version(8), tensors(8))
    assert assert_whole(path) == 8
"""


@pytest.mark.promise
@pytest.mark.slow
def test_a_full_disk_is_an_error_that_leaves_the_version_before_until_there_is_room(tmp_path: Path) -> None:
    run_on_small_disk(FULL, tmp_path)


def test_a_file_system_without_links_gets_everything_written_again(tmp_path: Path) -> None:
    """What a link cannot do is done by a copy: here the name for the link is taken by what cannot be replaced."""
    with StoreWriter(tmp_path) as writer:
        writer.commit(version(1), tensors(1))
        for file in tmp_path.glob("ckpt-1.data-*"):
            file.rename(tmp_path / "moved")  # a link to it would not be found
        committed = writer.commit(version(2), tensors(2), unchanged=["frozen"])
        assert committed.bytes_written == committed.bytes
    (tmp_path / "ckpt-1.index").unlink()
    assert assert_whole(tmp_path) == 2


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The files that are synced, and the names that files get, in order; without marks."""
    seen: list[str] = []
    sync = os.fsync

    def note_sync(descriptor: int) -> None:
        seen.append(f"sync {Path(f'/proc/self/fd/{descriptor}').readlink().name}")
        sync(descriptor)

    def note(rename: Any) -> Any:
        def renamed(path: Path, target: Path) -> Path:
            seen.append(f"name {Path(target).name}")
            result: Path = rename(path, target)
            return result

        return renamed

    monkeypatch.setattr(os, "fsync", note_sync)
    monkeypatch.setattr(Path, "rename", note(Path.rename))
    monkeypatch.setattr(Path, "replace", note(Path.replace))
    return seen


def of_a_version(steps: list[str]) -> list[str]:
    return [step for step in steps if ".unlisted" not in step and "graph-" not in step and "name .spare" not in step]


@pytest.mark.parametrize("durable", [True, False])
def test_a_durable_version_is_on_the_disk_step_by_step(tmp_path: Path, steps: list[str], durable: bool) -> None:
    store = tmp_path / "store"
    with StoreWriter(store, keep=1, durable=durable) as writer:
        for number in (1, 2, 3, 4):
            writer.commit(version(number), tensors(number))
        steps.clear()
        writer.commit(version(5), tensors(5))
    expected = [
        "sync .spare-ckpt-3.data-00001-of-00002",
        "name ckpt-5.data-00001-of-00002",
        "sync .tmp-ckpt-5.index",
        "name ckpt-5.index",
        "sync .tmp-ckpt-5.json",
        "name ckpt-5.json",
        "sync store",
        "sync .tmp-checkpoint",
        "name checkpoint",
        "sync store",
    ]
    assert of_a_version(steps) == [step for step in expected if durable or step.startswith("name")]


class Model(tf.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weights = tf.Variable(tf.ones([5]))

    @tf.function(input_signature=[tf.TensorSpec([], name="x")])
    def __call__(self, x: tf.Tensor) -> tf.Tensor:
        return x * self.weights


@pytest.mark.parametrize("durable", [True, False])
def test_a_publisher_and_a_callback_sync_if_they_are_asked_to(tmp_path: Path, steps: list[str], durable: bool) -> None:
    on_request = PublishSchedule(at_start=False, at_end=False)
    with Publisher(tmp_path / "a", Model(), schedule=on_request, durable=durable) as publisher:
        publisher.publish(1, wait=True)
    assert ("sync .tmp-checkpoint" in steps, any("sync .tmp-graph" in step for step in steps)) == (durable, durable)
    steps.clear()
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    callback = PublishCallback(tmp_path / "b", every_steps=1, durable=durable)
    model.fit(np.ones((4, 2)), np.ones(4), verbose=0, callbacks=[callback])
    assert ("sync .tmp-checkpoint" in steps) is durable
