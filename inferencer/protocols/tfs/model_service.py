"""The gRPC service tensorflow.serving.ModelService: states of versions, and configurations of models."""

from __future__ import annotations

from typing import Any

import grpc
from tensorflow_serving.apis import get_model_status_pb2, model_management_pb2, model_pb2

from paramsync.errors import NotServingError, UnknownLabelError, UnknownVersionError
from paramsync.status import Course, Stage, Status

from ...serving.served import Models, Supervisor
from ...serving.specs import model_name

_Message = get_model_status_pb2.ModelVersionStatus
_STATES = {
    Stage.FOUND: _Message.START,
    Stage.RESTORING: _Message.LOADING,
    Stage.RESIDENT: _Message.AVAILABLE,
    Stage.LEAVING: _Message.UNLOADING,
    Stage.ENDED: _Message.END,
}


class ModelService:
    """The methods of the service. They run on one event loop."""

    def __init__(self, models: Models, supervisor: Supervisor) -> None:
        self._models = models
        self._supervisor = supervisor

    async def GetModelStatus(
        self, request: get_model_status_pb2.GetModelStatusRequest, context: Any
    ) -> get_model_status_pb2.GetModelStatusResponse:
        return states(self._models, request)

    async def HandleReloadConfigRequest(
        self, request: model_management_pb2.ReloadConfigRequest, context: Any
    ) -> model_management_pb2.ReloadConfigResponse:
        await self._supervisor("configure", request.config.SerializeToString(), context.time_remaining())
        response = model_management_pb2.ReloadConfigResponse()
        response.status.SetInParent()  # an empty status means OK
        return response


def states(
    models: Models, request: get_model_status_pb2.GetModelStatusRequest
) -> get_model_status_pb2.GetModelStatusResponse:
    """Return the states of versions. Raises the errors of `courses`, and UnknownModelError."""
    status = models.find(model_name(request.model_spec)).status()
    return get_model_status_pb2.GetModelStatusResponse(
        model_version_status=[_state(course) for course in courses(status, request.model_spec)]
    )


def courses(status: Status, spec: model_pb2.ModelSpec) -> list[Course]:
    """Return the stage of the version that `spec` names, or the stages of all versions, the highest first, if it names
    none.
    Raises NotServingError if there is no version yet, UnknownVersionError, UnknownLabelError.
    """
    by_number = {course.number: course for course in status.courses()}
    if not by_number:
        raise NotServingError(status.model, f"store {status.store} has no version yet")
    choice = spec.WhichOneof("version_choice")
    if choice is None:
        return list(by_number.values())
    if choice == "version_label" and spec.version_label not in status.labels:
        raise UnknownLabelError(status.model, spec.version_label, status.labels)
    number = status.labels[spec.version_label] if choice == "version_label" else spec.version.value
    if choice == "version" and number == 0 not in by_number:  # some clients mean all versions by 0
        return list(by_number.values())
    if number not in by_number:
        raise UnknownVersionError(f"model {status.model!r}", number, by_number)
    return [by_number[number]]


def _state(course: Course) -> get_model_status_pb2.ModelVersionStatus:
    message = _Message(version=course.number, state=_STATES[course.stage])
    message.status.SetInParent()  # an empty status means OK
    if course.reason:
        message.status.error_code = grpc.StatusCode.FAILED_PRECONDITION.value[0]
        message.status.error_message = course.reason
    return message
