"""The server: follows the stores, tells workers which versions answer, and carries out operators' requests."""

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
from ..settings.settings import AnySettings, Ports, Settings, TfServing, client_credentials, trainer_tls
from ..transport.dispatch import methods_of
from ..transport.grpc_port import QUIET_SECONDS, GrpcPort
from ..transport.health import Health
from ..transport.listeners import listeners_at, port_of
from ..transport.memory_budget import SHARES, MemoryBudget
from .comparing import Comparing
from .epochs import Shown
from .fleet import Fleet
from .listeners import Listeners
from .maker import JoinedModel, Maker, message_of, parts_of
from .overview import Overview
from .peers import Peers
from .registry import Registry
from .scrub import Scrub
from .shared import SharedVersion
from .template import Template

_log = logging.getLogger("paramsync.inferencer")
_GRACE_OF_CONTROL = 1.0  # how long callers at the control port may take to read their last answers
_GRACE_OF_WORKERS = 25.0  # how long workers may take to drain
_COUNTING_SECONDS = 2.0  # how long workers may take to send their counts
_TELLING_SECONDS = 1.0  # how long an operator's call waits for workers to take the statuses of followers
_QUIET_SECONDS = 1.0  # workers get a status message after this time, even without news of followers
_NEWS_SECONDS = 0.05  # the shortest time between two status messages to a worker


