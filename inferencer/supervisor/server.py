"""The server: follows the stores, has its workers answer from what they hold, and does what operators ask."""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from typing import Any

from tensorflow_serving.config import model_server_config_pb2

from paramsync.following.operator_requests import Action
from paramsync.following.pins_file import Change
from paramsync.rpc.addresses import address
from paramsync.rpc.tls import ServerTls
from paramsync.status import Status
from paramsync.v1 import sync_pb2

from ..processes.channel import Handler
from ..protocols.sync.service import SyncService
from ..protocols.sync.trainer_client import TrainerCalls
from ..protocols.tfs.config_file import ConfigFile
from ..protocols.tfs.reload import Configuring
from ..serving.access import ReloadRoots, access_of
from ..serving.metrics import Load, Metrics, Statistics
from ..serving.prometheus import Exposition
from ..serving.registry import Registry
from ..settings.settings import AnySettings, Ports, Settings, TfServing, trainer_tls
from ..transport.dispatch import methods_of
from ..transport.grpc_port import QUIET_SECONDS, GrpcPort
from ..transport.health import Health
from ..transport.listeners import listeners_at, port_of
from ..transport.memory_budget import SHARES, MemoryBudget
from .comparing import Comparing
from .fleet import Fleet, Shown
from .listeners import Listeners
from .maker import SharedJoined, SharedMaker, message_of
from .overview import Overview
from .scrub import Scrub
from .shared import SharedVersion
from .template import Template
from .versions import SharedResidents

_log = logging.getLogger("paramsync.inferencer")
_GRACE_OF_CONTROL = 1.0  # its calls have been answered by then, and its streams have ended, but for slow readers
_GRACE_OF_WORKERS = 25.0
_COUNTING_SECONDS = 2.0
_TELLING_SECONDS = 1.0
_CHECK_SECONDS = 1.0  # between two times that workers are asked whether they answer, where nothing happens
_NEWS_SECONDS = 0.05  # between two times that workers are told how the followers are


