"""Overview: all that the page shows of a server. Who watches is told what changed, once for all pages of a worker."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from functools import partial
from typing import Any

from paramsync.following.follower import Follower
from paramsync.following.report import Subscription
from paramsync.host.processes import Memory, memory_of
from paramsync.program.process import release
from paramsync.status import Status

from ..protocols.page import messages
from ..serving.counts import Histogram
from ..serving.worker_status import WorkerState, WorkerStatus
from .history import History
from .traffic import Traffic

_log = logging.getLogger("paramsync.supervisor")
WATCHED_SECONDS = 1.0  # between two samples while somebody watches
_UNWATCHED_SECONDS = 5.0
MOST_GONE = 1000  # names of models that are served no more; a page asks again long before it misses one
_COUNTING = (WorkerState.ANSWERING, WorkerState.LEAVING)
_STILL_WATCHED = 3.0  # since somebody was last told: he asks again at once

Answer = tuple[int, bytes]
"""A sequence, and JSON of what changed up to it: the next question is what changed since."""


class Overview:
    """Any thread may ask it. Its own takes samples of what workers do."""

    def __init__(
        self,
        workers: Callable[[], Sequence[WorkerStatus]],
        counts: Callable[[], Sequence[Mapping[Any, Histogram]]],
        states: Callable[[], tuple[Mapping[str, Status], str]],
        *,
        heard: Callable[[], object] = lambda: None,
    ) -> None:
        """`counts` asks each worker what it counted of requests, which may take long; `states` says how the models are,
        and what is wrong with the workers. `heard` is called after each event of a follower."""
        self._statuses = workers
        self._counts = counts
        self._states = states
        self._heard = heard
        self._started_at = time.time()
        self._release = release()
        self._lock = threading.Lock()  # of what follows; nobody is asked or told under it
        self._sequence = 0
        self._models: dict[str, History] = {}
        self._gone: dict[str, int] = {}
        self._workers: list[dict[str, Any]] = []
        self._server: dict[str, Any] = {}
        self._changed_at = {"workers": 0, "server": 0}
        self._waiting: list[tuple[int, Future[Answer]]] = []
        self._watched_at = 0.0
        self._subscriptions: dict[Follower[Any], Subscription] = {}
        self._traffic = Traffic()
        self._ended = threading.Event()
        self._asked = threading.Event()

    def start(self) -> None:
        threading.Thread(target=self._run, name="overview", daemon=True).start()

    def close(self) -> None:
        self._ended.set()
        self._asked.set()

    # What is asked ----------------------------------------------------------------------------------------------------

    def ask(self, since: int | None = None) -> Future[Answer]:
        """Everything now, or, once anything changed, what did since."""
        answer: Future[Answer] = Future()
        with self._lock:
            if since is None or since > self._sequence:
                message = self._message(-1)
            elif since < self._sequence:
                message = self._message(since)
            else:
                message = None
                self._waiting.append((since, answer))
            if since is not None:
                self._watched_at = time.monotonic()
        if message is not None:
            answer.set_result((message["sequence"], messages.text(message)))
        elif not self._asked.is_set():
            self._asked.set()
        return answer

    def _message(self, since: int) -> dict[str, Any]:
        now = time.time()
        message: dict[str, Any] = {"sequence": self._sequence, "now": now}
        models = {name: found for name, model in self._models.items() if (found := model.since(since, now))}
        if models:
            message["models"] = models
        gone = [name for name, sequence in self._gone.items() if sequence > since]
        if gone:
            message["gone"] = gone
        for name, what in (("workers", self._workers), ("server", self._server)):
            if self._changed_at[name] > since:
                message[name] = what
        return message

    def _tell(self) -> None:
        """Whoever waits for a change, where there is one."""
        with self._lock:
            due = [waiting for waiting in self._waiting if waiting[0] < self._sequence]
            self._waiting = [waiting for waiting in self._waiting if waiting[0] >= self._sequence]
            answers = {since: self._message(since) for since in {since for since, _ in due}}
            if due:
                self._watched_at = time.monotonic()
        texts = {since: (message["sequence"], messages.text(message)) for since, message in answers.items()}
        for since, answer in due:
            answer.set_result(texts[since])

    # What happens -----------------------------------------------------------------------------------------------------

    def follow(self, followers: Sequence[Follower[Any]]) -> None:
        """Hear of these, and of nobody else. One thread's."""
        for gone in self._subscriptions.keys() - set(followers):
            self._subscriptions.pop(gone).close()
        for follower in followers:
            if follower not in self._subscriptions:
                self._subscriptions[follower] = follower.subscribe(partial(self._hear, follower))
                self._hear(follower)  # what came before it was known here

    def _hear(self, follower: Follower[Any]) -> None:
        """On the follower's thread, after each event."""
        subscription = self._subscriptions.get(follower)
        if subscription is None:
            return
        events = subscription.take()
        with self._lock:
            for event in events:
                self._sequence += 1
                self._model(event.model).hear(event, self._sequence)
        self._heard()

    def look(self, statuses: Mapping[str, Status], trouble: str) -> None:
        """How the models are now, after anything happened. Any thread."""
        with self._lock:
            self._look(statuses, trouble)
        self._tell()

    def _look(self, statuses: Mapping[str, Status], trouble: str) -> None:
        now = time.time()
        for name, status in statuses.items():
            if self._model(name).look(status, self._sequence + 1, now):
                self._sequence += 1
        for name in self._models.keys() - statuses.keys():
            del self._models[name]
            self._sequence += 1
            self._gone[name] = self._sequence
        for name in list(self._gone)[: max(0, len(self._gone) - MOST_GONE)]:  # the first that went
            del self._gone[name]
        self._put("server", {"release": self._release, "started_at": self._started_at, "trouble": trouble})

    def _model(self, name: str) -> History:
        self._gone.pop(name, None)
        return self._models.setdefault(name, History())

    def _put(self, name: str, value: Any) -> None:
        if getattr(self, f"_{name}") != value:
            self._sequence += 1
            setattr(self, f"_{name}", value)
            self._changed_at[name] = self._sequence

    # Samples ----------------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        at = -_UNWATCHED_SECONDS
        while not self._ended.is_set():
            watched = time.monotonic() - self._watched_at < _STILL_WATCHED or bool(self._waiting)
            due = at + (WATCHED_SECONDS if watched else _UNWATCHED_SECONDS)
            self._asked.clear()
            if time.monotonic() < due and self._asked.wait(due - time.monotonic()):
                continue  # somebody began to watch: the next sample is due sooner
            at = time.monotonic()
            try:
                self.sample()
            except Exception:  # noqa: BLE001, it is tried again
                _log.exception("no sample of what the workers do; the next one is taken as ever")

    def sample(self) -> None:
        """What every worker did since the last one, and how old what serves is."""
        statuses, counts = self._statuses(), self._counts()
        # where one of them is late, what it counted would be missed now, and seem to have come at once later
        rates = (
            self._traffic.look(counts, time.monotonic())
            if len(counts) == sum(one.state in _COUNTING for one in statuses)
            else {}
        )
        workers = [
            _of_process(one.pid, number=one.number, state=one.state.value, since=one.since, restarts=one.restarts)
            for one in statuses
        ]
        supervisor = _of_process(os.getpid(), number=None, state="supervising", since=self._started_at, restarts=0)
        models, trouble = self._states()
        with self._lock:
            self._look(models, trouble)
            self._sequence += 1
            for name, status in models.items():
                self._models[name].sample(self._sample(status, rates.get(name, {})))
            self._put("workers", [supervisor, *workers])
        self._tell()

    def _sample(self, status: Status, rates: Mapping[str, Any]) -> dict[str, Any]:
        return {
            "sequence": self._sequence,
            "at": round(time.time(), 3),
            "age": _rounded(status.serving_age_seconds),
            "behind": _rounded(status.lag_seconds),
            "rate": rates.get("rate", 0.0),
            "failed": rates.get("failed", 0.0),
            "versions": rates.get("versions", {}),
        }


def _of_process(pid: int | None, **facts: Any) -> dict[str, Any]:
    memory = memory_of(pid) if pid is not None else Memory(0, 0)
    return {**facts, "pid": pid, "resident_bytes": memory.resident, "private_bytes": memory.private}


def _rounded(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds, 3)
