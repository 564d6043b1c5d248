"""Overview: the state of a server as one JSON text, for the page."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from paramsync.following.follower import Follower
from paramsync.following.report import Subscription
from paramsync.host.processes import Memory, memory_of
from paramsync.program.process import release
from paramsync.status import Status

from ..protocols.page import messages
from ..serving.counts import Histogram
from ..serving.worker_status import WorkerStatus
from .history import History
from .peers import Peers
from .traffic import Traffic

_log = logging.getLogger("paramsync.supervisor")
SAMPLE_SECONDS = 1.0  # the time between two samples while a page is open
_UNWATCHED_SECONDS = 5.0  # the time between two samples while no page is open
_STILL_OPEN_SECONDS = 3.0  # a page counts as open for this time after each request; it asks every second


class Overview:
    """Collects the state of the server. Any thread may use it. Its own thread takes samples of the workers' traffic."""

    def __init__(
        self,
        workers: Callable[[], Sequence[WorkerStatus]],
        counts: Callable[[], Sequence[Mapping[Any, Histogram]]],
        states: Callable[[], tuple[Mapping[str, Status], str]],
        *,
        heard: Callable[[], object] = lambda: None,
        peers: Peers | None = None,
    ) -> None:
        """`counts` asks each worker for its counts of requests, which may take long; `states` returns the status of
        each model, and what is wrong with the workers. `heard` is called after each event of a follower."""
        self._statuses = workers
        self._counts = counts
        self._states = states
        self._heard = heard
        self._peers = peers
        self._started_at = time.time()
        self._release = release()
        self._lock = threading.Lock()  # guards the next two fields; its holder never waits for a process
        self._models: dict[str, History] = {}
        self._workers: list[dict[str, Any]] = []
        self._asked_at = 0.0
        self._subscriptions: dict[Follower[Any], Subscription] = {}
        self._traffic = Traffic()
        self._ended = threading.Event()

    def start(self) -> None:
        threading.Thread(target=self._run, name="overview", daemon=True).start()
        if self._peers is not None:
            asking = (self._ended, self._is_open, SAMPLE_SECONDS)
            threading.Thread(target=self._peers.run, args=asking, name="peers", daemon=True).start()

    def close(self) -> None:
        self._ended.set()

    def state(self, model: str | None = None) -> bytes:
        """Return the state as JSON. If `model` is given, only this model has its history."""
        self._asked_at = time.monotonic()
        with self._lock:
            now = time.time()
            _, trouble = self._look(now)
            models = {
                name: history.as_json(now, whole=model is None or name == model)
                for name, history in self._models.items()
            }
            workers = self._workers
        server = {"release": self._release, "started_at": self._started_at, "trouble": trouble}
        peers = [] if self._peers is None else self._peers.rows()
        return messages.text({"now": now, "models": models, "workers": workers, "server": server, "peers": peers})

    def _is_open(self) -> bool:
        """Return whether somebody looks at a page of this server."""
        return time.monotonic() - self._asked_at <= _STILL_OPEN_SECONDS

    # Events -----------------------------------------------------------------------------------------------------------

    def follow(self, followers: Sequence[Follower[Any]]) -> None:
        """Subscribe to exactly these followers. Only one thread at a time may call it."""
        for gone in self._subscriptions.keys() - set(followers):
            self._subscriptions.pop(gone).close()
        for follower in followers:
            if follower not in self._subscriptions:
                self._subscriptions[follower] = follower.subscribe(partial(self._hear, follower))
                self._hear(follower)  # for events that came before the subscription was in the table

    def _hear(self, follower: Follower[Any]) -> None:
        """Record the new events of a follower. The follower's thread calls this after each event."""
        subscription = self._subscriptions.get(follower)
        if subscription is None:
            return
        events = subscription.take()
        with self._lock:
            for event in events:
                self._models.setdefault(event.model, History()).hear(event)
        self._heard()

    def look(self) -> tuple[Mapping[str, Status], str]:
        """Record the statuses of all models. Returns the result of `states`."""
        with self._lock:
            return self._look(time.time())

    def _look(self, now: float) -> tuple[Mapping[str, Status], str]:
        """Do what `look` does. The caller holds the lock; otherwise statuses could be older than recorded events."""
        statuses, trouble = self._states()
        for name, status in statuses.items():
            self._models.setdefault(name, History()).look(status, now)
        for name in self._models.keys() - statuses.keys():
            del self._models[name]
        return statuses, trouble

    # Samples ----------------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        sampled_at = -_UNWATCHED_SECONDS
        while not self._ended.wait(SAMPLE_SECONDS):
            now = time.monotonic()
            if not self._is_open() and now - sampled_at < _UNWATCHED_SECONDS:
                continue
            sampled_at = now
            try:
                self.sample()
            except Exception:  # noqa: BLE001, the next sample is tried
                _log.exception("a sample of the workers' traffic failed; the next one follows")

    def sample(self) -> None:
        """Record the traffic of every worker since the last sample, and the age of each serving version."""
        statuses, counts = self._statuses(), self._counts()
        rates = self._traffic.look(counts, time.monotonic())
        workers = [
            _of_process(worker.pid, worker.number, worker.state.value, worker.since, worker.restarts)
            for worker in statuses
        ]
        supervisor = _of_process(os.getpid(), None, "supervising", self._started_at, 0)
        models, _ = self.look()
        with self._lock:
            self._workers = [supervisor, *workers]
            for name, status in models.items():
                if name in self._models:
                    self._models[name].sample(_sample(status, rates.get(name, {})))


def _sample(status: Status, rates: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "at": round(time.time(), 3),
        "age": _rounded(status.serving_age_seconds),
        "behind": _rounded(status.lag_seconds),
        "rate": rates.get("rate", 0.0),
        "failed": rates.get("failed", 0.0),
        "versions": rates.get("versions", {}),
    }


def _of_process(pid: int | None, number: int | None, state: str, since: float, restarts: int) -> dict[str, Any]:
    memory = Memory(0, 0) if pid is None else memory_of(pid)
    facts = {"pid": pid, "number": number, "state": state, "since": since, "restarts": restarts}
    return {**facts, "resident_bytes": memory.resident, "private_bytes": memory.private}


def _rounded(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds, 3)