class Server:
    """One inferencer. Made, started and drained on one event loop."""

    def __init__(self, settings: Settings, *, template: Template | None = None, tracing: bool = False) -> None:
        """Workers are forked from a `template` that is given, which whoever gives it closes.

        With `tracing`, versions that come to serve have spans. Raises ParamsyncError where a model cannot be made.
        """
        self._loop = asyncio.get_running_loop()
        self._tf_serving = tf_serving = settings.tf_serving or TfServing()
        self._listeners = Listeners(settings)
        settings = dataclasses.replace(settings, port=self._listeners.port, rest_port=self._listeners.rest_port)
        self._settings = settings
        self._comparing = Comparing()
        handlers: dict[str, Handler] = {
            "configure": self._configure,
            "follow": self._follow,
            "late": self._late,
            "metrics": partial(self._aside, self._text),
            "overview": self._page_state,
            "compare": self._compare,
            "compare_no_more": self._comparing.leave,
            "statistics": partial(self._aside, self._statistics),
        }
        self._fleet = Fleet(settings.workers, (settings,), handlers, self._shown, self._listeners, template=template)
        maker = SharedMaker(self._fleet, poll_seconds=settings.poll_seconds, state=settings.state, tracing=tracing)
        self.models = Registry(settings.models, maker)
        self.models.trouble = lambda: self._fleet.trouble
        self._fleet.on_trouble = self._on_trouble
        self._fleet.on_crashing = self._on_crashing
        self._configuring = Configuring(self.models, self.apply, trust=tf_serving.trust)
        self._roots = ReloadRoots(settings.reload_roots, host=settings.host)
        self._following_file: asyncio.Future[None] | None = None
        self._metrics = Metrics(self.models)
        self._exposition = Exposition(self._metrics, as_tf_serving=tf_serving.metrics_path is not None)
        self._metrics.workers = self._fleet.statuses
        self._metrics.trouble = lambda: self._fleet.trouble
        self._scrub = Scrub(self._in_memory, self._suspect)
        self._metrics.scrubbed = lambda: self._scrub.scrubbed
        self._news = threading.Event()
        self._overview = Overview(self._fleet.statuses, self._counts, self._states, heard=self._news.set)
        self._summing = threading.Lock()
        self._draining = asyncio.Event()
        self._health = Health(self.models, [sync_pb2.DESCRIPTOR.services_by_name["Sync"].full_name])
        budget = MemoryBudget(SHARES // 2 * settings.message_bytes)
        calls = TrainerCalls(settings.tokens, trainer_tls(settings))
        service = SyncService(
            self.models,
            self._draining,
            self._tell,
            self._fleet.statuses,
            self._load,
            self._fleet.replace,
            calls,
        )
        access = access_of(settings, settings.control_host or settings.host)
        servicers = {sync_pb2.DESCRIPTOR.services_by_name["Sync"]: service}
        methods = methods_of(servicers, self._health, self._draining, access)
        self._control = GrpcPort(methods, budget, message_bytes=settings.message_bytes)
        self._ended = threading.Event()

    async def start(self) -> Ports:
        """Listen, and follow the stores: the control port at once, those of predictions once TensorFlow is imported.

        Raises SettingsError where a port is taken.
        """
        self._overview.follow(self.models.followers())
        self.models.start()  # first of all: versions are checked while the workers are started
        host = self._settings.control_host or self._settings.host
        tls = None if self._settings.tls is None else ServerTls(self._settings.tls)
        try:
            listeners = listeners_at(host, self._settings.control_port, "--control-port")
            control = port_of(listeners)
            self._control.take(listeners, tls)
            await self._control.start()
            _log.info("control %s answers; importing TensorFlow for workers", address(host, control))
            if self._settings.tf_serving is not None:
                await self._first()
            await asyncio.to_thread(self._fleet.start)
        except BaseException:
            self.models.drain()
            await self._control.stop()
            self._end()
            raise
        self._following_health = asyncio.ensure_future(self._health.follow())
        threading.Thread(target=self._tell_news, name="news", daemon=True).start()
        threading.Thread(target=self._scrub.run, args=(self._ended,), name="scrub", daemon=True).start()
        self._overview.start()
        return Ports(self._listeners.port, self._listeners.rest_port, control)

    async def _first(self) -> None:
        """What TensorFlow Serving does before it listens, whose clients take a port that answers for a model that does:
        every model is looked at, and what its file of models says is so."""
        await self.models.looked()
        if self._tf_serving.config_file is not None:
            file = ConfigFile(self._tf_serving.config_file, self._configuring.apply)
            await file.run_once(self._loop.time())
            self._following_file = asyncio.ensure_future(file.follow(self._tf_serving.config_poll_seconds))

    def _end(self) -> None:
        self._ended.set()
        self._news.set()
        self._overview.close()
        self._fleet.close()
        self._listeners.close()

    async def drain(self, *, quiet_seconds: float = QUIET_SECONDS) -> None:
        """Say so first, then accept no more predictions, answer what is in flight, and end every process.

        1. Health says NOT_SERVING, every stream is ended, syncs and pins are refused, and nothing more is restored.
        2. Every worker closes its ports, once no call has come for so long; what has come is answered.
        3. The control port, where all of that could be watched, is closed too.
        """
        self._health.drain()
        self._following_health.cancel()
        if self._following_file is not None:
            self._following_file.cancel()
        self.models.drain()
        self._draining.set()
        self._control.hurry()
        followers = asyncio.ensure_future(self.models.close())
        self._fleet.replace_no_more()
        await asyncio.to_thread(self._fleet.ask_all, "drain", quiet_seconds, seconds=_GRACE_OF_WORKERS)
        await self._control.end(_GRACE_OF_CONTROL)
        await followers
        await asyncio.to_thread(self._end)

    # What workers ask -------------------------------------------------------------------------------------------------

    def _configure(self, content: bytes, seconds: float | None) -> Future[None]:
        config = model_server_config_pb2.ModelServerConfig.FromString(content)
        applied = self._configuring.apply(config, seconds=seconds, roots=self._roots)
        return asyncio.run_coroutine_threadsafe(applied, self._loop)

    async def apply(self, models: Sequence[AnySettings], changes: Mapping[str, Change] | None = None) -> None:
        """Serve these from now on, and nothing else. See `Registry.apply`."""
        await self.models.apply(models, changes)
        await asyncio.to_thread(self._fleet.change)
        for model in self.models:
            if isinstance(model, SharedJoined):
                model.tried = None

    def _follow(self, model: str, action: Action, *arguments: Any) -> Future[Status]:
        async def followed() -> Status:
            try:
                return await asyncio.wrap_future(self.models.follower(model).ask(action, *arguments))
            finally:
                await self._tell()

        return asyncio.run_coroutine_threadsafe(followed(), self._loop)

    def _late(self, model: str, number: int | None, seconds: float | None) -> str:
        return self.models.follower(model).late(number, seconds)

    def _aside(self, call: Any, *arguments: Any) -> Future[Any]:
        return asyncio.run_coroutine_threadsafe(asyncio.to_thread(call, *arguments), self._loop)

    def _page_state(self, model: str | None) -> bytes:
        return self._overview.state(model)

    def _compare(self, model: str, old: int, new: int, asker: str) -> Future[bytes]:
        return self._comparing.ask(self.models.follower(model).status().store, old, new, asker)

    def _counts(self) -> list[Any]:
        return [requests for requests, _, _ in self._fleet.ask_all("counts", seconds=_COUNTING_SECONDS)]

    def _text(self) -> bytes:
        with self._summing:
            self._summed()
            return self._exposition.text()

    def _statistics(self, model: str) -> Mapping[str, Statistics]:
        with self._summing:
            return self._summed().statistics(model)

    def _load(self) -> tuple[Mapping[str, Load], int]:
        with self._summing:
            metrics = self._summed()
            return metrics.loads(), metrics.waiting()

    def _summed(self) -> Metrics:
        """What all workers counted, as one."""
        metrics = self._metrics
        metrics.requests, metrics.calls, waiting = {}, {}, 0
        for requests, calls, waits in self._fleet.counts(seconds=_COUNTING_SECONDS):
            metrics.take_in(requests, calls)
            waiting += waits
        metrics.waiting = lambda: waiting
        return metrics

    # What becomes of workers ------------------------------------------------------------------------------------------

    def _in_memory(self) -> list[SharedVersion]:
        return [version for follower in self.models.followers() for version in follower.replica.residents]

    def _suspect(self, version: SharedVersion) -> None:
        for follower in self.models.followers():
            if version in follower.replica.residents:
                follower.replica.suspects.add(version)
                follower.notify()

    def _on_crashing(self, key: int, reason: str) -> None:
        for follower in self.models.followers():
            residents: Any = follower.replica
            assert isinstance(residents, SharedResidents)
            if any(version.message.key == key for version in residents.residents):
                residents.crashing[key] = reason
                follower.notify()

    def _on_trouble(self) -> None:
        for follower in self.models.followers():
            follower.notify()  # which says so in its status
        self._news.set()
        with suppress(RuntimeError):  # the event loop is closed
            self._loop.call_soon_threadsafe(self._health.look)

    # What workers are told --------------------------------------------------------------------------------------------

    def _shown(self) -> Shown:
        messages = [message_of(model, awaited=self.models.is_awaited(model)) for model in self.models]
        return [message for message, _ in messages], [kept for _, kept in messages]

    async def _tell(self) -> None:
        """Returns once the workers know how the followers are."""
        states = self._looked()
        await asyncio.to_thread(self._fleet.ask_all, "states", *states, seconds=_TELLING_SECONDS)

    def _states(self) -> tuple[dict[str, Status], str]:
        return {model.name: model.status() for model in self.models}, self._fleet.trouble

    def _looked(self) -> tuple[dict[str, Status], str]:
        """The same, after which the page knows it too."""
        states = self._states()
        self._overview.look(*states)
        return states

    def _tell_news(self) -> None:
        """As soon as anything happened, but not more often than that is worth."""
        while not self._ended.wait(_NEWS_SECONDS):
            try:
                self._overview.follow(self.models.followers())
                if self._news.wait(_CHECK_SECONDS):
                    self._news.clear()
                self._fleet.check()
                self._fleet.tell("states", *self._looked())
            except Exception:  # noqa: BLE001, the workers would not be looked after any more
                _log.exception("the workers were not told how the followers are; they will be")
