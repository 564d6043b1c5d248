"""Models that are added and removed while the server runs, over real gRPC."""

from __future__ import annotations

import fcntl
import os
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
import tensorflow as tf
from grpc_health.v1 import health_pb2, health_pb2_grpc

from inferencer.settings.settings import AnySettings, ConnectionSettings, ModelSettings
from paramsync.errors import NotServingError, ParamsyncError, SettingsError, StoreError
from paramsync.v1 import sync_pb2 as pb
from tests.support.programs import eventually
from tests.support.published import GATED_OPS, Gated, Publisher, Witness, proven
from tests.support.running import LONG, SERVING, Running, refused, request, seen

Code = grpc.StatusCode
UNKNOWN = health_pb2.HealthCheckResponse.SERVICE_UNKNOWN


class Times(Witness):
    """Multiplies by its version."""

    @tf.function(input_signature=[tf.TensorSpec([None, 2], tf.float32, name="x")])
    def __call__(self, x: tf.Tensor) -> dict[str, tf.Tensor]:
        return {"y": x * tf.add_n([part[0, 0] for part in self.parts]) / len(self.parts)}


def apply(running: Running, *models: AnySettings) -> None:
    running.call(lambda: running.server.apply(models))


def model(path: Path, **settings: Any) -> ModelSettings:
    return ModelSettings(name=path.name, store=path, allowed=GATED_OPS, **settings)


def answered(running: Running, name: str) -> int:
    """The version that answers, proven by its answer."""
    answer = running.prediction_service.Predict(request(name), timeout=LONG)
    number = answer.model_spec.version.value
    assert proven(seen(answer), number)
    return int(number)


def is_held(publisher: Publisher, number: int) -> bool:
    """Whether anybody has the version's data in use."""
    descriptor = os.open(publisher.path / f"ckpt-{number}.data-00000-of-00001", os.O_RDWR)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False


@pytest.fixture
def other(tmp_path: Path) -> Iterator[Publisher]:
    """Of the store of a model that is not served yet, with version 3."""
    publisher = Publisher(tmp_path / "other")
    publisher.publish(3)
    yield publisher
    publisher.close()


def test_a_model_that_is_added_serves_when_that_is_answered_and_follows_from_then_on(
    served: Running, tmp_path: Path, other: Publisher
) -> None:
    assert refused(served.prediction_service.Predict, request("other"))[0] is Code.NOT_FOUND
    watched = health_pb2_grpc.HealthStub(served.predictions).Watch(
        health_pb2.HealthCheckRequest(service="other"), timeout=LONG
    )
    assert next(watched).status == UNKNOWN
    apply(served, model(tmp_path / "m"), model(tmp_path / "other"))
    assert (answered(served, "m"), answered(served, "other")) == (7, 3)
    assert next(watched).status == SERVING
    other.publish(4)
    eventually(lambda: answered(served, "other") == 4, lambda: "version 4 to serve")


def test_a_model_that_is_removed_is_not_found_and_its_memory_is_freed(
    served: Running, publisher: Publisher, tmp_path: Path, other: Publisher
) -> None:
    stub = health_pb2_grpc.HealthStub(served.predictions)
    watched = stub.Watch(health_pb2.HealthCheckRequest(service="m"), timeout=LONG)
    assert next(watched).status == SERVING
    assert is_held(publisher, 7)
    apply(served, model(tmp_path / "other"))
    assert next(watched).status == UNKNOWN
    assert refused(stub.Check, health_pb2.HealthCheckRequest(service="m"))[0] is Code.NOT_FOUND
    code, text = refused(served.prediction_service.Predict, request("m"))
    assert (code, text) == (Code.NOT_FOUND, "Servable not found: model 'm' is not served here; served: 'other'")
    assert (served.health(), answered(served, "other")) == (SERVING, 3)
    eventually(lambda: not is_held(publisher, 7), lambda: "the memory of m to be freed")
    apply(served, model(tmp_path / "m"))
    assert answered(served, "m") == 7


def test_a_request_in_flight_is_answered_by_the_model_that_was_removed(
    running: Running, publisher: Publisher, tmp_path: Path, gate: Path
) -> None:
    publisher.publish(7, kind=Gated)
    apply(running, model(tmp_path / "m", resident=3))
    called = tmp_path / "called"
    message = request(x=np.ones([1, 2], np.float32), called=str(called), gate=str(gate))
    answer = running.prediction_service.Predict.future(message, timeout=LONG)
    eventually(called.exists, lambda: "the request to be computed")
    apply(running)
    assert refused(running.prediction_service.Predict, request())[0] is Code.NOT_FOUND
    assert is_held(publisher, 7)
    gate.touch()
    assert list(answer.result().outputs["seen"].float_val) == [7.0] * 6
    eventually(lambda: not is_held(publisher, 7), lambda: "the memory to be freed")


