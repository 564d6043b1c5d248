"""Whoever asks for durable versions has them synced to the disk, file by file; nobody else waits for a disk."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from paramsync.keras import PublishCallback
from paramsync.publishing.publisher import Publisher
from paramsync.publishing.schedule import PublishSchedule
from paramsync.store.commit import StoreWriter
from tests.support.written import tensors, version


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
