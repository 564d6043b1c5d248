"""After kill -9 the newest version is served again, and numbers keep rising."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import numpy.typing as npt
import pytest
import tensorflow as tf
from tensorflow_serving.apis import predict_pb2, prediction_service_pb2_grpc

from paramsync.rpc.client import Inferencer, Trainer
from tests.support.programs import Program, eventually

pytestmark = pytest.mark.slow


def trainer(directory: Path, name: str, *arguments: str) -> Program:
    return Program(
        "trainer", "--store", directory / "store", "--every-seconds", "0.2", "--control-port", "0", *arguments,
        log=directory / f"{name}.log",
    )  # fmt: skip


def inferencer(directory: Path, name: str, *arguments: str, store: str = "store") -> Program:
    return Program(
        "inferencer", "--model", f"digits={directory / store}", "--port", "0", "--control-port", "0", *arguments,
        log=directory / f"{name}.log",
    )  # fmt: skip


def trainer_address(program: Program) -> str:
    return program.said(r"trainer ready: control ([\d.]+:\d+)")[1]


def addresses(program: Program) -> tuple[str, str]:
    """Predictions and control."""
    found = program.said(r"inferencer ready: predictions ([\d.]+:\d+), control ([\d.]+:\d+)")
    return found[1], found[2]


def predict(address: str, inputs: dict[str, npt.NDArray[Any]]) -> tuple[int, dict[str, npt.NDArray[Any]]]:
    """What an unmodified TensorFlow Serving client gets: the version, and the outputs."""
    request = predict_pb2.PredictRequest()
    request.model_spec.name = "digits"
    for name, value in inputs.items():
        request.inputs[name].CopyFrom(tf.make_tensor_proto(value))
    with grpc.insecure_channel(address) as channel:
        answer = prediction_service_pb2_grpc.PredictionServiceStub(channel).Predict(request, timeout=300)
    outputs = {name: tf.make_ndarray(value) for name, value in answer.outputs.items()}
    return answer.model_spec.version.value, outputs


def served(address: str, *, above: int) -> int:
    """Wait until a version above this one answers."""
    images = {"image": np.zeros((2, 784), np.float32)}

    def look() -> int | None:
        try:
            version, outputs = predict(address, images)
        except grpc.RpcError as error:
            if error.code() is not grpc.StatusCode.UNAVAILABLE:  # what it says while nothing serves
                raise
            return None
        assert outputs["logits"].shape == (2, 10)
        return version if version > above else None

    return eventually(look, lambda: f"a version above {above} at {address}")


@pytest.mark.promise
def test_a_killed_inferencer_serves_the_newest_version_again(tmp_path: Path) -> None:
    with trainer(tmp_path, "trainer") as training, inferencer(tmp_path, "first") as first:
        before = served(addresses(first)[0], above=0)
        first.kill()
        with Trainer(trainer_address(training)) as control:
            newest = control.publish().number
        assert newest > before
        with inferencer(tmp_path, "second") as second:
            assert served(addresses(second)[0], above=newest - 1) >= newest
            assert second.stop() == 0
        assert training.stop() == 0


@pytest.mark.promise
def test_a_killed_trainer_resumes_and_its_versions_keep_rising(tmp_path: Path) -> None:
    with inferencer(tmp_path, "inferencer") as serving:
        predictions, control = addresses(serving)
        with trainer(tmp_path, "first") as first:
            first.said(r"step=\d+ .*version=[1-9]")
            before = served(predictions, above=0)
            # Its files are there before the list that names them, and nobody resumes from what is in no list.
            eventually((tmp_path / "store" / "training" / "checkpoint").exists, lambda: "a saved training state")
            first.kill()
        with Inferencer(control) as operator:
            stopped_at = operator.sync("digits").serving
        assert stopped_at.number >= before
        with trainer(tmp_path, "second") as second:
            assert int(second.said(r"resum\w+ .*?step (\d+)")[1]) > 0
            assert served(predictions, above=stopped_at.number) > stopped_at.number
            assert second.stop() == 0
        last = int(re.findall(r"version (\d+) is the last published", (tmp_path / "second.log").read_text())[-1])
        with Inferencer(control) as operator:
            assert operator.sync("digits").serving.number == last
        assert serving.stop() == 0
