"""What asks for durable versions has them synced to the disk, file by file; what does not ask syncs nothing."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf

from paramsync.keras import PublishCallback
from paramsync.publishing.publisher import Publisher
from paramsync.publishing.schedule import PublishSchedule
from paramsync.store.commit import StoreWriter
from paramsync.store.store import Store
from tests.support.programs import ROOT
from trainer import settings

ON_REQUEST = PublishSchedule(at_start=False, at_end=False)


@pytest.fixture
def synced(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the files that were synced, as the names were then."""
    found: list[str] = []
    sync = os.fsync

    def noting(descriptor: int) -> None:
        found.append(Path(f"/proc/self/fd/{descriptor}").readlink().name)
        sync(descriptor)

    monkeypatch.setattr(os, "fsync", noting)
    return found


class Model(tf.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weights = tf.Variable(tf.ones([5]))

    @tf.function(input_signature=[tf.TensorSpec([], name="x")])
    def __call__(self, x: tf.Tensor) -> tf.Tensor:
        return x * self.weights


def of_a_version(store: Path) -> list[str]:
    """Data, index, record, directory, state, directory."""
    return [
        ".tmp-ckpt-1.data-00000-of-00001",
        ".tmp-ckpt-1.index",
        ".tmp-ckpt-1.json",
        store.name,
        ".tmp-checkpoint",
        store.name,
    ]


@pytest.mark.parametrize("durable", [True, False])
def test_a_publisher_syncs_where_it_was_asked_to(tmp_path: Path, synced: list[str], durable: bool) -> None:
    store = tmp_path / "store"
    with Publisher(store, Model(), schedule=ON_REQUEST, durable=durable) as publisher:
        publisher.publish(1, wait=True)
    expected = of_a_version(store) if durable else []
    assert [name for name in synced if not name.startswith((".tmp-.unlisted", ".tmp-graph"))] == expected
    assert any(name.startswith(".tmp-graph") for name in synced) is durable
    assert Store(store).find(1).step == 1


def test_an_open_store_has_its_own_way_whatever_the_publisher_says(tmp_path: Path, synced: list[str]) -> None:
    publisher = Publisher(StoreWriter(tmp_path / "a"), Model(), schedule=ON_REQUEST, durable=True)
    publisher.publish(1, wait=True)
    publisher.close()
    assert synced == []
    publisher = Publisher(StoreWriter(tmp_path / "b", durable=True), Model(), schedule=ON_REQUEST)
    publisher.publish(1, wait=True)
    publisher.close()
    assert ".tmp-checkpoint" in synced


@pytest.mark.parametrize("durable", [True, False])
def test_a_fit_syncs_where_its_callback_was_asked_to(tmp_path: Path, synced: list[str], durable: bool) -> None:
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    callback = PublishCallback(tmp_path, every_steps=1, durable=durable)
    model.fit(np.ones((4, 2)), np.ones(4), verbose=0, callbacks=[callback])
    assert (".tmp-checkpoint" in synced) is durable
    assert Store(tmp_path).latest() is not None


def test_the_program_has_a_switch_for_it() -> None:
    assert settings.parse(["--store", "here", "--durable"]).durable
    assert not settings.parse(["--store", "here"]).durable


TRAIN = """
import os, sys
from pathlib import Path
from trainer.__main__ import main
sync = os.fsync
def noting(descriptor):
    with open(sys.argv[1], "a") as log:
        print(os.readlink(f"/proc/self/fd/{descriptor}"), file=log)
    sync(descriptor)
os.fsync = noting
sys.exit(main(sys.argv[2:]))
"""


@pytest.mark.slow
@pytest.mark.parametrize("switch", [["--durable"], []])
def test_the_program_syncs_where_it_was_asked_to(tmp_path: Path, switch: list[str]) -> None:
    store, log = tmp_path / "store", tmp_path / "log"
    log.touch()
    arguments = ["--store", str(store), "--steps", "20", "--every-steps", "10", "--control-port", "0", *switch]
    command = [sys.executable, "-c", TRAIN, str(log), *arguments]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr
    assert (f"{store}/.tmp-checkpoint" in log.read_text().splitlines()) is bool(switch)
    assert Store(store).find(20).step == 20
