"""What stock clients are told of a model: its signatures, and in which state each version is."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import grpc
import pytest
from tensorflow.core.framework import types_pb2
from tensorflow_serving.apis import (
    get_model_metadata_pb2,
    get_model_status_pb2,
    model_pb2,
)

from inferencer.protocols.tfs.model_service import courses
from paramsync.errors import NotServingError, UnknownLabelError, UnknownVersionError
from paramsync.status import Quarantined, Stage, State, Status
from paramsync.v1 import sync_pb2 as pb
from paramsync.version import Version
from tests.support.published import Publisher
from tests.support.running import LONG, Running, refused, synced

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
