"""Health and reflection of both ports, over real gRPC."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
import tensorflow as tf
from google.protobuf.descriptor_pool import DescriptorPool
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase

from inferencer.settings.settings import ConnectionSettings, ModelSettings
from paramsync.errors import SettingsError
from paramsync.graphs.capturing import capture
from paramsync.v1 import sync_pb2 as pb
from tests.support.programs import eventually
from tests.support.published import Publisher, publish_graph
from tests.support.running import LONG, NOT_SERVING, SERVING, Running, refused

Code = grpc.StatusCode


def test_health_follows_what_serves(tmp_path: Path) -> None:
    running = Running(tmp_path / "a", tmp_path / "b")
    publishers = [Publisher(tmp_path / name) for name in "ab"]
    watched = health_pb2_grpc.HealthStub(running.control).Watch(health_pb2.HealthCheckRequest(), timeout=LONG)
    others = health_pb2_grpc.HealthStub(running.predictions)
    leaving = others.Watch(health_pb2.HealthCheckRequest(service=""), timeout=LONG)
    assert next(watched).status == next(leaving).status == NOT_SERVING
    leaving.cancel()  # one watcher's end is not another's
    publishers[0].publish(1)
    list(running.sync.Sync(pb.SyncRequest(model="a"), timeout=LONG))
    of_b = others.Watch(health_pb2.HealthCheckRequest(service="b"), timeout=LONG)
    assert next(of_b).status == NOT_SERVING
    publishers[1].publish(1)
    assert next(of_b).status == SERVING
    assert next(watched).status == SERVING
    assert [running.health(name) for name in ("", "a", "b", "tensorflow.serving.PredictionService")] == [SERVING] * 4
    assert running.health("a", control=True) == SERVING
    assert refused(others.Check, health_pb2.HealthCheckRequest(service="c"))[0] is Code.NOT_FOUND
    running.drain()
    assert next(watched).status == NOT_SERVING
    assert list(watched) == []
    running.close()
    for one in publishers:
        one.close()


def test_health_is_not_serving_before_a_version_serves(running: Running) -> None:
    assert [running.health(name) for name in ("", "m")] == [NOT_SERVING, NOT_SERVING]


class Wide(tf.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.scale = tf.Variable(tf.ones([width]))

    @tf.function
    def __call__(self, x: tf.Tensor) -> dict[str, tf.Tensor]:
        return {"y": x * self.scale}


def publish_wide(store: Path, number: int, width: int) -> None:
    module = Wide(width)
    found = capture(module.__call__.get_concrete_function(tf.TensorSpec([None, width], tf.float32, name="x")))
    values = {one.name: np.ones([width], np.float32) for one in found.graph.parameters}
    publish_graph(store, found.graph, number, values)


def test_a_joined_model_serves_once_its_parts_fit_though_both_served_before(tmp_path: Path) -> None:
    parts = [tmp_path / "encoder", tmp_path / "head"]
    for store, width in zip(parts, (6, 7), strict=True):
        publish_wide(store, 1, width)
    joined = ConnectionSettings(name="joined", first="encoder", second="head", inputs={"x": "y"})
    models = (*(ModelSettings(name=store.name, store=store) for store in parts), joined)
    running = Running(models=models)
    for store in parts:
        list(running.sync.Sync(pb.SyncRequest(model=store.name), timeout=LONG))
    eventually(lambda: running.health("head") == SERVING, lambda: "the parts to serve")
    assert [running.health(name) for name in ("encoder", "joined", "")] == [SERVING, NOT_SERVING, NOT_SERVING]
    publish_wide(parts[1], 2, 6)
    eventually(lambda: running.health("") == SERVING, lambda: "all models to serve")
    assert running.health("joined") == SERVING
    running.drain()
    running.close()


def test_reflection_names_and_describes_the_services_of_each_port(running: Running) -> None:
    predictions = ProtoReflectionDescriptorDatabase(running.predictions)
    control = ProtoReflectionDescriptorDatabase(running.control)
    of_both = {"grpc.health.v1.Health", "grpc.reflection.v1alpha.ServerReflection"}
    services = {"tensorflow.serving.PredictionService", "tensorflow.serving.ModelService"}
    services |= {"inference.GRPCInferenceService"}
    assert set(predictions.get_services()) == services | of_both
    assert set(control.get_services()) == {"paramsync.v1.Sync"} | of_both
    pool: Any = DescriptorPool(predictions)
    of_control: Any = DescriptorPool(control)
    for name in services:
        assert pool.FindServiceByName(name).methods
    assert "ModelInfer" in pool.FindServiceByName("inference.GRPCInferenceService").methods_by_name
    assert "Rollback" in of_control.FindServiceByName("paramsync.v1.Sync").methods_by_name


@pytest.mark.parametrize(
    "service",
    ["tensorflow.serving.PredictionService", "inference.GRPCInferenceService", "paramsync.v1.Sync"],
)
def test_each_service_serves_once_every_model_does(served: Running, service: str) -> None:
    watched = health_pb2_grpc.HealthStub(served.predictions).Watch(
        health_pb2.HealthCheckRequest(service=service), timeout=LONG
    )
    assert next(watched).status == SERVING
    served.drain()
    assert [one.status for one in watched] == [NOT_SERVING]


def test_a_port_that_another_server_has_is_noticed(running: Running, tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=f"port {running.port} of 127.0.0.1 is taken; choose another with --port"):
        Running(tmp_path / "n", port=running.port)
