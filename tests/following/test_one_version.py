"""latest(): a job computes with one version, in each of its processes, whatever is published meanwhile."""

from __future__ import annotations

import multiprocessing
import pickle
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import numpy as np
import pytest

import paramsync
from paramsync.errors import NotServingError, SettingsError, UnknownVersionError
from paramsync.following.one_version import OneVersion
from tests.support.published import Publisher

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
