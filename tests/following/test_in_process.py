"""Replica, Follower and latest() in a user's program."""

from __future__ import annotations

import multiprocessing
import pickle
import re
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

import paramsync
from paramsync import Follower, Replica
from paramsync.errors import NotServingError, RequestError, SettingsError, UnknownVersionError
from paramsync.following.one_version import OneVersion
from tests.support.programs import ROOT
from tests.support.published import Publisher


def run(script: str, *arguments: str | Path) -> str:
    """The output of a script in a process; fails if the script fails or crashes."""
    command = [sys.executable, "-W", "error::ResourceWarning", "-c", script, *map(str, arguments)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr
    assert not re.search(r"Traceback|Fatal|Aborted|Segmentation", done.stderr), done.stderr
    return done.stdout


_FORGETS = """
import sys
from paramsync import Follower, Replica
follower = Follower(Replica("m", sys.argv[1]), poll_seconds=0.01)
follower.start()
print(follower.sync(timeout=100).serving.number)
"""


@pytest.mark.slow
def test_a_program_that_forgets_to_close_ends(tmp_path: Path) -> None:
    publisher = Publisher(tmp_path / "m")
    publisher.publish(7)
    publisher.close()
    assert run(_FORGETS, tmp_path / "m").split() == ["7"]


def test_what_tensorflow_would_only_note_is_refused(tmp_path: Path) -> None:
    publisher = Publisher(tmp_path / "m")
    publisher.publish(1)
    publisher.close()
    replica = Replica("m", tmp_path / "m")
    Follower(replica).run_once()
    with tf.Graph().as_default():
        with pytest.raises(RequestError, match=r"outside of tf.function and tf.Graph\(\).as_default\(\)"):
            replica.predict({"x": np.ones([1, 2], np.float32)})
        with pytest.raises(SettingsError, match="expected eager execution, found a graph: within"):
            Replica("m", tmp_path / "m")

    @tf.function
    def noted() -> tf.Tensor:
        return replica.predict({"x": np.ones([1, 2], np.float32)})[0]["seen"]

    with pytest.raises(RequestError, match="call it outside of"):
        noted()


X = {"x": np.ones([3, 2], np.float32)}


def seen(model: OneVersion) -> set[float]:
    return {*model.predict(X)["seen"].tolist()}


@pytest.fixture
def workers() -> Iterator[ProcessPoolExecutor]:
    with ProcessPoolExecutor(2, mp_context=multiprocessing.get_context("spawn")) as pool:
        yield pool


def test_a_job_keeps_its_version_in_every_process(publisher: Publisher, workers: ProcessPoolExecutor) -> None:
    publisher.publish(1)
    with paramsync.latest(publisher.path) as model:
        publisher.publish(2)
        assert [*workers.map(seen, [model] * 8)] == [{1.0}] * 8
        for step in range(3, 10):  # the files of version 1 are removed
            publisher.publish(step)
        assert seen(model) == {1.0}
        assert (model.number, model.version.step) == (1, 1)
    with paramsync.latest(publisher.path) as model:
        assert seen(model) == {9.0}


def test_a_worker_opens_its_version_once(publisher: Publisher) -> None:
    publisher.publish(1)
    tasks = [pickle.loads(pickle.dumps(paramsync.latest(publisher.path))) for _ in range(3)]
    assert {id(task) for task in tasks} == {id(tasks[0])}


def test_a_version_is_chosen_by_number(publisher: Publisher) -> None:
    for step in (1, 2):
        publisher.publish(step)
    with paramsync.latest(str(publisher.path), version=1) as model:
        assert seen(model) == {1.0}
        assert repr(model) == f"<version 1 of {publisher.path}>"


def test_what_is_not_there_is_refused_at_once(publisher: Publisher, tmp_path: Path) -> None:
    with pytest.raises(NotServingError, match="nothing is published there"):
        paramsync.latest(tmp_path / "empty")
    publisher.publish(1)
    with pytest.raises(UnknownVersionError, match=r"version 7 of .* is not there; there are: 1"):
        paramsync.latest(publisher.path, version=7)
    with pytest.raises(SettingsError, match="expected a bucket"):
        paramsync.latest(publisher.path, label="stable")


def test_a_worker_that_starts_after_its_version_was_removed_says_so(publisher: Publisher) -> None:
    publisher.publish(1)
    model = paramsync.latest(publisher.path)
    for step in range(2, 10):
        publisher.publish(step)
    with pytest.raises(UnknownVersionError, match="version 1 of"):
        model.predict(X)


FORKED = """
import os, sys
import paramsync
from paramsync.errors import SettingsError
from paramsync.following.one_version import OneVersion

opened = paramsync.latest(sys.argv[1]).__enter__()
for model in (opened, OneVersion("s3://bucket/model", 1, {})):
    child = os.fork()
    if child == 0:
        try:
            model.predict({})
        except SettingsError as error:
            os._exit("start workers by spawn" not in str(error))
        os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
"""


def test_a_forked_worker_is_told_to_start_by_spawn_and_does_not_hang(publisher: Publisher) -> None:
    publisher.publish(1)
    command = [sys.executable, "-c", FORKED, str(publisher.path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr
