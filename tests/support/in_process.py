"""A server that has a worker's ports and follows its stores itself, all in this process, so that a test can look into
its objects and change them. Users start `inferencer.supervisor.server.Server` instead."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

from inferencer.protocols.sync.service import SyncService
from inferencer.protocols.sync.trainer_client import TrainerCalls
from inferencer.protocols.tfs.reload import Configuring
from inferencer.serving.access import access_of
from inferencer.serving.metrics import Metrics
from inferencer.serving.prometheus import Exposition
from inferencer.serving.registry import Registry
from inferencer.serving.served import FollowedModel, Maker, ServedJoined
from inferencer.serving.worker_status import Replaced
from inferencer.settings.settings import AnySettings, ConnectionSettings, ModelSettings, Ports, Settings
from inferencer.transport.dispatch import methods_of
from inferencer.transport.grpc_port import QUIET_SECONDS, GrpcPort
from inferencer.transport.listeners import listeners_at, port_of
from inferencer.worker.server import PredictionServer
from paramsync.following.composite import Connection
from paramsync.following.follower import Follower
from paramsync.following.pins_file import Change
from paramsync.following.replica import Replica
from paramsync.inference import batchable
from paramsync.inference.resident import Resident
from paramsync.rpc.tls import ServerTls
from paramsync.sources.source import ProgressCallback
from paramsync.status import Status
from paramsync.v1 import sync_pb2
from paramsync.version import Version


async def _nobody(*_: object) -> None:
    """A supervisor that answers nothing."""


def _no_worker(number: int) -> Replaced:
    raise AssertionError("there are no workers")


class LocalServer:
    """Made, started and drained on one event loop."""

    def __init__(self, settings: Settings) -> None:
        """Raises ParamsyncError if a model cannot be made."""
        self._settings = settings
        maker = LocalMaker(poll_seconds=settings.poll_seconds, state=settings.state)
        self.models = models = Registry(settings.models, maker)
        service = sync_pb2.DESCRIPTOR.services_by_name["Sync"]
        metrics = Metrics(models)
        self.exposition = Exposition(metrics)
        self.predicting = PredictionServer(
            settings,
            models,
            metrics,
            self.exposition.text,
            Configuring(models, models.apply),
            also=[service.full_name],
            supervisor=_nobody,
        )
        sync = SyncService(
            models, self.predicting.draining, _nobody, tuple, lambda: ({}, 0), _no_worker, TrainerCalls(None, None)
        )
        methods = methods_of(
            {service: sync},
            self.predicting.health,
            self.predicting.draining,
            access_of(settings, settings.host),
        )
        self.control = GrpcPort(methods, self.predicting.budget, message_bytes=settings.message_bytes)

    async def start(self) -> Ports:
        self.models.start()
        tls = None if self._settings.tls is None else ServerTls(self._settings.tls)
        try:
            host = self._settings.host
            grpc = listeners_at(host, self._settings.port, "--port")
            http = listeners_at(host, self._settings.rest_port, "--rest-port")
            control = listeners_at(host, self._settings.control_port, "--control-port")
            ports = Ports(port_of(grpc), port_of(http), port_of(control))
            self.control.take(control, tls)
            await self.predicting.start(grpc, http)
            await self.control.start()
        except BaseException:
            self.models.drain()
            await self.control.stop()
            raise
        return ports

    async def apply(self, models: Sequence[AnySettings], changes: Mapping[str, Change] | None = None) -> None:
        await self.models.apply(models, changes)

    async def drain(self, *, quiet_seconds: float = QUIET_SECONDS) -> None:
        self.predicting.say_so()
        self.models.drain()
        self.control.hurry()
        followers = asyncio.ensure_future(self.models.close())
        await self.predicting.drain(quiet_seconds=quiet_seconds)
        await self.control.end(1.0)
        await followers


class _Examined(Replica):
    """Its graphs are examined as a worker does, for requests that wait together."""

    def restore(self, version: Version, tell: ProgressCallback | None = None) -> Resident:
        resident = super().restore(version, tell)
        batchable.examine(resident)
        return resident


class LocalMaker(Maker):
    def _follower(self, settings: ModelSettings, change: Change | None) -> Follower:
        replica = _Examined(
            settings.name,
            settings.store,
            resident=settings.resident,
            inputs=settings.inputs,
            outputs=settings.outputs,
            graph=settings.graph,
            verification=settings.verify,
            allowed=settings.allowed,
        )
        return Follower(
            replica,
            poll_seconds=self.poll_seconds,
            keep=self.state,
            labels=settings.labels,
            latest=settings.latest,
            change=change,
        )

    def join(self, served: Mapping[str, FollowedModel]) -> None:
        """They are since they were made."""

    def _joined(self, settings: ConnectionSettings, first: FollowedModel, second: FollowedModel) -> ServedJoined:
        return _Joined(settings, first, second)


class _Joined(ServedJoined):
    def __init__(self, settings: ConnectionSettings, first: FollowedModel, second: FollowedModel) -> None:
        super().__init__(settings, first, second)
        replicas = [one.replica for one in self.followers]
        self._connection = Connection(settings.name, replicas[0], replicas[1], settings.inputs, settings.outputs)

    def take(self, version: int | None = None, label: str = "") -> Resident:
        return self._connection.take(version, label)

    def joined(self) -> Status:
        return self._connection.status()

    def close(self) -> None:
        self._connection.close()
