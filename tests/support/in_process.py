"""A worker's ports in the process of a test, which may inspect them. The test restores versions without a follower."""

from __future__ import annotations

import asyncio
from concurrent.futures import Future
from typing import Any

from inferencer.protocols.http.port import HttpPort
from inferencer.serving.metrics import Metrics
from inferencer.serving.prometheus import Exposition
from inferencer.settings.settings import ModelSettings, Ports
from inferencer.transport.listeners import listeners_at, port_of
from inferencer.worker.models import EpochModels, Model
from inferencer.worker.server import PredictionServer
from paramsync.following.replica import Replica
from paramsync.inference import batchable
from paramsync.status import State, Status
from paramsync.version import Version
from tests.support.published import GATED_OPS
from tests.support.running import Running


class InProcess(Running):
    """A server as in `Running`, but without a control port. It becomes ready only once every model has a version."""

    async def _start(self) -> tuple[Any, Ports]:
        self.asked: list[tuple[Any, ...]] = []
        self.counted = asyncio.Event()  # until it is set, the counts of all workers do not come
        self.counted.set()
        self._replicas = {path.name: Replica(path.name, path, allowed=GATED_OPS) for path in self.stores}
        self._now = {name: self._model(name) for name in self._replicas}
        supervisor: Any = self
        self.models = models = EpochModels(lambda: self._now, supervisor)
        server = PredictionServer(self.settings, models, Metrics(models), self._ask)
        grpc, http = listeners_at("127.0.0.1", 0, "--port"), listeners_at("127.0.0.1", 0, "--rest-port")
        ports = Ports(port_of(grpc), port_of(http), 0)
        await server.start(grpc, http)
        return server, ports

    def _model(self, name: str) -> Model:
        view, store = self._replicas[name].view, self._replicas[name].source.path
        status = Status(
            model=name,
            store=store,
            state=State.SERVING if view.recent else State.WAITING,
            serving=view.recent[0].version if view.recent else None,
            resident=tuple(one.version.number for one in view.residents),
        )
        return Model(ModelSettings(name=name, store=store), view, status, awaited=True)

    @property
    def rest(self) -> HttpPort:
        port: HttpPort = self.server._rest
        return port

    def restore(self, version: Version, model: str = "m") -> None:
        """Serve a version, prepared as by a worker for requests that share a call."""
        replica = self._replicas[model]
        resident = replica.restore(version)
        batchable.examine(resident)
        replica.swap(resident)
        self._now = {**self._now, model: self._model(model)}
        self._loop.call_soon_threadsafe(self.models.news)

    def ask(self, what: str, model: str, *_: Any) -> Future[Status]:
        """Answer for the supervisor: every action of an operator succeeds."""
        done: Future[Status] = Future()
        done.set_result(self.models.find(model).status())
        return done

    async def _ask(self, *question: Any) -> bytes:
        """Answer for the supervisor: it has no models, and a comparison never ends."""
        self.asked.append(question)
        if question[0] == "compare":
            await asyncio.Event().wait()
        if question[0] in ("metrics", "statistics"):
            await self.counted.wait()
        if question[0] == "metrics":
            return Exposition(self.server.metrics).text()
        return b'{"models":{}}'
