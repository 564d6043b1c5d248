"""Epochs: the order in which workers are told what to answer from.

An epoch says which versions the whole server answers from. A word of memory that all workers share holds the number of
the current epoch. A version comes to serve in four steps:

1. map    Every worker maps the version, and goes on answering from its other versions. Only the follower of this model
          waits.
2. show   Every worker is told the changes of the next epoch, and goes on answering from the current epoch.
3. word   The word becomes the next number. From that instant all workers answer from the next epoch: no client sees
          an older version after a newer one.
4. shown  Every worker forgets earlier epochs, and versions that the supervisor has freed.

A worker may die between two steps. Its successor maps every version and is shown the whole epoch before it answers,
always after a step 4 and before the next step 2.

A worker that is stopped or late in step 1 is ended, so that no follower waits longer than mapping its version may take.

A worker that is late in step 2 is not ended. The word may then name an epoch that the worker has not been shown. The
worker's requests wait until it has read the message about this epoch.

One thread takes steps 2 to 4 and admits workers, one request after another. It never waits for step 1, and at most
_SHOW_SECONDS for step 2. There is no lock, because a table is changed by one assignment or one atomic operation.
"""

from __future__ import annotations

import time
import weakref
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from contextlib import suppress
from functools import partial
from typing import Any

from paramsync.errors import UnfinishedError
from paramsync.status import Status

from ..processes.channel import ClosedError
from ..processes.messages import Joining, ModelMessage
from ..settings.settings import ConnectionSettings
from .shared import SharedVersion
from .trial import TRIAL_SECONDS
from .workers import Worker

_SHOW_SECONDS = 0.1  # how long a swap waits for workers in step 2
_LOOK_SECONDS = 0.1  # the time between two looks at workers that have not answered
_MOST_LOOKS = 5  # a worker found stopped so many times in a row is ended; a debugger stops a worker only for a moment
_MOST_UNANSWERED = 20  # most status messages without an answer: more would fill the socket of a worker that hangs

Shown = tuple[ModelMessage, Any]
"""A message about a model, and an object that keeps the model's versions in memory for workers that start later."""


