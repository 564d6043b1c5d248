"""Epochs: the order in which workers are told what to answer from.

An epoch is what the whole server answers from. A word of memory that all workers share holds the number of the epoch
that answers. A version comes to serve in four steps:

1. map    Every worker maps the version beside those that it answers from. Only the follower of its model waits.
2. show   Every worker is told what the next epoch has that is new. It answers from the epoch of the word.
3. word   The word becomes the next number. From that instant all workers answer from the next epoch: no client sees
          an older version after a newer one.
4. shown  Every worker forgets the epochs before it, and versions that are gone.

A worker that dies between two steps needs no care: its successor maps every version, and is shown the whole epoch
between a step 4 and the next step 2, before it answers. A worker that is late in step 1 is ended. A worker that is
stopped in step 1, or late in step 2, is passed over until it has answered: the word may name an epoch that it does not
know yet, and its requests wait until it is shown that epoch.

One thread does steps 2 to 4 and admits workers, one request after another. It never waits for step 1, and for step 2
at most _SHOW_SECONDS. There is no lock: what other threads read is replaced by assignment.
"""

from __future__ import annotations

import time
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from concurrent.futures import TimeoutError as LateError
from contextlib import suppress
from typing import Any

from paramsync.errors import UnfinishedError
from paramsync.status import Status

from ..processes.channel import ClosedError
from ..processes.messages import Joining, ModelMessage
from ..settings.settings import ConnectionSettings
from .shared import SharedVersion
from .trial import TRIAL_SECONDS
from .workers import Worker, asked

_SHOW_SECONDS = 0.1  # that a swap waits for a worker that is stopped, or late in step 2
_MOST_UNANSWERED = 20  # statuses that a worker is told before it answers: more would fill its socket

Shown = tuple[ModelMessage, Any]
"""What a model is answered from, and what has to stay in memory for it, also for workers that start later."""


