"""Publisher where its store becomes read-only, full, or goes away while training goes on."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.host.test_mounts import alone
from tests.support.programs import ROOT

pytestmark = pytest.mark.slow

TRAIN = """
import subprocess, sys
from pathlib import Path
import numpy as np, tensorflow as tf
from paramsync.store.store import Store
from paramsync.publishing.publisher import Publisher
from paramsync.publishing.schedule import PublishSchedule

class Model(tf.Module):
    def __init__(self):
        super().__init__()
        self.whole = tf.Variable(tf.zeros([1 << 20]))

    @tf.function(input_signature=[tf.TensorSpec([], name="x")])
    def __call__(self, x):
        return x + self.whole[0]

place = Path(sys.argv[1])
store = place / "store"
model = Model()

def run(command):
    subprocess.run(command.format(place=place), shell=True, check=True)

def latest():
    version = Store(store).latest()
    if version is None:
        return None
    (name,) = [one for one in tf.train.load_checkpoint(str(store / version.prefix)).get_variable_to_shape_map()
               if one.startswith("whole")]
    values = np.unique(tf.train.load_checkpoint(str(store / version.prefix)).get_tensor(name))
    assert values.tolist() == [version.step], (values, version)
    return version.step

with Publisher(store, model, schedule=PublishSchedule(every_steps=1), keep=2) as publisher:
    step = 0
    def train():
        global step
        step += 1
        model.whole.assign_add(tf.ones([1 << 20]))
        publisher.publish_if_due(step)
        assert publisher.flush(60)
        return publisher.status()
    for _ in range(5):
        assert train().last_error is None
    for harm, said, heal, keeps in CASES:
        before = latest()
        assert before == step
        run(harm)
        for _ in range(3):
            status = train()
            assert said in (status.last_error or ""), (said, status)
            assert str(store) in status.last_error
            assert not keeps or latest() == before
        run(heal)
        for _ in range(3):
            status = train()
            assert status.last_error is None, status
            assert latest() == step
"""

CASES = [
    (
        "mount --bind {place} {place} && mount -o remount,ro,bind {place}",
        "Read-only file system",
        "umount {place}",
        True,
    ),
    (
        "head -c 1G /dev/zero > {place}/ballast 2> /dev/null || rm -f {place}/store/.spare-*;"
        " head -c 1G /dev/zero >> {place}/ballast 2> /dev/null || true",
        "No space left on device",
        "rm {place}/ballast",
        True,
    ),
    ("rm -r {place}/store && touch {place}/store", "expected a directory, found a file", "rm {place}/store", False),
    ("rm -r {place}/store && ln -s {place}/none/none {place}/store", "", "rm {place}/store", False),
]


def test_training_goes_on_whatever_becomes_of_the_store_and_is_published_when_it_is_mended(tmp_path: Path) -> None:
    place = tmp_path / "place"
    place.mkdir()
    script = tmp_path / "train.py"
    script.write_text(TRAIN.replace("CASES", repr(CASES)))
    command = f"PYTHONPATH={ROOT} TF_CPP_MIN_LOG_LEVEL=3 {sys.executable} {script} {place}"
    alone(f"mount -t tmpfs -o size=64m none {place} && {command}", root=False)
