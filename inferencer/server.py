"""The server: builds the models and both ports, starts them, and drains them in the order that loses no request."""

from __future__ import annotations

import asyncio
import logging
import os
from typing import Any

import grpc
from google.protobuf.descriptor import ServiceDescriptor
from grpc_health.v1 import health_pb2
from tensorflow_serving.apis import model_service_pb2, prediction_service_pb2

from inferencer.follower import Follower
from inferencer.replica import Replica
from inferencer.services.calls import add_servicer
from inferencer.services.door import QUIET_SECONDS, Door
from inferencer.services.health import Health
from inferencer.services.model import ModelService
from inferencer.services.models import Models
from inferencer.services.predict import PredictionService
from inferencer.services.reflection import add_reflection
from inferencer.services.sync import SyncService
from inferencer.services.threads import Threads
from inferencer.settings import Settings
from inferencer.watch import Watch
from paramsync.addresses import address, refused
from paramsync.store import Store
from paramsync.v1 import sync_pb2

_log = logging.getLogger("paramsync.inferencer")
_GRACE_SECONDS = 20.0  # docs/guarantees.md names it; less than the composition gives
_GRACE_OF_CONTROL = 1.0  # its calls have been answered by then, and its streams have ended, but for slow readers
_MOST_REQUESTS = 256  # predictions that wait or are computed
_MOST_CALLS = 1024  # of all kinds, streams among them, for each port
_MESSAGE_BYTES = 64 << 20
_OPTIONS = (
    ("grpc.so_reuseport", 0),  # else a second server could take the same port, and each would get some of the calls
    ("grpc.max_receive_message_length", _MESSAGE_BYTES),
    ("grpc.max_send_message_length", _MESSAGE_BYTES),
)


class Server:
    """One inferencer. Made, started and drained on one event loop."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self.followers = tuple(_follower(one.name, Store(one.store), settings=settings) for one in settings.models)
        models = Models(self.followers)
        predictions = prediction_service_pb2.DESCRIPTOR.services_by_name["PredictionService"]
        states = model_service_pb2.DESCRIPTOR.services_by_name["ModelService"]
        sync = sync_pb2.DESCRIPTOR.services_by_name["Sync"]
        self._threads = Threads(_thread_count(), most=_MOST_REQUESTS)
        self._draining = asyncio.Event()
        self._health = Health(models, [predictions.full_name, states.full_name])
        self._door = Door()
        answering = {predictions: PredictionService(models), states: ModelService(models)}
        self._predictions = self._part(answering, self._door)
        self._control = self._part({sync: SyncService(models, self._draining)})

    async def start(self) -> tuple[int, int]:
        """Listen, and follow the stores. Returns the ports for predictions and control. Raises SettingsError."""
        host = self._settings.host
        port = _bind(self._predictions, host, self._settings.port, "--port")
        control_port = _bind(self._control, host, self._settings.control_port, "--control-port")
        await self._predictions.start()
        await self._control.start()
        self._following_health = asyncio.ensure_future(self._health.follow())
        for follower in self.followers:
            follower.start(Watch(follower.status().store, follower.notify))
        return port, control_port

    async def drain(self, *, quiet_seconds: float = QUIET_SECONDS) -> None:
        """Say so first, then accept no more predictions, answer what is in flight, and end every thread.

        1. Health says NOT_SERVING, every stream is ended, syncs and pins are refused, and nothing more is restored.
        2. The predictions' port is closed once no call has come for so long; what has come is answered.
        3. The control port, where all of that could be watched, is closed too.

        Of what is computed or restored beyond the grace nothing is waited for any more.
        """
        self._health.drain()
        self._following_health.cancel()
        for follower in self.followers:
            follower.drain()
        self._draining.set()
        followers = asyncio.gather(*(asyncio.to_thread(one.close) for one in self.followers))
        await self._door.close(self._predictions, grace=_GRACE_SECONDS, quiet_seconds=quiet_seconds)
        await self._control.stop(_GRACE_OF_CONTROL)
        await followers
        self._threads.close()

    def _part(
        self, servicers: dict[ServiceDescriptor, Any], *first: grpc.GenericRpcHandler[Any, Any]
    ) -> grpc.aio.Server:
        part = grpc.aio.server(handlers=first, options=_OPTIONS, maximum_concurrent_rpcs=_MOST_CALLS)
        servicers = {**servicers, health_pb2.DESCRIPTOR.services_by_name["Health"]: self._health}
        for service, servicer in servicers.items():
            add_servicer(servicer, service, part, self._threads)
        add_reflection([one.full_name for one in servicers], part, self._draining)
        return part


async def serve(settings: Settings, stop: asyncio.Event) -> None:
    """Serve until `stop` is set. Raises SettingsError where a port is taken."""
    server = Server(settings)
    port, control_port = await server.start()
    host = settings.host
    _log.info("inferencer ready: predictions %s, control %s", address(host, port), address(host, control_port))
    await stop.wait()
    _log.info("inferencer stops: answering what is in flight")
    await server.drain()
    _log.info("inferencer stopped")


def _follower(model: str, store: Store, *, settings: Settings) -> Follower:
    replica = Replica(
        model,
        store,
        inputs=settings.inputs,
        outputs=settings.outputs,
        verification=settings.verify,
        allowed=settings.allowed,
    )
    return Follower(replica, store, poll_seconds=settings.poll_seconds)


def _bind(server: grpc.aio.Server, host: str, port: int, option: str) -> int:
    try:
        return server.add_insecure_port(address(host, port))
    except RuntimeError as error:
        raise refused(host, port, option) from error


def _thread_count() -> int:
    return min(8, 2 + (os.cpu_count() or 1))