class Epochs:
    """Tells the workers of one server what to answer from. Any thread may call its methods."""

    def __init__(self, word: memoryview, look: Callable[[str | None], Sequence[Shown]]) -> None:
        """`look` returns the messages about one model and the models joined from it; for None, about all models."""
        self._word = word
        self._look = look
        self._order = ThreadPoolExecutor(1, "epochs")
        self._mapping: tuple[Worker, ...] = ()  # workers that every version is sent to
        self._workers: tuple[Worker, ...] = ()  # workers of `_mapping` that are also shown epochs
        self._versions: dict[int, weakref.ref[SharedVersion]] = {}  # the versions that workers map, by key
        self._gone: deque[int] = deque()  # keys of freed versions that workers must still forget
        self._shown: Mapping[str, Shown] = {}
        self._pairs: Mapping[str, object] = {}  # by joined model: its settings, and the two graphs that workers joined
        self.joined: Mapping[str, Joining] = {}
        """The outcome for each joined model."""

    # For followers ----------------------------------------------------------------------------------------------------

    def map(self, version: SharedVersion) -> None:
        """Step 1: have every worker map a version. Raises the error of a worker that refuses, and UnfinishedError if
        every worker ended."""
        key = version.message.key
        is_new = all(known.graph is not version.graph for known in self._living())
        seconds = version.seconds + (TRIAL_SECONDS if is_new else 0.0)
        self._versions[key] = weakref.ref(version, lambda _: self._leave(key))
        # Read only now: a worker admitted meanwhile gets the version here, or from `_versions` in `admit`.
        workers = self._mapping
        files = version.files
        maps = {worker.channel.ask("version", version.message, descriptors=files): worker for worker in workers}
        mapped = 0
        try:
            for answer in _answers(maps, "version", seconds):
                with suppress(ClosedError):  # the worker ended; its own thread replaces it
                    answer.result()
                    mapped += 1
        except BaseException:
            self._leave(key)
            raise
        if workers and not mapped:
            self._leave(key)
            raise UnfinishedError("every worker ended while it was to have the version; it is tried again")

    def change(self, model: str | None = None) -> None:
        """Steps 2 to 4: switch all workers at one instant to a model's current versions; without `model`, to those of
        all models.

        Graphs that were never joined are joined first. Other models may change meanwhile.
        """
        with suppress(ClosedError):  # the server ends
            while apart := self._in_turn(self._change, model):
                self.join(apart)

    def join(self, shown: Sequence[Shown]) -> Mapping[str, Joining]:
        """Have all workers build the graphs of joined models, and return the outcome. Answers do not change."""
        models = [message for message, _ in shown]
        outcome: Mapping[str, Joining] = {}
        joins = {worker.channel.ask("join", models): worker for worker in self._workers}
        for answer in _answers(joins, "join", TRIAL_SECONDS):
            outcome = _outcome(joins[answer], answer) or outcome
        self._pairs = {**self._pairs, **self._pairs_of(models)}
        return outcome

    def forget(self) -> None:
        """Have workers forget freed versions."""
        with suppress(ClosedError):
            self._in_turn(self._end_step)

    def tell(self, statuses: Mapping[str, Status], trouble: str) -> list[Future[Any]]:
        """Send workers the statuses that changed, and have them forget freed versions.

        A worker that hangs gets no message. Returns futures of the answers of the workers that got a message.
        """
        try:
            answers: list[Future[Any]] = self._in_turn(self._tell, statuses, trouble)
        except ClosedError:
            return []
        return answers

    # For the processes ------------------------------------------------------------------------------------------------

    def admit(self, worker: Worker) -> None:
        """Give a started worker the versions, joined graphs and epoch of the others, and every message from then on.

        1. The worker maps the present versions. Swaps go on without it.
        2. From now on, new versions are sent to this worker, too. It also maps the versions that came during step 1.
        3. The worker is shown the whole epoch.
        """
        known: set[int] = set()
        self._send_all(worker, known)
        self._in_turn(self._begin_mapping, worker, known)
        while not self._in_turn(self._admit, worker, self._send_all(worker, known)):
            pass  # other graphs were joined meanwhile: the worker joins these first

    def _send_all(self, worker: Worker, known: set[int]) -> Mapping[str, object]:
        """Have a worker map every version that is not `known`, and join the graphs. Returns the joined pairs."""
        # `shown` keeps the versions in memory until the worker has them.
        pairs, shown = self._pairs, [*self._shown.values()]
        for version in self._living():
            if version.message.key not in known:
                mapped = worker.channel.ask("version", version.message, descriptors=version.files)
                mapped.result(version.seconds + TRIAL_SECONDS)
                known.add(version.message.key)
        worker.channel.ask("join", [message for message, _ in shown]).result(TRIAL_SECONDS)
        return pairs

    def dismiss(self, worker: Worker) -> None:
        """Stop sending messages to a worker."""
        with suppress(ClosedError):
            self._in_turn(self._dismiss, worker)

    def close(self) -> None:
        self._order.shutdown(wait=False)

    # The order --------------------------------------------------------------------------------------------------------

    def _in_turn(self, call: Callable[..., Any], *arguments: Any) -> Any:
        try:
            turn = self._order.submit(call, *arguments)
        except RuntimeError as error:
            raise ClosedError("the server ends") from error
        return turn.result()

    def _change(self, model: str | None) -> Sequence[Shown]:
        """Take steps 2 to 4. If graphs must be joined first, take no step, and return what to join."""
        looked = self._look(model)
        messages = [message for message, _ in looked]
        if not looked and model is not None and model not in self._shown:
            return ()  # the model is new, and its configuration is not in effect yet
        if model is not None and not (looked and self._shown.keys() >= _names(messages)):
            return self._change(None)  # a new configuration takes effect
        named = {message.settings.name: (message, kept) for message, kept in looked}
        shown = named if model is None else {**self._shown, **named}
        pairs = self._pairs_of([message for message, _ in shown.values()])
        if any(self._pairs.get(name) != pair for name, pair in pairs.items()):
            return [*shown.values()]
        self._shown = shown
        self._show(messages, whole=model is None)
        self._end_step()
        return ()

    def _show(self, models: Sequence[ModelMessage], *, whole: bool) -> None:
        epoch = self._word[0] + 1
        self.joined = {name: joining for name, joining in self.joined.items() if name in self._shown}
        self._ask_show(self._workers, epoch, models, whole=whole)
        self._word[0] = epoch

    def _ask_show(self, workers: Sequence[Worker], epoch: int, models: Sequence[ModelMessage], *, whole: bool) -> None:
        """Show an epoch to workers: all models if `whole`, or only the models that changed."""
        statuses = {message.settings.name: message.status.ageless() for message in models}
        shows = {worker: worker.channel.ask("show", epoch, models, whole) for worker in workers}
        wait(shows.values(), timeout=_SHOW_SECONDS)
        for worker, show in shows.items():
            worker.told.update(statuses)
            if show.done():
                self._take_outcome(worker, show)
            else:
                show.add_done_callback(partial(self._take_late_outcome, worker))

    def _take_late_outcome(self, worker: Worker, show: Future[Any]) -> None:
        with suppress(RuntimeError):  # the server ends
            self._order.submit(self._take_outcome, worker, show)

    def _take_outcome(self, worker: Worker, show: Future[Any]) -> None:
        outcome = _outcome(worker, show)
        self.joined = {**self.joined, **{name: outcome[name] for name in outcome if name in self._shown}}

    def _end_step(self) -> None:
        gone = [self._gone.popleft() for _ in range(len(self._gone))]
        for worker in self._mapping:
            worker.channel.tell("shown", self._word[0], gone)

    def _tell(self, statuses: Mapping[str, Status], trouble: str) -> list[Future[Any]]:
        if self._gone:  # a version that was freed after its model was removed, so that no other step follows
            self._end_step()
        ageless = {name: status.ageless() for name, status in statuses.items()}
        answers = []
        for worker in self._workers:
            worker.telling = [answer for answer in worker.telling if not answer.done()]
            if len(worker.telling) < _MOST_UNANSWERED:
                news = {name: status for name, status in ageless.items() if worker.told.get(name) != status}
                worker.told.update(news)
                worker.telling.append(worker.channel.ask("states", news, trouble))
                answers.append(worker.telling[-1])
        return answers

    def _begin_mapping(self, worker: Worker, known: set[int]) -> None:
        self._mapping = (*self._mapping, worker)
        if gone := known - {version.message.key for version in self._living()}:
            worker.channel.tell("shown", self._word[0], sorted(gone))

    def _admit(self, worker: Worker, pairs: Mapping[str, object]) -> bool:
        """Show a worker the epoch if it has joined all graphs. Returns whether it has."""
        if pairs != self._pairs:
            return False
        self._workers = (*self._workers, worker)
        self._ask_show([worker], self._word[0], [message for message, _ in self._shown.values()], whole=True)
        worker.channel.tell("shown", self._word[0], [])
        return True

    def _dismiss(self, worker: Worker) -> None:
        self._mapping = tuple(other for other in self._mapping if other is not worker)
        self._workers = tuple(other for other in self._workers if other is not worker)

    # Versions ---------------------------------------------------------------------------------------------------------

    def _living(self) -> Iterable[SharedVersion]:
        """Yield the versions that workers have mapped or are mapping."""
        for reference in list(self._versions.values()):
            if (version := reference()) is not None:
                yield version

    def _leave(self, key: int) -> None:
        """Record that workers must forget a version. May be called on the thread that frees the version."""
        if self._versions.pop(key, None) is not None:
            self._gone.append(key)

    def _pairs_of(self, models: Sequence[ModelMessage]) -> dict[str, object]:
        """Return, for each joined model whose parts both serve, its settings and the graphs of the serving versions."""
        graphs = {version.message.key: version.graph.key for version in self._living()}
        serving = {message.settings.name: graphs.get(message.recent[0]) for message in models if message.recent}
        return {
            settings.name: (settings, serving[settings.first], serving[settings.second])
            for settings in (message.settings for message in models)
            if isinstance(settings, ConnectionSettings) and settings.first in serving and settings.second in serving
        }


