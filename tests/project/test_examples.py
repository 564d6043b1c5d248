"""The examples as real processes, each followed by an inferencer that ends on the parameters that were trained."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
import tensorflow as tf
from tensorflow_serving.apis import predict_pb2, prediction_service_pb2_grpc

from paramsync.dtypes import Array
from paramsync.graphs.graph import Graph
from paramsync.graphs.parameters import arrange
from paramsync.rpc.client import Inferencer
from paramsync.store.store import Store
from paramsync.version import Version
from tests.support.programs import ROOT, Program

pytestmark = pytest.mark.slow


def test_a_fleet_over_a_bucket_serves_and_ends_by_itself() -> None:
    command = [sys.executable, "-m", "examples.fleet", "--seconds", "20"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    assert len(set(re.findall(r"(\S+:\d+) digits: version \d+ serves", done.stdout))) == 3


X = np.random.default_rng(1).uniform(-1, 1, (5, 8)).astype(np.float32)

# Runs an example, as it is, and writes down the weights that its model ends with, in their order.
RUN = """
import runpy, sys
import numpy as np
example, weights, *sys.argv[1:] = sys.argv[1:]
model = runpy.run_path(example, run_name="__main__")["model"]
np.savez(weights, *[weight.numpy() for weight in model.weights])
"""


def run(command: Sequence[str | Path]) -> None:
    environment = {"PYTHONPATH": str(ROOT)}
    arguments = [sys.executable, *map(str, command)]
    done = subprocess.run(arguments, cwd=ROOT, env=environment, capture_output=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr.decode()


def followed(tmp_path: Path, command: Sequence[str | Path]) -> tuple[Version, dict[str, Array]]:
    """Run an example beside an inferencer; returns the version that it ends with, and what it answers."""
    arguments = ["--model", f"net={tmp_path / 'store'}", "--port", "0", "--control-port", "0"]
    with Program("inferencer", *arguments, log=tmp_path / "inferencer.log") as inferencer:
        found = inferencer.said(r"inferencer ready: predictions ([\d.]+:\d+), control ([\d.]+:\d+)")
        run(command)
        latest = Store(tmp_path / "store").latest()
        assert latest is not None
        with Inferencer(found[2]) as control:
            assert control.sync("net").serving.number == latest.number
        request = predict_pb2.PredictRequest()
        request.model_spec.name = "net"
        request.inputs["x"].CopyFrom(tf.make_tensor_proto(X))
        with grpc.insecure_channel(found[1]) as channel:
            said = prediction_service_pb2_grpc.PredictionServiceStub(channel).Predict(request, timeout=60)
        assert said.model_spec.version.value == latest.number
        assert inferencer.stop() == 0
    return latest, {name: tf.make_ndarray(value) for name, value in said.outputs.items()}


def computed(store: Path, version: Version, parameters: dict[str, Any]) -> dict[str, Array]:
    """What the version's graph computes with these parameters."""
    graph = Graph.load(Store(store).graph_file(version.graph))
    outputs = graph(arrange(graph, parameters), {"x": tf.constant(X)})
    return {name: value.numpy() for name, value in outputs.items()}


@pytest.mark.parametrize(("example", "steps", "metric"), [("keras_fit", 640, "accuracy"), ("custom_loop", 500, "loss")])
def test_an_example_is_followed_to_the_parameters_it_ends_with(
    tmp_path: Path, example: str, steps: int, metric: str
) -> None:
    weights = tmp_path / "weights.npz"
    version, answer = followed(tmp_path, ["-c", RUN, f"examples/{example}.py", weights, tmp_path / "store"])
    assert version.step == steps
    assert version.metrics[metric] > 0
    bundle = Store(tmp_path / "store").open(version)
    with np.load(weights) as found:
        trained = list(found.values())
    names = {}
    for name in (spec.name for spec in Graph.load(Store(tmp_path / "store").graph_file(version.graph)).parameters):
        names[name] = next(one for one in trained if one.tobytes() == bundle.array(name).tobytes())
    assert len(names) == len(trained)
    expected = computed(tmp_path / "store", version, names)
    assert set(answer) == set(expected)
    for name, value in expected.items():
        np.testing.assert_array_equal(answer[name], value)


def test_the_example_of_tensorflow_1_is_followed_to_the_parameters_of_its_last_checkpoint(tmp_path: Path) -> None:
    store, checkpoints = tmp_path / "store", tmp_path / "checkpoints"
    for steps in (500, 1000):  # the second time it goes on where it was
        version, answer = followed(tmp_path, ["examples/tf1_session.py", store, checkpoints])
        assert version.step == steps
        reader = tf.train.load_checkpoint(str(checkpoints))
        assert reader.get_tensor("global_step") == steps
        names = ["net/b1", "net/b2", "net/w1", "net/w2"]
        expected = computed(store, version, {name: reader.get_tensor(name) for name in names})
        assert set(answer) == {"sum"}
        np.testing.assert_array_equal(answer["sum"], expected["sum"])
        bundle = Store(store).open(version)
        assert sorted(bundle.entries) == names
        for name in names:
            np.testing.assert_array_equal(bundle.array(name), reader.get_tensor(name))
