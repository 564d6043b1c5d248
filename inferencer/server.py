"""The server: builds the models and both ports, starts them, and drains them in the order that loses no request."""

from __future__ import annotations

import asyncio
import logging
import os
from concurrent.futures import ThreadPoolExecutor

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection
from tensorflow_serving.apis import (
    model_service_pb2,
    model_service_pb2_grpc,
    prediction_service_pb2,
    prediction_service_pb2_grpc,
)

from inferencer.follower import Follower
from inferencer.replica import Replica
from inferencer.services.health import Health
from inferencer.services.model import ModelService
from inferencer.services.models import InFlight, Models
from inferencer.services.predict import PredictionService
from inferencer.services.sync import SyncService
from inferencer.settings import Settings, check_port
from inferencer.watch import Watch
from paramsync.errors import SettingsError
from paramsync.store import Store
from paramsync.v1 import sync_pb2, sync_pb2_grpc

_LOG = logging.getLogger("paramsync.inferencer")
_GRACE_SECONDS = 10.0
_QUIET_SECONDS = 0.1  # a request that has reached the process but not its servicer yet gets this long to do so
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
        services = [
            prediction_service_pb2.DESCRIPTOR.services_by_name["PredictionService"].full_name,
            model_service_pb2.DESCRIPTOR.services_by_name["ModelService"].full_name,
        ]
        sync = sync_pb2.DESCRIPTOR.services_by_name["Sync"].full_name
        self._threads = ThreadPoolExecutor(_thread_count(), thread_name_prefix="predict")
        self._in_flight = InFlight()
        self._draining = asyncio.Event()
        self._health = Health(models, services)
        self._predictions = self._part(services)
        prediction_service_pb2_grpc.add_PredictionServiceServicer_to_server(
            PredictionService(models, self._threads, self._in_flight), self._predictions
        )
        model_service_pb2_grpc.add_ModelServiceServicer_to_server(ModelService(models), self._predictions)
        self._control = self._part([sync])
        sync_pb2_grpc.add_SyncServicer_to_server(SyncService(models, self._draining), self._control)

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

    async def drain(self) -> None:
        """Say so first, then accept nothing more, answer what is in flight, and end every thread."""
        self._health.drain()
        self._following_health.cancel()
        for follower in self.followers:
            follower.drain()
        self._draining.set()
        stopped = asyncio.ensure_future(self._stop(_GRACE_SECONDS))
        await asyncio.wait({stopped}, timeout=_QUIET_SECONDS)
        if not stopped.done():  # streams are open that nobody will end, or requests are being answered
            none = asyncio.ensure_future(self._in_flight.none())
            await asyncio.wait({stopped, none}, return_when=asyncio.FIRST_COMPLETED)
            none.cancel()
            await self._stop(None)
            await stopped
        await asyncio.gather(*(asyncio.to_thread(one.close) for one in self.followers))
        self._threads.shutdown()

    async def _stop(self, grace: float | None) -> None:
        await asyncio.gather(self._predictions.stop(grace), self._control.stop(grace))

    def _part(self, services: list[str]) -> grpc.aio.Server:
        part = grpc.aio.server(options=_OPTIONS)
        health_pb2_grpc.add_HealthServicer_to_server(self._health, part)
        health = health_pb2.DESCRIPTOR.services_by_name["Health"].full_name
        reflection.enable_server_reflection([*services, health, reflection.SERVICE_NAME], part)
        return part


async def serve(settings: Settings, stop: asyncio.Event) -> None:
    """Serve until `stop` is set. Raises SettingsError where a port is taken."""
    server = Server(settings)
    port, control_port = await server.start()
    host = settings.host
    _LOG.info("inferencer ready: predictions %s, control %s", _address(host, port), _address(host, control_port))
    await stop.wait()
    _LOG.info("inferencer stops: answering what is in flight")
    await server.drain()
    _LOG.info("inferencer stopped")


def _follower(model: str, store: Store, *, settings: Settings) -> Follower:
    replica = Replica(model, store, inputs=settings.inputs, outputs=settings.outputs, verification=settings.verify)
    return Follower(replica, store, poll_seconds=settings.poll_seconds)


def _bind(server: grpc.aio.Server, host: str, port: int, option: str) -> int:
    try:
        return server.add_insecure_port(_address(host, port))
    except RuntimeError as error:
        check_port(host, port, option)
        raise SettingsError(f"cannot listen on port {port} of {host}; choose another with {option}") from error


def _address(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _thread_count() -> int:
    return min(8, 2 + (os.cpu_count() or 1))
