"""The server: builds the models and all ports, starts them, and drains them in the order that loses no request."""

from __future__ import annotations

import asyncio
import logging
import os
from pathlib import Path
from typing import Any, NamedTuple

import grpc
from google.protobuf.descriptor import ServiceDescriptor
from grpc_health.v1 import health_pb2
from tensorflow_serving.apis import model_service_pb2, prediction_service_pb2

from paramsync.errors import SettingsError
from paramsync.kserve import open_inference_pb2 as kserve_pb2
from paramsync.rpc.addresses import address, refused
from paramsync.rpc.server import options
from paramsync.v1 import sync_pb2

from ..batching.batcher import Batching
from ..batching.threads import Threads
from ..event_loop.idle import Rests
from ..protocols.kserve.service import KServe
from ..protocols.sync.service import SyncService
from ..protocols.tfs.model_service import ModelService
from ..protocols.tfs.predict import PredictionService
from ..protocols.tfs.reload import Configuring
from ..serving.allowed import Allowed
from ..serving.metrics import Metrics
from ..serving.registry import Registry
from ..serving.served import Maker
from ..settings.settings import Settings, TfServing
from ..transport import accepting
from ..transport.dispatch import Dispatch
from ..transport.drain import QUIET_SECONDS, Drain
from ..transport.health import Health
from ..transport.memory_budget import SHARES, MemoryBudget
from ..transport.predictions import Predictions
from ..transport.read_timeout import ReadTimeouts
from ..transport.reflection import add_reflection
from ..transport.streams import Slots
from .tf_serving.config_file import ConfigFile

_log = logging.getLogger("paramsync.inferencer")
_GRACE_SECONDS = 20.0  # docs/guarantees.md names it; less than the composition gives
_GRACE_OF_CONTROL = 1.0  # its calls have been answered by then, and its streams have ended, but for slow readers
_MOST_CALLS = 1 << 13  # of all kinds, for each port: only answers that nobody reads can be so many
_MOST_SILENT = 1 << 10  # whose messages did not come, for each port
_MOST_STREAMS = 512  # which their callers keep open for as long as they please, for each port


class Ports(NamedTuple):
    predictions: int
    rest: int
    control: int