class Epochs:
    """Any thread may call it."""

    def __init__(self, word: memoryview, look: Callable[[str | None], Sequence[Shown]]) -> None:
        """`look` says how one model is to be answered, with those joined from it; without a name, how all are."""
        self._word = word
        self._look = look
        self._order = ThreadPoolExecutor(1, "epochs")
        self._workers: tuple[Worker, ...] = ()
        self._versions: dict[int, weakref.ref[SharedVersion]] = {}  # by their keys
        self._gone: deque[int] = deque()  # keys of versions that workers are still to forget
        self._shown: Mapping[str, Shown] = {}
        self._pairs: Mapping[str, object] = {}  # of each joined model: the graphs that workers have joined
        self.joined: Mapping[str, Joining] = {}
        """The outcome for each joined model."""

    # For followers ----------------------------------------------------------------------------------------------------

    def map(self, version: SharedVersion) -> None:
        """Step 1. Raises what a worker refuses, and UnfinishedError if every worker ended."""
        key = version.message.key
        is_new = all(known.graph is not version.graph for known in self._living())
        seconds = version.seconds + (TRIAL_SECONDS if is_new else 0.0)
        self._versions[key] = weakref.ref(version, lambda _: self._leave(key))
        workers = self._workers  # read after the version is known, see _admit
        files = version.files
        maps = {worker.channel.ask("version", version.message, descriptors=files): worker for worker in workers}
        try:
            mapped = self._await_maps(maps, seconds)
        except BaseException:
            self._leave(key)
            raise
        if workers and not mapped:
            self._leave(key)
            raise UnfinishedError("every worker ended while it was to have the version; it is tried again")

    def _await_maps(self, maps: Mapping[Future[Any], Worker], seconds: float) -> int:
        """Returns how many workers have the version, or will have it once they go on."""
        end = time.monotonic() + seconds
        waiting, mapped = {*maps}, 0
        while waiting:
            done, waiting = wait(waiting, timeout=_SHOW_SECONDS, return_when=FIRST_EXCEPTION)
            for answer in done:
                with suppress(ClosedError):  # the worker ended; its own thread replaces it
                    answer.result()
                    mapped += 1
            for answer in [*waiting]:
                worker = maps[answer]
                if worker.is_stopped:
                    self._in_turn(self._pass_over, worker, answer)
                    mapped += 1
                elif time.monotonic() > end:
                    worker.end(f"version: expected it within {seconds:g} s")  # before others go on to what it lacks
                else:
                    continue
                waiting.discard(answer)
        return mapped

    def change(self, model: str | None = None) -> None:
        """Have all workers answer from what a model now has, or all models, from one instant on.

        Graphs that were never joined are joined before, while other models change.
        """
        with suppress(ClosedError):  # the server ends
            while apart := self._in_turn(self._change, model):
                self.join(apart)

    def join(self, shown: Sequence[Shown]) -> Mapping[str, Joining]:
        """Have all workers build the graphs of joined models, and return the outcome. Answers do not change."""
        models = [message for message, _ in shown]
        outcome: Mapping[str, Joining] = {}
        for worker, answer in asked(self._workers, "join", models, seconds=TRIAL_SECONDS):
            try:
                outcome = answer()
            except LateError:
                worker.end(f"join: expected it within {TRIAL_SECONDS:g} s")
            except ClosedError:
                pass  # its own thread replaces it
        self._pairs = {**self._pairs, **self._pairs_of(models)}
        return outcome

    def forget(self) -> None:
        """Have workers forget versions that are gone."""
        with suppress(ClosedError):
            self._in_turn(self._end_step)

    def tell(self, statuses: Mapping[str, Status], trouble: str) -> list[Future[Any]]:
        """Tell workers how followers are, as far as that is new. Returns the answers of workers that were told."""
        try:
            answers: list[Future[Any]] = self._in_turn(self._tell, statuses, trouble)
        except ClosedError:
            return []
        return answers

    # For the processes ------------------------------------------------------------------------------------------------

    def admit(self, worker: Worker) -> None:
        """Give a worker that has started all that the others have. From then on it is told with them."""
        known: set[int] = set()
        pairs: Mapping[str, object] = {}
        while not self._in_turn(self._admit, worker, known, pairs):
            pairs, shown = self._pairs, [*self._shown.values()]  # whose versions stay until this is over
            for version in self._living():
                if version.message.key not in known:
                    mapped = worker.channel.ask("version", version.message, descriptors=version.files)
                    mapped.result(version.seconds + TRIAL_SECONDS)
                    known.add(version.message.key)
            worker.channel.ask("join", [message for message, _ in shown]).result(TRIAL_SECONDS)

    def dismiss(self, worker: Worker) -> None:
        """Tell a worker nothing more."""
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
        """Steps 2 to 4; or, without any of them, what has to be joined before."""
        looked = self._look(model)
        if not looked and model is not None:
            return ()  # its configuration is on trial
        messages = [message for message, _ in looked]
        if model is not None and not self._shown.keys() >= _names(messages):
            return self._change(None)  # the models are becoming others
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
        workers = [worker for worker in self._workers if not worker.owes]
        joined = self._ask_show(workers, epoch, models, whole=whole)
        self.joined = joined if whole else {**self.joined, **joined}
        self._word[0] = epoch

    def _ask_show(
        self, workers: Sequence[Worker], epoch: int, models: Sequence[ModelMessage], *, whole: bool
    ) -> Mapping[str, Joining]:
        """Show these workers an epoch, or what it has that is new. Returns the outcome for joined models."""
        statuses = {message.settings.name: message.status.ageless() for message in models}
        shows = {worker: worker.channel.ask("show", epoch, models, whole) for worker in workers}
        wait(shows.values(), timeout=_SHOW_SECONDS)
        joined: Mapping[str, Joining] = {}
        for worker, show in shows.items():
            worker.epoch = epoch
            worker.told.update(statuses)
            if show.done():
                joined = _outcome(worker, show) or joined
            else:
                self._pass_over(worker, show)
        return joined

    def _show_whole(self, worker: Worker) -> None:
        """Show the epoch of the word to a worker that lacks it."""
        self._ask_show([worker], self._word[0], [message for message, _ in self._shown.values()], whole=True)

    def _pass_over(self, worker: Worker, answer: Future[Any]) -> None:
        """Show the worker nothing more until it has given this answer."""

        def answered(_: Future[Any]) -> None:
            with suppress(RuntimeError):  # the server ends
                self._order.submit(self._catch_up, worker, answer)

        worker.owes.add(answer)
        answer.add_done_callback(answered)

    def _catch_up(self, worker: Worker, answer: Future[Any]) -> None:
        _outcome(worker, answer)
        worker.owes.discard(answer)
        if worker.owes or worker not in self._workers:
            return
        if worker.epoch != self._word[0]:
            self._show_whole(worker)
        if not worker.owes:
            self._tell_shown(worker)

    def _end_step(self) -> None:
        gone = [self._gone.popleft() for _ in range(len(self._gone))]
        for worker in self._workers:
            worker.to_forget += gone
            if not worker.owes:
                self._tell_shown(worker)

    def _tell_shown(self, worker: Worker) -> None:
        worker.channel.tell("shown", self._word[0], worker.to_forget)
        worker.to_forget = []

    def _tell(self, statuses: Mapping[str, Status], trouble: str) -> list[Future[Any]]:
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

    def _admit(self, worker: Worker, known: set[int], pairs: Mapping[str, object]) -> bool:
        """Whether it has everything by now, and is told with the others from now on."""
        before = self._workers
        self._workers = (*before, worker)  # first: `map` sends it what it does not find below
        living = {version.message.key for version in self._living()}
        if not living <= known or pairs != self._pairs:
            self._workers = before
            return False
        self._show_whole(worker)
        worker.to_forget = sorted(known - living)
        if not worker.owes:
            self._tell_shown(worker)
        return True

    def _dismiss(self, worker: Worker) -> None:
        self._workers = tuple(other for other in self._workers if other is not worker)

    # Versions ---------------------------------------------------------------------------------------------------------

    def _living(self) -> Iterable[SharedVersion]:
        """The versions that workers have or are to map."""
        for reference in list(self._versions.values()):
            if (version := reference()) is not None:
                yield version

    def _leave(self, key: int) -> None:
        """A version is gone. Called by whichever thread drops it."""
        if self._versions.pop(key, None) is not None:
            self._gone.append(key)

    def _pairs_of(self, models: Sequence[ModelMessage]) -> dict[str, object]:
        """By joined model: the settings, and the graphs of the versions that serve of both parts, if both do."""
        graphs = {version.message.key: version.graph.key for version in self._living()}
        serving = {message.settings.name: graphs.get(message.recent[0]) for message in models if message.recent}
        return {
            settings.name: (settings, serving[settings.first], serving[settings.second])
            for settings in (message.settings for message in models)
            if isinstance(settings, ConnectionSettings) and settings.first in serving and settings.second in serving
        }


def _names(models: Sequence[ModelMessage]) -> set[str]:
    """The names of models, and of those that they are joined from."""
    connections = [model.settings for model in models if isinstance(model.settings, ConnectionSettings)]
    parts = [name for settings in connections for name in (settings.first, settings.second)]
    return {*(model.settings.name for model in models), *parts}


def _outcome(worker: Worker, answer: Future[Any]) -> Mapping[str, Joining]:
    """The outcome for joined models, if the worker was shown an epoch. A worker that refuses cannot answer requests."""
    error = answer.exception()
    if error is None:
        return answer.result() or {}
    if not isinstance(error, ClosedError):  # after that its own thread replaces it
        worker.end(f"it refuses what it is told: {error!r}")
    return {}
