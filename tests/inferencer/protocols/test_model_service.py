"""What clients are told of a model: signatures, in which state each version is, health, and reflection of ports."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
import tensorflow as tf
from google.protobuf.descriptor_pool import DescriptorPool
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase
from tensorflow.core.framework import types_pb2
from tensorflow_serving.apis import (
    get_model_metadata_pb2,
    get_model_status_pb2,
    model_pb2,
)

from inferencer.protocols.tfs.model_service import courses
from inferencer.settings.settings import ConnectionSettings, ModelSettings
from paramsync.errors import NotServingError, UnknownLabelError, UnknownVersionError
from paramsync.graphs.capturing import capture
from paramsync.remote.bucket_status import BucketStatus
from paramsync.remote.copy_note import CopyNote
from paramsync.status import Quarantined, Stage, State, Status
from paramsync.v1 import sync_pb2 as pb
from paramsync.version import Version
from tests.support import kubectl
from tests.support.http import call
from tests.support.programs import eventually
from tests.support.published import Publisher, publish_graph
from tests.support.running import LONG, NOT_SERVING, SERVING, Running, refused, synced

Code = grpc.StatusCode


def metadata(*fields: str, version: int | None = None) -> get_model_metadata_pb2.GetModelMetadataRequest:
    message = get_model_metadata_pb2.GetModelMetadataRequest(metadata_field=fields)
    message.model_spec.name = "m"
    if version is not None:
        message.model_spec.version.value = version
    return message


def test_metadata_tells_inputs_and_outputs(served: Running) -> None:
    answer = served.prediction_service.GetModelMetadata(metadata("signature_def"), timeout=LONG)
    assert answer.model_spec.version.value == 7
    found = get_model_metadata_pb2.SignatureDefMap()
    assert answer.metadata["signature_def"].Unpack(found)
    signature = found.signature_def["serving_default"]
    x = signature.inputs["x"]
    assert (x.dtype, [dim.size for dim in x.tensor_shape.dim]) == (types_pb2.DT_FLOAT, [-1, 2])
    assert set(signature.outputs) == {"seen", "total"}
    assert x.name == "x:0"
    assert all(":" in one.name for one in signature.outputs.values())


def test_version_0_is_every_version_where_there_is_none_of_that_number(served: Running) -> None:
    answer = served.prediction_service.GetModelMetadata(metadata("signature_def", version=0), timeout=LONG)
    assert answer.model_spec.version.value == 7
    assert statuses(served, 0) == statuses(served)


@pytest.mark.parametrize("fields", [(), ("signatures",), ("signature_def", "more")])
def test_metadata_accepts_exactly_signature_def(served: Running, fields: tuple[str, ...]) -> None:
    code, text = refused(served.prediction_service.GetModelMetadata, metadata(*fields))
    assert code is Code.INVALID_ARGUMENT
    assert "signature_def" in text


def statuses(running: Running, version: int | None = None) -> list[tuple[int, int]]:
    message = get_model_status_pb2.GetModelStatusRequest()
    message.model_spec.name = "m"
    if version is not None:
        message.model_spec.version.value = version
    answer = running.model_service.GetModelStatus(message, timeout=LONG)
    return [(one.version, one.state) for one in answer.model_version_status]


def test_model_status_lists_resident_versions_and_failed_ones_with_their_error(
    served: Running, publisher: Publisher
) -> None:
    state = get_model_status_pb2.ModelVersionStatus
    publisher.publish(8)
    synced(served)
    publisher.publish_bad(9)
    refused(lambda message, timeout: list(served.sync.Sync(message, timeout=timeout)), pb.SyncRequest())
    assert statuses(served) == [(9, state.END), (8, state.AVAILABLE), (7, state.AVAILABLE)]
    assert statuses(served, version=8) == [(8, state.AVAILABLE)]
    message = get_model_status_pb2.GetModelStatusRequest()
    message.model_spec.name = "m"
    message.model_spec.version.value = 9
    found = served.model_service.GetModelStatus(message, timeout=LONG).model_version_status[0].status
    assert found.error_code == Code.FAILED_PRECONDITION.value[0]
    assert "finite values" in found.error_message


STORE = Path("/store")


def course(status: Status, *, version: int | None = None, label: str = "") -> list[tuple[int, Stage]]:
    spec = model_pb2.ModelSpec(name="m")
    if version is not None:
        spec.version.value = version
    if label:
        spec.version_label = label
    return [(one.number, one.stage) for one in courses(status, spec)]


def numbered(number: int) -> Version:
    return Version(number=number, step=number, prefix="", graph="", step_done_at=1.0, snapshot_at=1.0)


def test_a_version_goes_from_found_to_ended_and_the_highest_is_told_first() -> None:
    status = Status(
        model="m",
        store=STORE,
        state=State.SERVING,
        published=numbered(12),
        serving=numbered(9),
        restoring=11,
        resident=(9, 8),
        leaving=(7,),
        ended=(6,),
        quarantined=(Quarantined(number=10, reason="[not finite] w", since=1.0),),
        labels={"stable": 8},
    )
    assert course(status) == [
        (12, Stage.FOUND),
        (11, Stage.RESTORING),
        (10, Stage.ENDED),
        (9, Stage.RESIDENT),
        (8, Stage.RESIDENT),
        (7, Stage.LEAVING),
        (6, Stage.ENDED),
    ]
    assert course(status, version=11) == [(11, Stage.RESTORING)]
    assert course(status, label="stable") == [(8, Stage.RESIDENT)]
    assert course(replace(status, state=State.DRAINING), version=9) == [(9, Stage.LEAVING)]
    with pytest.raises(UnknownVersionError, match="version 5 of model 'm' is not there"):
        course(status, version=5)
    with pytest.raises(UnknownLabelError, match="label 'canary' of model 'm' is not there; there are: 'stable'"):
        course(status, label="canary")
    with pytest.raises(NotServingError, match="store /store has no version yet"):
        course(Status(model="m", store=STORE))


def test_what_names_no_model_is_the_callers_fault(served: Running) -> None:
    expected = (Code.INVALID_ARGUMENT, "model_spec: expected the name of a model, found none")
    status, meta = get_model_status_pb2.GetModelStatusRequest(), metadata("signature_def")
    meta.ClearField("model_spec")
    assert refused(served.model_service.GetModelStatus, status) == expected
    assert refused(served.prediction_service.GetModelMetadata, meta) == expected


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