class Server:
    """One inferencer. Create, start and drain it on the same event loop."""

    def __init__(self, settings: Settings, template: Template, *, tracing: bool = False) -> None:
        """Workers are forked from the `template`; the caller closes it.

        With `tracing`, each version that begins to serve gets a span. Raises ParamsyncError if a model cannot be made.
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
        self._fleet = Fleet(settings.workers, (settings,), handlers, self._shown, self._listeners, template)
        maker = Maker(self._fleet, poll_seconds=settings.poll_seconds, state=settings.state, tracing=tracing)
        self.models = Registry(settings.models, maker)
        self.models.trouble = lambda: self._fleet.workers.trouble
        self._fleet.workers.on_trouble = self._on_trouble
        self._fleet.workers.on_crashing = self._on_crashing
        self._configuring = Configuring(self.models, self.apply, trust=tf_serving.trust)
        self._roots = ReloadRoots(settings.reload_roots, host=settings.host)
        self._following_file: asyncio.Future[None] | None = None
        self._scrub = Scrub(self._in_memory, self._suspect)
        self._news = threading.Event()
        peers = Peers(settings.peers, partial(client_credentials, settings))
        self._overview = Overview(
            self._fleet.workers.statuses, self._counts, self._states, heard=self._news.set, peers=peers
        )
        self._draining = asyncio.Event()
        self._health = Health(self.models, [sync_pb2.DESCRIPTOR.services_by_name["Sync"].full_name])
        budget = MemoryBudget(SHARES // 2 * settings.message_bytes)
        calls = TrainerCalls(settings.tokens, trainer_tls(settings))
        service = SyncService(
            self.models,
            self._draining,
            self._tell,
            self._fleet.workers.statuses,
            self._load,
            self._fleet.workers.replace,
            calls,
        )
        access = access_of(settings, settings.control_host or settings.host)
        servicers = {sync_pb2.DESCRIPTOR.services_by_name["Sync"]: service}
        methods = methods_of(servicers, self._health, self._draining, access)
        self._control = GrpcPort(methods, budget, message_bytes=settings.message_bytes)
        self._ended = threading.Event()

    async def start(self) -> Ports:
        """Follow the stores and listen. The control port opens at once, the others once TensorFlow is imported.
        Raises SettingsError if a port is taken.
        """
        self._overview.follow(self.models.followers())
        self.models.start()  # first, so that versions are checked while workers start
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
        """Look at every model and apply the file of models before listening, as TensorFlow Serving does.

        Clients of TensorFlow Serving expect that every model answers as soon as the port is open.
        """
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
        """End the server without losing a request.

        1. Health says NOT_SERVING, every stream ends, syncs and pins are refused, and nothing more is restored.
        2. Every worker answers its requests, and closes its ports once no call has come for `quiet_seconds`.
        3. The control port is closed last, so that operators can watch steps 1 and 2.
        """
        self._health.drain()
        self._following_health.cancel()
        if self._following_file is not None:
            self._following_file.cancel()
        self.models.drain()
        self._draining.set()
        self._control.hurry()
        followers = asyncio.ensure_future(self.models.close())
        await asyncio.to_thread(self._fleet.workers.drain, quiet_seconds, seconds=_GRACE_OF_WORKERS)
        await self._control.end(_GRACE_OF_CONTROL)
        await followers
        await asyncio.to_thread(self._end)

    # Requests of workers ----------------------------------------------------------------------------------------------

    def _configure(self, content: bytes, seconds: float | None) -> Future[None]:
        config = model_server_config_pb2.ModelServerConfig.FromString(content)
        applied = self._configuring.apply(config, seconds=seconds, roots=self._roots)
        return asyncio.run_coroutine_threadsafe(applied, self._loop)

    async def apply(self, models: Sequence[AnySettings], changes: Mapping[str, Change] | None = None) -> None:
        """Serve exactly these models from now on. See `Registry.apply`."""
        try:
            await self.models.apply(models, changes)
        finally:  # also after a TimeoutError: the change was accepted, and may take effect later
            await asyncio.to_thread(self._fleet.epochs.change)
            for model in self.models:
                if isinstance(model, JoinedModel):
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

    def _page_state(self, model: str | None) -> Future[bytes]:
        return self._aside(self._overview.state, model)

    def _compare(self, model: str, old: int, new: int, asker: str) -> Future[bytes]:
        return self._comparing.ask(self.models.follower(model).status().store, old, new, asker)

    def _counts(self) -> list[Any]:
        return [requests for requests, _, _ in self._fleet.workers.counts(seconds=_COUNTING_SECONDS)]

    def _text(self) -> bytes:
        exposition = Exposition(
            self._summed(),
            workers=self._fleet.workers.statuses(),
            trouble=self._fleet.workers.trouble,
            scrubbed=self._scrub.scrubbed,
            as_tf_serving=self._tf_serving.metrics_path is not None,
        )
        return exposition.text()

    def _statistics(self, model: str) -> Mapping[str, Statistics]:
        return self._summed().statistics(model)

    def _load(self) -> tuple[Mapping[str, Load], int]:
        metrics = self._summed()
        return metrics.loads(), metrics.waiting()

    def _summed(self) -> Metrics:
        """Sum up the counts of all workers."""
        metrics, waiting = Metrics(self.models), 0
        for requests, calls, waits in self._fleet.workers.counts(seconds=_COUNTING_SECONDS):
            metrics.take_in(requests, calls)
            waiting += waits
        metrics.waiting = lambda: waiting
        return metrics

    # Events of workers and of the scrub -------------------------------------------------------------------------------

    def _in_memory(self) -> list[SharedVersion]:
        return [version for follower in self.models.followers() for version in follower.replica.residents]

    def _suspect(self, version: SharedVersion) -> None:
        for follower in self.models.followers():
            if version in follower.replica.residents:
                follower.replica.suspects.add(version)
                follower.notify()

    def _on_crashing(self, key: int, reason: str) -> None:
        for follower in self.models.followers():
            residents: Any = follower.replica  # SharedResidents
            residents.crashing[key] = reason
            follower.notify()

    def _on_trouble(self) -> None:
        for follower in self.models.followers():
            follower.notify()  # the follower's status includes the trouble
        self._news.set()
        with suppress(RuntimeError):  # the event loop is closed
            self._loop.call_soon_threadsafe(self._health.look)

    # Messages to workers ----------------------------------------------------------------------------------------------

    def _shown(self, name: str | None) -> list[Shown]:
        """Return what workers are shown of a model and of the models joined from it; without a name, of all models."""
        models = [model for model in self.models if name is None or name in parts_of(model)]
        return [message_of(model, awaited=self.models.is_awaited(model)) for model in models]

    async def _tell(self) -> None:
        """Send workers the statuses of followers. Returns once all workers have them, or after a second."""
        answers = await asyncio.to_thread(self._fleet.epochs.tell, *self._overview.look())
        if answers:
            await asyncio.wait([asyncio.wrap_future(answer) for answer in answers], timeout=_TELLING_SECONDS)

    def _states(self) -> tuple[dict[str, Status], str]:
        return {model.name: model.status() for model in self.models}, self._fleet.workers.trouble

    def _tell_news(self) -> None:
        """Tell workers and the page about events of followers, in at most 20 messages a second."""
        while not self._ended.wait(_NEWS_SECONDS):
            try:
                self._overview.follow(self.models.followers())
                if self._news.wait(_QUIET_SECONDS):
                    self._news.clear()
                self._fleet.epochs.tell(*self._overview.look())
            except Exception:  # noqa: BLE001, otherwise workers would get no status any more
                _log.exception("workers did not get the statuses of followers; they are sent again")
