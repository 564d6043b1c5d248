"""The ports for predictions: gRPC and HTTP, all protocols. Drains them without losing a request."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor

from tensorflow_serving.apis import model_service_pb2, prediction_service_pb2

from paramsync.host.processes import processors
from paramsync.kserve import open_inference_pb2 as kserve_pb2
from paramsync.rpc.tls import ServerTls
from paramsync.v1 import sync_pb2

from ..batching.batcher import Batcher
from ..protocols.kserve.service import KServe
from ..protocols.tfs.model_service import ModelService
from ..protocols.tfs.predict import PredictionService
from ..serving.access import access_of
from ..serving.metrics import Metrics
from ..serving.served import ServedModels, Supervisor
from ..settings.settings import Settings, TfServing
from ..transport.dispatch import methods_of
from ..transport.grpc_port import GrpcPort
from ..transport.grpcio_port import GrpcioPort
from ..transport.health import Health
from ..transport.memory_budget import SHARES, MemoryBudget
from ..transport.predictions import Predictions

_log = logging.getLogger("paramsync.inferencer")
_LINGER_SECONDS = 3.0  # how long a leaving worker waits for clients to go before it ends idle connections and streams
_STEP_SECONDS = 0.01
_ACCEPTING_TURNS = 3  # turns of the event loop: asyncio calls `connection_made` in the second turn after accepting
_HANDSHAKE_SECONDS = 0.3  # how long to wait for TLS handshakes: a connection is counted only after its handshake
# Sync is a service of the supervisor, but workers report its health, too.
_SYNC = sync_pb2.DESCRIPTOR.services_by_name["Sync"].full_name
GRACE_SECONDS = 20.0  # named in docs/deploy.md and operate.md; shorter than `stop_grace_period` in docker-compose.yml


class PredictionServer:
    """Answers predictions and requests about models. Create, start and drain it on the same event loop."""

    def __init__(
        self,
        settings: Settings,
        models: ServedModels,
        metrics: Metrics,
        supervisor: Supervisor,
        *,
        all_taken: memoryview | None = None,
        slot: int = 0,
    ) -> None:
        """`all_taken` and `slot` are as in MemoryBudget."""
        self._settings = settings
        self._supervisor = supervisor
        self.models = models
        self.metrics = metrics
        self._access = access_of(settings, settings.host)
        threads = min(8, 2 + processors())
        self.batcher = Batcher(
            ThreadPoolExecutor(threads, "predict"),
            threads,
            metrics,
            rows=settings.batch_rows,
            most=settings.queue,
            batched=models.batched,
        )
        self.budget = MemoryBudget(SHARES * settings.message_bytes, all_taken, slot)
        self.answering = Predictions(self.batcher, self.budget, message_bytes=settings.message_bytes)
        self.draining = asyncio.Event()
        self.kserve = KServe(models, supervisor, self.draining)
        servicers = {
            prediction_service_pb2.DESCRIPTOR.services_by_name["PredictionService"]: PredictionService(models),
            model_service_pb2.DESCRIPTOR.services_by_name["ModelService"]: ModelService(models, supervisor),
            kserve_pb2.DESCRIPTOR.services_by_name["GRPCInferenceService"]: self.kserve,
        }
        self.health = Health(models, [*(service.full_name for service in servicers), _SYNC])
        self.grpc = (GrpcioPort if settings.grpc_server == "grpcio" else GrpcPort)(
            methods_of(servicers, self.health, self.draining, self._access, self.answering),
            self.budget,
            message_bytes=settings.message_bytes,
            connection_seconds=(settings.tf_serving or TfServing()).connection_seconds,
        )
        self.answering.awaited = self.grpc.awaited

    async def start(self, grpc: Iterable[socket.socket], http: Iterable[socket.socket]) -> None:
        """Take these listeners over, and answer the callers who connect to them."""
        from ..protocols.http.port import HttpPort

        tls = None if self._settings.tls is None else ServerTls(self._settings.tls)
        self._rest = HttpPort(
            self.models,
            self.batcher,
            self.metrics,
            self.budget,
            self.kserve,
            self._access,
            self._supervisor,
            self._settings,
        )
        self.grpc.take(grpc, tls)
        await self._rest.start(http, tls)
        self._following_health = asyncio.ensure_future(self.health.follow())
        await self.grpc.start()

    async def leave(self) -> None:
        """Hand callers over to another process, which has the same listeners. Call `drain` afterwards."""
        loop = asyncio.get_running_loop()
        self._rest.leave()
        self.grpc.stop_listening(handed_on=True)
        for _ in range(_ACCEPTING_TURNS):  # connections that are not counted yet would be lost
            await asyncio.sleep(0)
        if self._settings.tls is not None:
            await asyncio.sleep(_HANDSHAKE_SECONDS)
        began = loop.time()
        while (self.grpc.leave() or len(self._rest)) and loop.time() - began < _LINGER_SECONDS:
            await asyncio.sleep(_STEP_SECONDS)
        await self._rest.close(grace=GRACE_SECONDS, quiet_seconds=0.0)  # ends connections without a request
        self.say_so()  # ends streams
        while self.grpc.leave() and loop.time() - began < GRACE_SECONDS:
            await asyncio.sleep(_STEP_SECONDS)

    def say_so(self) -> None:
        """From now on, report NOT_SERVING, end every stream, and close an HTTP connection after its next answer."""
        self.health.drain()
        self._rest.drain()
        self._following_health.cancel()
        self.draining.set()
        self.grpc.hurry()

    async def drain(self, *, quiet_seconds: float) -> None:
        """Answer all calls, close each port once no call has come for `quiet_seconds`, and end every thread."""
        self.say_so()
        await asyncio.gather(
            self.grpc.drain(grace=GRACE_SECONDS, quiet_seconds=quiet_seconds),
            self._rest.close(grace=GRACE_SECONDS, quiet_seconds=quiet_seconds),
        )
        self.batcher.close()
        self.answering.close()
