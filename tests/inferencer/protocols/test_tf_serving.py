"""A server that is started as tensorflow_model_server is: its flags, its files, its names."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest
import tensorflow as tf
from tensorflow_serving.apis import predict_pb2
from tensorflow_serving.apis import prediction_service_pb2_grpc as predictions

from tests.support.http import call
from tests.support.programs import PATIENCE, ROOT, Program, eventually

Code = grpc.StatusCode


def save(path: Path, factor: float) -> None:
    """y = factor * x + 2, as numbered SavedModels are saved."""
    module = tf.Module()
    module.factor = tf.Variable(factor)
    module.serve = tf.function(
        lambda x: {"y": module.factor * x + 2.0}, input_signature=[tf.TensorSpec([None, 1], tf.float32, name="x")]
    )
    tf.saved_model.save(module, str(path), signatures=module.serve)


def config(base: Path, *names: str) -> str:
    listed = [f'config {{ name: "{name}" base_path: "{base / name}" model_platform: "tensorflow" }}' for name in names]
    return f"model_config_list {{ {' '.join(listed)} }}"


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Started:
    """One server of the models of a file, which it looks at each second."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.config = folder / "models.config"
        self.config.write_text(config(folder, "a", "b"))
        (folder / "monitoring").write_text('prometheus_config { enable: true path: "/theirs" }')
        self.port, self.rest = free_port(), free_port()
        flags = {
            "port": self.port,
            "rest_api_port": self.rest,
            "grpc_socket_path": folder / "socket",
            "model_config_file": self.config,
            "model_config_file_poll_wait_seconds": 0.2,
            "monitoring_config_file": folder / "monitoring",
            "grpc_channel_arguments": "grpc.max_connection_age_ms=600000",
            "num_load_threads": 4,
        }
        given = [f"--{name}={value}" for name, value in flags.items()]
        self.program = Program("paramsync.cli", "serve", "--tf-serving", *given, log=folder / "log")
        self.channels = [
            grpc.insecure_channel(f"localhost:{self.port}"),
            grpc.insecure_channel(f"unix:{folder}/socket"),
        ]

    def ask(self, model: str, *, over: int = 0, wait: bool = False) -> float:
        message = predict_pb2.PredictRequest()
        message.model_spec.name = model
        message.inputs["x"].CopyFrom(tf.make_tensor_proto([[2.0]]))
        stub = predictions.PredictionServiceStub(self.channels[over])
        answer = stub.Predict(message, timeout=PATIENCE, wait_for_ready=wait)
        return float(tf.make_ndarray(answer.outputs["y"])[0, 0])

    def refusal(self, model: str) -> tuple[Code, str] | None:
        try:
            self.ask(model)
        except grpc.RpcError as error:
            return error.code(), str(error.details())
        return None

    def get(self, path: str) -> str:
        answer = call(self.rest, "GET", path)
        assert answer.status == 200, path
        return answer.body.decode()


@pytest.fixture(scope="module")
def started(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Started]:
    folder = tmp_path_factory.mktemp("theirs")
    save(folder / "a" / "00000123", 0.5)
    save(folder / "b" / "1", 3.0)
    one = Started(folder)
    yield one
    for channel in one.channels:
        channel.close()
    one.program.kill()


pytestmark = pytest.mark.slow


def test_the_first_call_that_is_taken_is_answered(started: Started) -> None:
    assert started.ask("a", wait=True) == 3.0
    assert started.ask("b") == 8.0


def test_grpc_listens_on_a_socket_too(started: Started) -> None:
    assert started.ask("a", over=1, wait=True) == 3.0


def test_what_changes_nothing_is_told(started: Started) -> None:
    started.program.said(r"WARNING .*flags that change nothing here: --num_load_threads \(each model has a thread")


def test_metrics_have_their_names_where_they_are_asked_for(started: Started) -> None:
    started.ask("a", wait=True)
    text = started.get("/theirs")
    assert "# TYPE :tensorflow:serving:request_count untyped" in text
    assert ':tensorflow:serving:request_count{model_name="a",status="OK"}' in text
    assert ':tensorflow:serving:request_latency_bucket{entrypoint="GRPC",le="100.0",model_name="a"}' in text
    assert "paramsync_requests_total" in text


def test_their_quickstart_is_answered_as_there(started: Started) -> None:
    started.ask("a", wait=True)
    for body, expected in (
        ({"instances": [1.0, 2.0, 5.0]}, {"predictions": [2.5, 3.0, 4.5]}),
        ({"inputs": [2.0, 3.0, 4.0]}, {"outputs": [3.0, 3.5, 4.0]}),
        ({"inputs": 2.0}, {"outputs": 3.0}),
        ({"inputs": [[[]]]}, {"outputs": [[[]]]}),
    ):
        assert call(started.rest, "POST", "/v1/models/a:predict", body).json == expected


def test_the_file_of_models_is_followed_and_a_broken_one_changes_nothing(started: Started) -> None:
    assert started.ask("a", wait=True) == 3.0
    started.config.write_text("model_config_list { config { nme: ")
    started.program.said(r"ERROR .*Error parsing text-format tensorflow.serving.ModelServerConfig.*goes on")
    assert started.ask("a") == 3.0
    started.config.write_text(config(started.folder, "b"))
    refused = eventually(lambda: started.refusal("a"), lambda: "a model that is left out")
    assert refused[0] is Code.NOT_FOUND
    assert started.ask("b") == 8.0
    started.config.write_text(config(started.folder, "a", "b"))
    eventually(lambda: started.refusal("a") is None, lambda: "a model that is there again")


def test_the_entry_point_of_the_image_takes_its_variables_and_flags(tmp_path: Path) -> None:
    server = tmp_path / "tensorflow_model_server"
    server.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m inferencer.program.tf_serving "$@"\n')
    server.chmod(0o755)
    environment = os.environ | {"PATH": f"{tmp_path}:{os.environ['PATH']}", "PYTHONPATH": str(ROOT)}

    def said(*flags: str, **variables: str) -> str:
        command = [str(ROOT / "deploy" / "tf_serving_entrypoint.sh"), *flags]
        done = subprocess.run(
            command, env=environment | variables, capture_output=True, text=True, check=False, timeout=PATIENCE
        )
        assert done.returncode == 2, done
        return done.stderr

    assert "--model_base_path: expected a directory of this machine, found gs://" in said(MODEL_BASE_PATH="gs://b")
    assert "found 'a/b'" in said(MODEL_NAME="a/b")
    assert "found '--prot'; similar: --port" in said("--prot=1")


def test_it_ends_as_it_is_told_before_a_model_is_there(tmp_path: Path) -> None:
    (tmp_path / "m").mkdir()
    port = free_port()
    given = [f"--port={port}", f"--model_base_path={tmp_path / 'm'}"]
    with Program("inferencer.program.tf_serving", *given, log=tmp_path / "log") as program:
        program.said("inferencer ready: predictions 0.0.0.0:[0-9]+, control 127.0.0.1:[0-9]+, HTTP none")
        assert program.stop(signal.SIGTERM) == 0