class Server:
    """One inferencer. Made, started and drained on one event loop."""

    def __init__(self, settings: Settings, rests: Rests) -> None:
        """`rests` are those of its event loop. Raises ParamsyncError where a model cannot be made."""
        self._settings = settings
        self._tf_serving = theirs = settings.tf_serving or TfServing()
        self._options = (*options(settings.message_bytes), *theirs.channel_arguments)
        maker = Maker(poll_seconds=settings.poll_seconds, state=settings.state, rests=rests)
        self.models = models = Registry(settings.models, maker)
        self._metrics = metrics = Metrics(models, as_tf_serving=theirs.metrics_path is not None)
        allowed = Allowed(settings.reload_roots, host=settings.host)
        self._configuring = Configuring(models)
        self._batching = Batching(
            Threads(_thread_count()),
            metrics,
            rows=settings.batch_rows,
            most=settings.queue,
            together=models.batched,
            rests=rests,
        )
        self._room = MemoryBudget(SHARES * settings.message_bytes)
        self._answering = Predictions(self._batching, self._room, message_bytes=settings.message_bytes)
        self._draining = asyncio.Event()
        self._arrivals: list[ReadTimeouts] = []
        self._following_file: asyncio.Future[None] | None = None
        self._room.coming = lambda: sum([one.coming.total for one in self._arrivals])
        of_predictions = {
            prediction_service_pb2.DESCRIPTOR.services_by_name["PredictionService"]: PredictionService(models),
            model_service_pb2.DESCRIPTOR.services_by_name["ModelService"]: ModelService(
                models, self._configuring, allowed
            ),
            kserve_pb2.DESCRIPTOR.services_by_name["GRPCInferenceService"]: KServe(
                models, metrics, self._draining, allowed
            ),
        }
        of_control = {sync_pb2.DESCRIPTOR.services_by_name["Sync"]: SyncService(models, self._draining)}
        self._health = Health(models, [one.full_name for one in (*of_predictions, *of_control)])
        self._door = Drain()
        self._predictions = self._part(of_predictions, self._door, rests)
        self._control = self._part(of_control, Drain())

    async def start(self) -> Ports:
        """Listen, and follow the stores. Raises SettingsError where a port is taken."""
        self.models.start()  # first of all: versions are restored while the rest is imported and set up
        try:
            if self._settings.tf_serving is not None:
                await self._first()
            return await self._listen()
        except BaseException:
            self.models.drain()
            await asyncio.gather(self._predictions.stop(None), self._control.stop(None))
            raise

    async def _first(self) -> None:
        """What TensorFlow Serving does before it listens, whose clients take a port that answers for a model that does:
        every model is looked at, and what its file of models says is so."""
        await self.models.looked()
        if self._tf_serving.config_file is not None:
            file = ConfigFile(self._tf_serving.config_file, self._configuring.apply)
            await file.run_once(asyncio.get_running_loop().time())
            self._following_file = asyncio.ensure_future(file.follow(self._tf_serving.config_poll_seconds))

    async def _listen(self) -> Ports:
        from ..protocols.rest.server import Rest

        host, theirs = self._settings.host, self._tf_serving
        port = _bind(self._predictions, host, self._settings.port, "--port") if theirs.port else 0
        if theirs.socket is not None:
            _bind_socket(self._predictions, theirs.socket)
        control_host = self._settings.control_host or host
        control_port = _bind(self._control, control_host, self._settings.control_port, "--control-port")
        self._rest = Rest(
            self.models,
            self._batching,
            self._metrics,
            self._room,
            message_bytes=self._settings.message_bytes,
            metrics_path=theirs.metrics_path,
        )
        rest_port = await self._rest.start(host, self._settings.rest_port) if theirs.http else 0
        await self._predictions.start()
        await self._control.start()
        self._following_health = asyncio.ensure_future(self._health.follow())
        return Ports(port, rest_port, control_port)

    async def drain(self, *, quiet_seconds: float = QUIET_SECONDS) -> None:
        """Say so first, then accept no more predictions, answer what is in flight, and end every thread.

        1. Health says NOT_SERVING, every stream is ended, every answer by HTTP is the last of its connection, syncs
           and pins are refused, and nothing more is restored.
        2. Both ports for predictions are closed, each once no call has come for so long; what has come is answered.
        3. The control port, where all of that could be watched, is closed too.

        Of what is computed or restored beyond the grace nothing is waited for any more.
        """
        self._health.drain()
        self._rest.drain()
        self._following_health.cancel()
        if self._following_file is not None:
            self._following_file.cancel()
        self.models.drain()
        self._draining.set()
        for one in self._arrivals:
            one.drain()
        followers = asyncio.ensure_future(self.models.close())
        await asyncio.gather(
            self._door.close(self._predictions, grace=_GRACE_SECONDS, quiet_seconds=quiet_seconds),
            self._rest.close(grace=_GRACE_SECONDS, quiet_seconds=quiet_seconds),
        )
        await self._control.stop(_GRACE_OF_CONTROL)
        await followers
        self._batching.close()
        self._answering.close()

    def _part(
        self, servicers: dict[ServiceDescriptor, Any], door: Drain, rests: Rests | None = None
    ) -> grpc.aio.Server:
        part = accepting.server([door], options=self._options, most=_MOST_CALLS, rests=rests)
        streams, arrivals = Slots(_MOST_STREAMS, "streams"), ReadTimeouts(_MOST_SILENT, self._room)
        self._arrivals.append(arrivals)
        servicers = {**servicers, health_pb2.DESCRIPTOR.services_by_name["Health"]: self._health}
        for service, servicer in servicers.items():
            part.add_generic_rpc_handlers((Dispatch(servicer, service, self._answering, streams, arrivals, door),))
        add_reflection([one.full_name for one in servicers], part, self._draining, streams, arrivals)
        return part


async def serve(settings: Settings, stop: asyncio.Event, rests: Rests) -> None:
    """Serve until `stop` is set. Raises SettingsError where a port is taken."""
    theirs = settings.tf_serving
    if theirs is not None and theirs.changing_nothing:
        _log.warning("flags that change nothing here: %s", ", ".join(theirs.changing_nothing))
    server = Server(settings, rests)
    starting, stopping = asyncio.ensure_future(server.start()), asyncio.ensure_future(stop.wait())
    await asyncio.wait({starting, stopping}, return_when=asyncio.FIRST_COMPLETED)
    if not starting.done():
        starting.cancel()  # it has not listened yet
        await asyncio.wait({starting})
        return
    ports = await starting
    predictions, rest = (address(settings.host, port) if port else "none" for port in (ports.predictions, ports.rest))
    control = address(settings.control_host or settings.host, ports.control)
    _log.info("inferencer ready: predictions %s, control %s, HTTP %s", predictions, control, rest)
    await stopping
    _log.info("inferencer stops: answering what is in flight")
    await server.drain()
    _log.info("inferencer stopped")


def _bind(server: grpc.aio.Server, host: str, port: int, option: str) -> int:
    try:
        return server.add_insecure_port(address(host, port))
    except RuntimeError as error:
        raise refused(host, port, option) from error


def _bind_socket(server: grpc.aio.Server, path: Path) -> None:
    try:
        server.add_insecure_port(f"unix:{path}")
    except RuntimeError as error:
        raise SettingsError(f"--grpc_socket_path {path}: cannot listen there; choose another path") from error


def _thread_count() -> int:
    return min(8, 2 + (os.cpu_count() or 1))
