"""Health and reflection of both ports, over real gRPC."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import grpc
import numpy as np
import tensorflow as tf
from google.protobuf.descriptor_pool import DescriptorPool
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase

from inferencer.settings.settings import ConnectionSettings, ModelSettings
from paramsync.graphs.capturing import capture
from paramsync.remote.bucket_status import BucketStatus
from paramsync.remote.copy_note import CopyNote
from paramsync.v1 import sync_pb2 as pb
from tests.support import kubectl
from tests.support.http import call
from tests.support.programs import eventually
from tests.support.published import Publisher, publish_graph
from tests.support.running import LONG, NOT_SERVING, SERVING, Running, refused, synced

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
    services = ("tensorflow.serving.PredictionService", "inference.GRPCInferenceService", "paramsync.v1.Sync")
    assert {running.health(name) for name in ("", "a", "b", *services)} == {SERVING}
    assert running.health("a", control=True) == SERVING
    assert refused(others.Check, health_pb2.HealthCheckRequest(service="c"))[0] is Code.NOT_FOUND
    running.drain()
    assert next(watched).status == NOT_SERVING
    assert list(watched) == []
    running.close()
    for one in publishers:
        one.close()


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


def test_if_a_pod_is_asked_for_its_lag_it_is_unready_while_a_newer_version_waits(
    running: Running, publisher: Publisher
) -> None:
    follower = running.server.models.follower("m")

    def asked(max_lag: str) -> tuple[int, str]:
        found = call(running.rest_port, "GET", f"/healthz?max_lag={max_lag}")
        return found.status, "" if found.status == 200 else found.error

    assert asked("1e-6")[0] == 503
    publisher.publish(7)
    synced(running)
    assert asked("1e-6")[0] == 200
    publisher.publish_bad(8)
    eventually(lambda: follower.status().quarantined, lambda: "version 8 to be quarantined")
    eventually(lambda: asked("1e-6") == (503, "more than 1e-06 s behind: m"), lambda: "a lag")
    assert asked("1e6")[0] == 200
    follower.pin(7, timeout=LONG)
    eventually(lambda: asked("1e-6")[0] == 200, lambda: "the pin")
    follower.unpin(timeout=LONG)
    CopyNote("s3://b/m", status=BucketStatus(address="s3://b/m", waiting_since=1.0)).write(follower.status().store, 1.0)
    eventually(lambda: asked("1e6") == (503, "more than 1e+06 s behind: m"), lambda: "what the mirror waits for")
    for wrong in ("0", "soon", "nan"):
        assert asked(wrong) == (400, f"max_lag: expected seconds above 0, found '{wrong}'")


def test_a_pod_is_live_before_it_is_ready(running: Running, publisher: Publisher) -> None:
    [container] = kubectl.pods(kubectl.variant("base"))["paramsync-inferencer"]["containers"]

    def answered(probe: str) -> int:
        path = container[probe]["httpGet"]["path"]
        assert container[probe]["httpGet"]["port"] == "http"
        return call(running.rest_port, "GET", path).status

    probes = ("startupProbe", "livenessProbe", "readinessProbe")
    assert [answered(probe) for probe in probes] == [200, 200, 503]
    publisher.publish(7)
    synced(running)
    assert [answered(probe) for probe in probes] == [200, 200, 200]