def test_a_file_system_that_hangs_holds_up_neither_another_model_nor_the_end(
    served: Running, tmp_path: Path, other: Publisher, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("paramsync.following.follower._JOIN_SECONDS", 0.1)
    apply(served, model(tmp_path / "m"), model(tmp_path / "other"))
    follower, hangs, goes_on = served.server.models.follower("m"), threading.Event(), threading.Event()

    def look() -> Any:
        hangs.set()
        goes_on.wait()
        raise OSError

    monkeypatch.setattr(follower.replica.source, "look", look)
    follower.notify()
    try:
        assert hangs.wait(LONG)
        other.publish(4)
        eventually(lambda: answered(served, "other") == 4, lambda: "version 4 to serve")
        assert answered(served, "m") == 7
        served.drain()
    finally:
        goes_on.set()


def test_what_is_said_again_stays_what_it_is(served: Running, tmp_path: Path) -> None:
    models = served.server.models
    before = [models.find("m"), models.changed]
    apply(served, *served.settings.models)
    assert models.find("m") is before[0]
    apply(served, *served.settings.models, model(tmp_path / "other"))
    assert models.find("m") is before[0]
    assert [one.name for one in models] == ["m", "other"]


def test_with_other_settings_the_new_one_serves_before_the_old_one_goes(
    served: Running, tmp_path: Path, other: Publisher
) -> None:
    numbers: set[int] = set()
    over = threading.Event()

    def call() -> None:
        while not over.is_set():
            numbers.add(answered(served, "m"))

    thread = threading.Thread(target=call)
    thread.start()
    apply(served, replace(model(tmp_path / "m"), store=other.path))
    assert answered(served, "m") == 3
    over.set()
    thread.join(LONG)
    assert numbers <= {7, 3}


def test_where_one_setting_is_wrong_nothing_changes(served: Running, tmp_path: Path, other: Publisher) -> None:
    (tmp_path / "file").write_text("x")
    good = model(other.path)
    wrong: list[tuple[AnySettings, type[ParamsyncError], str]] = [
        (model(tmp_path / "file"), StoreError, "expected a directory, found a file"),
        (good, SettingsError, "model other: expected each name once, found it 2 times"),
        (model(tmp_path / "half", inputs=("x:0",)), SettingsError, "inputs and outputs together"),
        (
            ConnectionSettings(name="joined", first="other", second="none", inputs={"x": "y"}),
            SettingsError,
            "model joined: expected two models that have a store to connect, of other, found other and none",
        ),
    ]
    for one, kind, text in wrong:
        with pytest.raises(kind, match=text):
            apply(served, good, one)
    assert [one.name for one in served.server.models] == ["m"]
    assert refused(served.prediction_service.Predict, request("other"))[0] is Code.NOT_FOUND
    assert answered(served, "m") == 7


def test_a_server_that_stops_takes_no_other_models(served: Running, tmp_path: Path, other: Publisher) -> None:
    served.drain()
    with pytest.raises(NotServingError, match="the server is stopping"):
        apply(served, model(other.path))
    eventually(lambda: not is_held(other, 3), lambda: "what it restored meanwhile to be let go of")


def test_a_connection_comes_and_goes_with_its_parts(served: Running, tmp_path: Path) -> None:
    publishers = [Publisher(tmp_path / name) for name in ("encoder", "head")]
    for number, publisher in enumerate(publishers, 2):
        publisher.publish(number, kind=Times)
    parts = [model(one.path) for one in publishers]
    joined = ConnectionSettings(name="joined", first="encoder", second="head", inputs={"x": "y"})

    def product() -> tuple[float, int]:
        answer = served.prediction_service.Predict(request("joined"), timeout=LONG)
        return answer.outputs["y"].float_val[0], answer.model_spec.version.value

    apply(served, *parts, joined)
    assert product() == (6.0, 3)
    assert served.health("joined") == SERVING
    publishers[0].publish(5, kind=Times)
    eventually(lambda: product() == (15.0, 3), lambda: "the encoder's new version")
    code, text = refused(served.sync.Pin, pb.PinRequest(model="joined", version=3))
    assert (code, "joined from encoder and head: name these" in text) == (Code.INVALID_ARGUMENT, True)
    found = served.server.models.find("joined")
    apply(served, *parts, joined)
    assert served.server.models.find("joined") is found
    del found
    apply(served, *parts)
    assert refused(served.prediction_service.Predict, request("joined"))[0] is Code.NOT_FOUND
    publishers[1].publish(4, kind=Times)
    list(served.sync.Sync(pb.SyncRequest(model="head"), timeout=LONG))
    apply(served)
    eventually(lambda: not (is_held(publishers[0], 5) or is_held(publishers[1], 4)), lambda: "both to be freed")
    for one in publishers:
        one.close()