def _names(models: Sequence[ModelMessage]) -> set[str]:
    """Return the names of models and of their parts."""
    connections = [model.settings for model in models if isinstance(model.settings, ConnectionSettings)]
    parts = [name for settings in connections for name in (settings.first, settings.second)]
    return {*(model.settings.name for model in models), *parts}


def _answers(asked: Mapping[Future[Any], Worker], what: str, seconds: float) -> Iterator[Future[Any]]:
    """Yield the answers of workers as they come. End workers that are late or stay stopped."""
    end = time.monotonic() + seconds
    waiting, stopped = {*asked}, Counter[Worker]()
    while waiting:
        done, waiting = wait(waiting, timeout=_LOOK_SECONDS, return_when=FIRST_EXCEPTION)
        yield from done
        for answer in [*waiting]:
            worker = asked[answer]
            stopped[worker] = stopped[worker] + 1 if worker.is_stopped else 0
            if stopped[worker] == _MOST_LOOKS:
                worker.end(f"{what}: it is stopped")
            elif time.monotonic() > end:
                worker.end(f"{what}: expected it within {seconds:g} s")
            else:
                continue
            waiting.discard(answer)


def _outcome(worker: Worker, answer: Future[Any]) -> Mapping[str, Joining]:
    """Return a worker's outcome for joined models. End a worker that raised an error: it could not answer requests."""
    error = answer.exception()
    if error is None:
        return answer.result() or {}
    if not isinstance(error, ClosedError):  # a ClosedError means that the worker has ended already
        worker.end(f"it refuses what it is told: {error!r}")
    return {}
