"""A worker, from its fork to its end: maps versions that the supervisor sends, answers requests, and counts them."""

from __future__ import annotations

import asyncio
import gc
import os
import socket
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from functools import partial
from typing import Any

import tensorflow as tf

from paramsync.host import memory
from paramsync.host.processes import limit_memory
from paramsync.program import traces
from paramsync.status import Status

from ..processes.channel import Channel, Handler
from ..processes.shared_words import CallsUnderWay as CallsSeen
from ..processes.shared_words import SharedWords
from ..serving.counts import Calls, Histogram
from ..serving.metrics import Metrics
from ..settings.settings import Settings
from ..transport.event_loop import new_event_loop
from .models import EpochModels
from .server import PredictionServer
from .versions import Versions

_MOST_OF_MEMORY = 0.5  # the share of the machine's memory that a trial may take
_COLLECTIONS = (10_000, 2, 100)
"""Thresholds of the garbage collector: new objects, and collections of the younger generation.

A collection delays every answer by about 1 ms for each thousand objects that it looks at. Calls that come together make
thousands of objects for a moment, none of which is garbage. Thousands of connections keep hundreds of thousands of
objects."""


def tried(*, descriptors: Sequence[int]) -> None:
    """Run a trial: build and call a graph before any worker has it."""
    connection, word = descriptors
    limit_memory(_MOST_OF_MEMORY)
    words = SharedWords(word)
    os.close(word)
    versions = Versions(words.epoch, CallsSeen(memoryview(bytearray(8)).cast("Q")))
    handlers: dict[str, Handler] = {"pid": os.getpid, "graph": versions.graph, "version": versions.version}
    Channel(socket.socket(fileno=connection), handlers, name="trial").run()


def work(number: int, slot: int, settings: Settings, *, descriptors: Sequence[int]) -> None:
    """Run a worker until the supervisor is gone or ends it. No other process has this slot of the shared words."""
    connection, word = descriptors
    tf.config.set_visible_devices([], "GPU")
    gc.set_threshold(*_COLLECTIONS)
    memory.limit_heap()
    words = SharedWords(word)
    os.close(word)
    new_event_loop().run_until_complete(_Worker(number, slot, settings, socket.socket(fileno=connection), words).run())


class _Worker:
    def __init__(
        self, number: int, slot: int, settings: Settings, connection: socket.socket, words: SharedWords
    ) -> None:
        self._settings = settings
        self._slot = slot
        self._words = words
        self._versions = Versions(words.epoch, words.calls(slot))
        self._channel = Channel(
            connection,
            {
                "pid": os.getpid,
                "version": self._versions.version,
                "join": self._versions.join,
                "show": self._versions.show,
                "shown": self._versions.shown,
                "states": self._states,
                "start": partial(self._later, self._start),
                "leave": partial(self._later, self._leave),
                "drain": partial(self._later, self._drain),
                "counts": self._counts,
                "alive": partial(self._later, self._alive),
            },
            name=f"worker {number}",
        )
        self._models = EpochModels(self._versions.now, self._channel)
        self._metrics = Metrics(self._models)
        self._end_traces = traces.start("paramsync-inferencer")
        if self._end_traces is not None:
            from ..serving.spans import RequestSpans

            self._metrics.spans = RequestSpans()
        self._server: PredictionServer | None = None
        self._leaving: asyncio.Future[None] | None = None
        self._turns = asyncio.Lock()  # only one coroutine at a time starts or ends the server
        self._channel.ended = lambda: os._exit(0)

    async def run(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._channel.start()
        await asyncio.Event().wait()  # the supervisor ends this process

    def _later(self, call: Any, *arguments: Any, **files: Any) -> Future[Any]:
        return asyncio.run_coroutine_threadsafe(call(*arguments, **files), self._loop)

    async def _start(self, by_grpc: int, *, descriptors: Sequence[int] = ()) -> None:
        """Start answering, from the epoch that was shown last. The first `by_grpc` listeners are for gRPC, the rest for
        HTTP."""
        listeners = [socket.socket(fileno=descriptor) for descriptor in descriptors]
        async with self._turns:
            self._server = PredictionServer(
                self._settings,
                self._models,
                self._metrics,
                lambda what, *arguments: asyncio.wrap_future(self._channel.ask(what, *arguments)),
                all_taken=self._words.taken,
                slot=self._slot,
            )
            self._versions.changed = partial(self._loop.call_soon_threadsafe, self._models.news)
            await self._server.start(listeners[:by_grpc], listeners[by_grpc:])

    def _states(self, statuses: Mapping[str, Status], trouble: str) -> None:
        self._models.trouble = trouble
        self._versions.states(statuses)

    async def _alive(self) -> str:
        """Prove that the event loop runs. If this process must be replaced, return the reason, and let health report
        it."""
        if failing := self._metrics.failing:
            self._models.trouble = failing
            self._models.news()
        return failing

    async def _leave(self, quiet_seconds: float) -> Any:
        """Hand callers over to the successor, which already listens. Returns all counts."""
        if self._server is None:  # the whole server is being drained
            async with self._turns:
                return self._counts()
        self._leaving = asyncio.ensure_future(self._server.leave())
        await asyncio.wait({self._leaving})
        await self._drain(quiet_seconds)
        if not self._leaving.cancelled():
            self._leaving.result()
        return self._counts()

    async def _drain(self, quiet_seconds: float) -> None:
        """End the server in any state: starting, answering, leaving, or never started."""
        async with self._turns:
            if self._leaving is not None:
                self._leaving.cancel()
                await asyncio.wait({self._leaving})
            server, self._server = self._server, None
            if server is not None:
                await server.drain(quiet_seconds=quiet_seconds)
            if self._end_traces is not None:
                await asyncio.to_thread(self._end_traces)

    def _counts(self) -> tuple[dict[Any, Histogram], dict[Any, Calls], int]:
        return dict(self._metrics.requests), dict(self._metrics.calls), self._metrics.waiting()
