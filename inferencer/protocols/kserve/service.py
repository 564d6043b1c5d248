"""inference.GRPCInferenceService: KServe's second protocol with Triton's additions."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Any

from paramsync.errors import InputError, NotServingError, ParamsyncError
from paramsync.following.follower import Follower
from paramsync.following.operator_requests import Action
from paramsync.graphs.specs import DEFAULT_SIGNATURE
from paramsync.kserve import open_inference_pb2 as pb
from paramsync.program.process import release
from paramsync.status import Stage, State, nothing_serves

from ...serving.metrics import Statistics
from ...serving.served import ServedModels, Supervisor, few_at_a_time
from ..sync.service import wait
from . import tensors
from .infer import ModelInfer, ModelStreamInfer, take_resident

_EXTENSIONS = ("binary_tensor_data", "model_repository", "statistics")
_PLATFORM = "tensorflow"
_LOOK_SECONDS = 1.0  # long enough for a follower to look at its store after a sync request
_STATISTICS_SECONDS = 10.0  # how long the supervisor may take to add up the counts of all workers
_STATES = {
    Stage.FOUND: "LOADING",
    Stage.RESTORING: "LOADING",
    Stage.RESIDENT: "READY",
    Stage.LEAVING: "UNLOADING",
    Stage.ENDED: "UNAVAILABLE",
}


def _not_offered(why: str) -> Callable[[Any, Any, Any], Any]:
    async def refuse(self: Any, request: pb.NotOffered, context: Any) -> pb.NotOffered:
        raise NotImplementedError(why)

    return refuse


class KServe:
    """The methods of the service. They run on one event loop; only ModelInfer is called from threads, too."""

    def __init__(self, models: ServedModels, supervisor: Supervisor, draining: asyncio.Event) -> None:
        self._models = models
        self._counts = few_at_a_time(supervisor)
        self.ModelInfer = ModelInfer(models)
        self.ModelStreamInfer = ModelStreamInfer(self.ModelInfer, draining)

    # Health and metadata ----------------------------------------------------------------------------------------------

    async def ServerLive(self, request: pb.ServerLiveRequest, context: Any) -> pb.ServerLiveResponse:
        return pb.ServerLiveResponse(live=True)

    async def ServerReady(self, request: pb.ServerReadyRequest, context: Any) -> pb.ServerReadyResponse:
        return pb.ServerReadyResponse(ready=not self._models.missing())

    async def ModelReady(self, request: pb.ModelReadyRequest, context: Any) -> pb.ModelReadyResponse:
        """Answer "not ready" for an unknown model or version, instead of an error, as Triton's clients expect."""
        try:
            take_resident(self._models, request.name, request.version)
        except InputError:
            raise
        except ParamsyncError:
            return pb.ModelReadyResponse(ready=False)
        return pb.ModelReadyResponse(ready=self._models.find(request.name).status().state is State.SERVING)

    async def ServerMetadata(self, request: pb.ServerMetadataRequest, context: Any) -> pb.ServerMetadataResponse:
        return pb.ServerMetadataResponse(name="paramsync", version=release(), extensions=_EXTENSIONS)

    async def ModelMetadata(self, request: pb.ModelMetadataRequest, context: Any) -> pb.ModelMetadataResponse:
        resident = take_resident(self._models, request.name, request.version)
        signature = resident.graph.signatures.get(DEFAULT_SIGNATURE)
        if signature is None:
            raise resident.graph.unknown(DEFAULT_SIGNATURE)
        return pb.ModelMetadataResponse(
            name=request.name,
            versions=[str(number) for number in sorted(self._models.find(request.name).status().resident)],
            platform=_PLATFORM,
            inputs=tensors.described(signature.inputs),
            outputs=tensors.described(signature.outputs),
        )

    # The repository ---------------------------------------------------------------------------------------------------

    async def RepositoryIndex(self, request: pb.RepositoryIndexRequest, context: Any) -> pb.RepositoryIndexResponse:
        _check_repository(request.repository_name)
        response = pb.RepositoryIndexResponse()
        for model in self._models:
            status = model.status()
            courses = status.courses()
            for course in courses:
                state = _STATES[course.stage]
                if state == "READY" or not request.ready:
                    response.models.add(name=model.name, version=str(course.number), state=state, reason=course.reason)
            if not courses and not request.ready:
                reason = nothing_serves(status.store, status.short_reason)
                response.models.add(name=model.name, state="UNAVAILABLE", reason=reason)
        return response

    async def RepositoryModelLoad(
        self, request: pb.RepositoryModelLoadRequest, context: Any
    ) -> pb.RepositoryModelLoadResponse:
        """Answer once the newest published version serves. Raises NotServingError if nothing was published."""
        _check_repository(request.repository_name)
        followers = self._models.followers(request.model_name)
        if request.parameters:
            found = ", ".join(sorted(request.parameters))
            expected = "none: what a model is made of is published in its store"
            raise InputError("parameters", expected=expected, found=found)
        synced = asyncio.ensure_future(_synced(followers, context))
        try:
            await asyncio.wait({synced}, timeout=_LOOK_SECONDS)
            empty = [follower.status() for follower in followers if follower.status().published is None]
            if empty and not synced.done():
                raise NotServingError(request.model_name, nothing_serves(empty[0].store, empty[0].short_reason))
            await synced
        finally:
            synced.cancel()
        return pb.RepositoryModelLoadResponse()

    async def RepositoryModelUnload(
        self, request: pb.RepositoryModelUnloadRequest, context: Any
    ) -> pb.RepositoryModelUnloadResponse:
        _check_repository(request.repository_name)
        name = self._models.find(request.model_name).name
        raise NotImplementedError(
            f"model {name!r} stays: callers do not remove models;"
            " the server's configuration does, or HandleReloadConfigRequest of TensorFlow Serving"
        )

    async def ModelStatistics(self, request: pb.ModelStatisticsRequest, context: Any) -> pb.ModelStatisticsResponse:
        """Return the statistics of versions that are in memory or have answered lately."""
        response = pb.ModelStatisticsResponse()
        for model in self._models.some(request.name):
            counted = await asyncio.wait_for(self._counts("statistics", model.name), _STATISTICS_SECONDS)
            resident = {str(number): Statistics() for number in model.status().resident}
            versions = {**resident, **counted}
            if request.version and request.version not in versions:
                number = take_resident(self._models, request.name, request.version).version.number
                versions = {str(number): versions.get(str(number), Statistics())}
            elif request.version:
                versions = {request.version: versions[request.version]}
            for version in sorted(versions, key=int):
                response.model_stats.append(_statistics(model.name, version, versions[version]))
        return response

    # Not offered ------------------------------------------------------------------------------------------------------

    ModelConfig = _not_offered("ModelConfig is not offered: ModelMetadata has the inputs, the outputs and the versions")
    SystemSharedMemoryStatus = _not_offered(_SHARED := "shared memory is not offered; send contents in the request")
    SystemSharedMemoryRegister = _not_offered(_SHARED)
    SystemSharedMemoryUnregister = _not_offered(_SHARED)
    CudaSharedMemoryStatus = _not_offered(_SHARED)
    CudaSharedMemoryRegister = _not_offered(_SHARED)
    CudaSharedMemoryUnregister = _not_offered(_SHARED)
    TraceSetting = _not_offered("tracing is not offered; /metrics has the times of requests, calls, restores and swaps")
    LogSettings = _not_offered("the log has no settings that a caller could change")


async def _synced(followers: Iterable[Follower], context: Any) -> None:
    await asyncio.gather(*(wait(follower, Action.SYNC, context) for follower in followers))


def _check_repository(name: str) -> None:
    if name:
        raise InputError("repository_name", expected="none: there is one repository", found=repr(name))


def _statistics(model: str, version: str, statistics: Statistics) -> pb.ModelStatistics:
    return pb.ModelStatistics(
        name=model,
        version=version,
        last_inference=int(statistics.last * 1e3),
        inference_count=statistics.rows,
        execution_count=statistics.calls,
        inference_stats=pb.InferStatistics(
            success=_duration(statistics.succeeded, statistics.succeeded_seconds),
            fail=_duration(statistics.failed, statistics.failed_seconds),
            compute_infer=_duration(statistics.computed, statistics.computed_seconds),
        ),
    )


def _duration(count: int, seconds: float) -> pb.StatisticDuration:
    return pb.StatisticDuration(count=count, ns=int(seconds * 1e9))
