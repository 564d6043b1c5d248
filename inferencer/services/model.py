"""tensorflow.serving.ModelService: in which state each version of a model is, translated."""

from __future__ import annotations

from typing import Any

import grpc
from tensorflow_serving.apis import get_model_status_pb2

from inferencer.services.models import Models
from inferencer.services.predict import asked
from inferencer.status import State, Status
from paramsync.errors import NotServingError, UnknownVersionError


class ModelService:
    """Lives on one event loop."""

    def __init__(self, models: Models) -> None:
        self._models = models

    async def GetModelStatus(
        self, request: get_model_status_pb2.GetModelStatusRequest, context: Any
    ) -> get_model_status_pb2.GetModelStatusResponse:
        model, version = asked(request.model_spec)
        status = self._models.find(model).status()
        versions = _versions(status)
        if not versions:
            raise NotServingError(model, f"store {status.store} has no version yet")
        if version is not None and version not in versions:
            raise UnknownVersionError(f"model {model!r}", version, versions)
        asked_for = sorted(versions, reverse=True) if version is None else [version]
        return get_model_status_pb2.GetModelStatusResponse(
            model_version_status=[versions[number] for number in asked_for]
        )

    async def HandleReloadConfigRequest(self, request: Any, context: Any) -> Any:
        raise NotImplementedError(
            "the models are given at the start; to be at the newest version now, use paramsync sync"
        )


def _versions(status: Status) -> dict[int, get_model_status_pb2.ModelVersionStatus]:
    """By number; where a version is several things at once, what is said last here counts."""
    of = get_model_status_pb2.ModelVersionStatus
    found = {}
    if status.restoring is not None:
        found[status.restoring] = of(version=status.restoring, state=of.LOADING)
    for one in status.quarantined:
        found[one.number] = of(version=one.number, state=of.END)
        found[one.number].status.error_code = grpc.StatusCode.FAILED_PRECONDITION.value[0]
        found[one.number].status.error_message = one.reason
    state = of.UNLOADING if status.state is State.DRAINING else of.AVAILABLE
    for number in status.resident:
        found[number] = of(version=number, state=state)
    return found
