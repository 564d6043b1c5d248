"""One server of all kinds of stores that stock TensorFlow writes, asked by a stock client while they are written."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
import tensorflow as tf
from tensorflow_serving.apis import predict_pb2, prediction_service_pb2_grpc

from tests.support.programs import Program, eventually
from tests.support.published import saver_store
from tests.support.stores import X, digits, exported, saved_by_v1, train

pytestmark = pytest.mark.slow

CONFIG = """
[server]
port = 0
rest_port = 0
control_port = 0
poll_seconds = 3600

[models.saver]
store = "saver"
inputs = ["x:0"]
outputs = ["y:0"]

[models.manager]
store = "manager"
graph = "graph"

[models.first]
store = "first"

[models.last]
store = "last"

[models.both]
connect = ["first", "last"]
inputs = { x = "y" }
"""


class Client:
    def __init__(self, address: str) -> None:
        self._stub = prediction_service_pb2_grpc.PredictionServiceStub(grpc.insecure_channel(address))

    def ask(self, model: str, version: int, **inputs: np.ndarray[tuple[int, ...], np.dtype[np.float32]]) -> Any:
        """What that version answers, once it serves."""
        request = predict_pb2.PredictRequest()
        request.model_spec.name = model
        for name, value in inputs.items():
            request.inputs[name].CopyFrom(tf.make_tensor_proto(value))
        reasons = ["nothing"]

        def look() -> predict_pb2.PredictResponse | None:
            try:
                answer: predict_pb2.PredictResponse = self._stub.Predict(request, timeout=60)
            except grpc.RpcError as error:
                reasons.append(str(error))
                return None
            reasons.append(f"version {answer.model_spec.version.value}")
            return answer if answer.model_spec.version.value == version else None

        answer = eventually(look, lambda: f"version {version} of {model}, found {reasons[-1]}")
        (found,) = answer.outputs.values()
        return tf.make_ndarray(found)


@pytest.mark.promise
def test_versions_that_tensorflow_publishes_are_served_with_the_values_it_computes(tmp_path: Path) -> None:
    (tmp_path / "models.toml").write_text(CONFIG)
    model = digits()
    model.export(str(tmp_path / "graph"), verbose=False)
    (key,) = (one.name for one in model.inputs)
    manager = tf.train.CheckpointManager(tf.train.Checkpoint(model=model), str(tmp_path / "manager"), max_to_keep=2)
    with Program("inferencer", "--config", tmp_path / "models.toml", log=tmp_path / "log") as serving:
        client = Client(serving.said(r"predictions (\S+:\d+)")[1])
        for number in (1, 2, 3):
            train(model)
            manager.save(number)
            assert np.array_equal(client.ask("manager", number, **{key: X}), model(X))
        answers: list[Any] = []
        with ThreadPoolExecutor(1) as elsewhere:  # here a v1 graph is built

            def saved(step: int) -> None:
                x = np.ones([1, 2], np.float32)
                answers.append(elsewhere.submit(client.ask, "saver", step, x=x).result())

            saver_store(tmp_path / "saver", 3, saved)
        assert np.array_equal(answers, [[[1, 1]], [[2, 2]], [[3, 3]]])
        for number in (1, 2, 3):
            saved_by_v1(tmp_path / "first" / str(number), number)
            assert np.array_equal(client.ask("first", number, x=X), number * X)
            exported(tmp_path / "last" / str(10 * number), 10 * number)
            assert np.array_equal(client.ask("last", 10 * number, x=X), 10 * number * X)
            assert np.array_equal(client.ask("both", 10 * number, x=X), number * X * 10 * number)
        assert serving.stop() == 0
