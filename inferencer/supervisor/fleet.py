"""Fleet: the workers of one server. What they answer from changes for all of them at one instant."""

from __future__ import annotations

import itertools
import logging
import os
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as LateError
from contextlib import suppress
from typing import Any
from weakref import WeakSet, WeakValueDictionary

from paramsync.errors import SyncError, UnfinishedError

from ..processes import shared_words
from ..processes.channel import ClosedError, Handler
from ..processes.messages import Joining, ModelMessage
from ..processes.shared_words import SharedWords
from ..serving.metrics import Metrics
from ..serving.worker_status import Replaced, WorkerState, WorkerStatus
from ..settings.settings import ConnectionSettings
from .child import ChildProcess, exit_text
from .crashes import QUICK_SECONDS, Crashes, CrashLoops
from .listeners import Listeners
from .shared import SharedGraph, SharedVersion
from .template import Template
from .trial import TRIAL_SECONDS, Trial

_log = logging.getLogger("paramsync.supervisor")
_START_SECONDS = 30.0
_ALIVE_SECONDS = 5.0
_SHOW_SECONDS = 2.0  # in which a worker comes to know an epoch: the others wait for it
_LEAVE_SECONDS = 60.0  # in which a worker that is replaced hands its callers over: its own limits come before
_LEAVING_QUIET = 0.05  # and without a call by callers that do not hear
_FIRST_PAUSE, _MOST_PAUSE = 0.05, 10.0  # back-off before another worker is started

Shown = tuple[Sequence[ModelMessage], Sequence[Any]]
"""What is answered, and what must stay in memory for it: workers that start later need it too."""


class Worker(ChildProcess):
    """A process that answers."""

    number: int
    slot: int
    over: threading.Event
    """Set once it is gone, or another one has taken its place."""
    successor: Future[Worker | None] | None = None
    """Set once another one is started to take its place."""
    counted: Any = None
    """What it counted, as it last said."""
    computed: frozenset[int] = frozenset()
    """The versions that it was computing when it ended, by their keys."""
    state = WorkerState.STARTING
    """Until it answers its start has a deadline of its own."""
    since = 0.0

    def __init__(self, template: Template, role: str, *arguments: Any, **options: Any) -> None:
        self.over = threading.Event()
        super().__init__(template, role, *arguments, **options)

    def _ended(self) -> None:
        self.over.set()
        super()._ended()

    def become(self, state: WorkerState) -> None:
        self.state, self.since = state, time.time()

    def end(self, why: str) -> None:
        _log.error("worker %d is ended: %s", self.number, why)
        self.kill()


class Fleet:
    """Starts the workers, replaces those that end, and has all of them answer from the same epoch. Any thread.

    An epoch is what the whole server answers from: one number in memory that all workers share names it. Changes of it
    wait for each other.
    """

    def __init__(
        self,
        count: int,
        arguments: tuple[Any, ...],
        handlers: Mapping[str, Handler],
        show: Callable[[], Shown],
        listeners: Listeners,
        *,
        template: Template | None = None,
    ) -> None:
        """`arguments` are those of a worker; `handlers` answer its questions; `show` says what is to be answered.

        They accept from `listeners`. A `template` that is given is closed by who gives it.
        """
        self._count = count
        self._arguments = arguments
        self._handlers = handlers
        self._show = show
        self._listeners = listeners
        self._shown: Shown = ((), ())
        self._words_file = shared_words.create()
        self._words = SharedWords(self._words_file)
        self._word = self._words.epoch
        self.template = template or Template()
        self._closes_template = template is None
        self._lock = threading.RLock()  # of what follows, and of the order in which workers are told
        self._workers: list[Worker] = []
        self._starting: set[Worker] = set()  # and are told nothing yet
        self._slots = list(range(count + 1))  # of the shared words: those that no worker has
        self._replacing = threading.Lock()  # one is replaced after the other
        self._without_since = [time.time()] * count  # when each number came to be without a worker
        self._versions: WeakValueDictionary[int, SharedVersion] = WeakValueDictionary()  # that workers have
        self._keys = itertools.count(1)
        self._ended = threading.Event()
        self._crashes = Crashes()
        self._loops = CrashLoops()
        self._hung: WeakSet[Worker] = WeakSet()
        self._restarts = [0] * count
        self.on_trouble: Callable[[], object] = lambda: None
        """Called when `trouble` may be another."""
        self.on_crashing: Callable[[int, str], object] = lambda key, reason: None
        """Called with the key of a version on which workers crash."""
        self._left = Metrics()
        """What workers counted that are no more."""
        self.joined: Mapping[str, Joining] = {}
        """What came of models that are joined, by name."""

    # Workers ----------------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Start the workers and return once all listen. Raises why the first one could not be started."""
        self.change()
        listening: list[Future[None]] = [Future() for _ in range(self._count)]
        for number, future in enumerate(listening):
            threading.Thread(target=self._keep, args=(number, future), name=f"keep {number}", daemon=True).start()
        for future in listening:
            future.result()

    def _keep(self, number: int, listening: Future[None]) -> None:
        """Start a worker of this number, and another one whenever it ends, with back-off where it ends soon."""
        pause = 0.0
        while not self._ended.wait(pause):
            lived, how, explained = 0.0, "it did not start", False
            try:
                worker: Worker | None = self._add(number)
            except Exception as error:  # noqa: BLE001, it is tried again, unless it is the first one
                if not listening.done():
                    listening.set_exception(error)
                    return
                _log.error("worker %d does not start: %s", number, error)
            else:
                if not listening.done():
                    listening.set_result(None)
                while worker is not None:
                    lived, how, explained = self._lived(number, worker)
                    successor = worker.successor  # read once: where that one does not start it is taken away
                    worker = None if successor is None else successor.result()
            self._listeners.drop(number)
            if self._ended.is_set():
                return
            self._restarts[number] += 1
            with self._lock:
                times = 0 if explained else self._loops.ended(number, lived, how)
                if explained:
                    self._loops.calm(number)
            pause = min(_MOST_PAUSE, _FIRST_PAUSE * 2 ** min(times - 1, 16)) if times else 0.0
            _log.warning("worker %d ended after %.1f s (%s); another one takes its place", number, lived, how)
            self.on_trouble()
        if not listening.done():
            listening.set_exception(ClosedError("the server ends before it has begun"))

    def _lived(self, number: int, worker: Worker) -> tuple[float, str, bool]:
        """Returns once it is over: for how long it lived, how it ended, and whether the cause was found in that."""
        began = time.monotonic()
        if not worker.over.wait(QUICK_SECONDS):
            with self._lock:
                self._loops.calm(number)
            self.on_trouble()
            worker.over.wait()
        if worker.successor is None:
            self._listeners.drop(number)  # first of all: others accept who comes
        elif not worker.gone.is_set():
            return 0.0, "", False
        keys = self._remove(worker)
        if self._ended.is_set():
            return 0.0, "", False
        code = worker.exit_code()
        hung = worker in self._hung
        causes: list[int] = []
        if hung or (code is not None and code < 0 and code != -signal.SIGKILL):  # which comes from outside
            with self._lock:
                causes = self._crashes.add(keys, time.monotonic())
            for key in causes:
                self.on_crashing(
                    key, f"workers {'hung' if hung else 'crashed'} while they computed it ({exit_text(code)})"
                )
        return time.monotonic() - began, "it hung" if hung else exit_text(code), bool(causes)

    def _add(self, number: int) -> Worker:
        """Start a worker that has all that the others have, and let it answer. Raises where that fails."""
        with self._lock:
            slot = self._slots.pop(0)
        arguments = (number, slot, *self._arguments)
        try:
            worker = Worker(
                self.template, "worker", *arguments, descriptors=[self._words_file], handlers=self._handlers
            )
        except BaseException:
            self._slots.append(slot)
            raise
        worker.number, worker.slot = number, slot
        worker.become(WorkerState.STARTING)
        with self._lock:
            self._starting.add(worker)
        try:
            known: set[int] = set()
            while self._catch_up(worker, known):  # the others go on to what comes meanwhile
                pass
            with self._lock:
                self._catch_up(worker, known)
                worker.channel.ask("show", self._word[0], self._shown[0]).result(_SHOW_SECONDS)
                self._workers.append(worker)
                self._starting.discard(worker)
                self.forget()  # what left while it started
            grpc, http = self._listeners.of(number)
            files = [listener.fileno() for listener in (*grpc, *http)]
            started = worker.channel.ask("start", len(grpc), descriptors=files)
            started.result(0 if self._ended.is_set() else _START_SECONDS)
            worker.become(WorkerState.ANSWERING)
        except BaseException:
            worker.end("it does not start")
            self._remove(worker)
            raise
        return worker

    def _catch_up(self, worker: Worker, known: set[int]) -> bool:
        """Give a worker what the others have beyond what is `known` to it, by keys. False where that is nothing."""
        with self._lock:
            versions = [version for key, version in self._versions.items() if key not in known]
            models = self._shown[0]
        if known and not versions:
            return False
        for version in versions:
            mapped = worker.channel.ask("version", version.message, descriptors=version.files)
            mapped.result(version.seconds + TRIAL_SECONDS)
        worker.channel.ask("join", models).result(TRIAL_SECONDS)
        known.update(version.message.key for version in versions)
        return bool(known)

    def _remove(self, worker: Worker) -> frozenset[int]:
        """Returns the versions that it was computing, by their keys. What its requests took is free again."""
        with self._lock:
            if worker not in self._workers and worker not in self._starting:
                return worker.computed  # it left, which another thread has seen
            self._starting.discard(worker)
            if worker in self._workers:
                self._workers.remove(worker)
            if worker.counted is not None:
                self._left.take_in(*worker.counted[:2])
                self._left.fold()
            self._without_since[worker.number] = time.time()
            self._words.taken[worker.slot] = 0
            self._slots.append(worker.slot)
            worker.computed = self._words.calls(worker.slot).take()
            return worker.computed

    def replace(self, number: int) -> Replaced:
        """Start another worker in the place of this one, which leaves once that one answers: no caller notices.

        Raises SyncError where others are being replaced, where that one does not come up, and where the server ends.
        """
        if not self._replacing.acquire(blocking=False):
            raise SyncError("workers are being replaced already; wait until they are")
        try:
            began = time.monotonic()
            with self._lock:
                old = next((each for each in self._workers if each.number == number), None)
                if old is None or old.state is not WorkerState.ANSWERING:
                    raise SyncError(f"worker {number} is being started just now; try again in a moment")
                successor: Future[Worker | None] = Future()
                old.successor = successor
            try:
                worker = self._add(number)
            except BaseException as error:
                with self._lock:
                    old.successor = None
                successor.set_result(None)
                why = "the server is stopping" if self._ended.is_set() else f"its successor does not start: {error}"
                raise SyncError(f"worker {number} is not replaced, and goes on: {why}") from error
            old.become(WorkerState.LEAVING)
            successor.set_result(worker)
            old.over.set()
            self._leave(old)
            return Replaced(number, old.pid, worker.pid, time.monotonic() - began)
        finally:
            self._replacing.release()

    def _leave(self, worker: Worker) -> None:
        """Have it hand its callers over, and end it."""
        try:
            worker.counted = worker.channel.ask("leave", _LEAVING_QUIET).result(_LEAVE_SECONDS)
        except LateError:
            worker.end("it does not leave")
        except ClosedError:
            pass  # it has ended
        except Exception as error:  # noqa: BLE001, another one answers in its place
            _log.error("worker %d, while it left: %r", worker.number, error)
        worker.channel.close()
        self._remove(worker)  # its slot is free for the next one

    def counts(self, *, seconds: float) -> list[tuple[Any, Any, int]]:
        """What each worker has counted, and those that are no more: requests, calls, and how many requests wait."""
        there = [worker for worker in self._workers if worker.state is not WorkerState.LEAVING]  # which says so itself
        for worker, answer in _asked(there, "counts", seconds=seconds):
            with suppress(LateError, ClosedError):  # what it said before is not forgotten
                counted = answer()
                if worker.state is not WorkerState.LEAVING:  # it may have begun to leave meanwhile, and say more
                    worker.counted = counted
        with self._lock:
            counted = [worker.counted for worker in self._workers if worker.counted is not None]
            return [(dict(self._left.requests), dict(self._left.calls), 0), *counted]

    @property
    def trouble(self) -> str:
        """Which workers end again and again; empty where none does."""
        with self._lock:
            return self._loops.trouble

    def statuses(self) -> list[WorkerStatus]:
        """Of every worker there is, and of each number that is without one, in the order of their numbers."""
        workers = dict.fromkeys([*self._starting.copy(), *self._workers])  # one that comes to answer may be in both
        there = [
            WorkerStatus(worker.number, worker.state, worker.since, worker.pid, self._restarts[worker.number])
            for worker in workers
        ]
        numbers = {status.number for status in there}
        without = [
            WorkerStatus(
                number,
                WorkerState.ENDED if self._restarts[number] else WorkerState.STARTING,  # TensorFlow is imported before
                self._without_since[number],
                None,
                self._restarts[number],
            )
            for number in range(self._count)
            if number not in numbers
        ]
        return sorted([*there, *without], key=lambda status: status.number)

    # What they answer from --------------------------------------------------------------------------------------------

    def graph(
        self, content: bytes, *, allowed: Sequence[str] = (), refused: Mapping[str, str] | None = None
    ) -> SharedGraph:
        """A graph for versions to come, which is tried with the first of them."""
        file = os.memfd_create("graph")
        with os.fdopen(os.dup(file), "wb") as target:
            target.write(content)
        return SharedGraph(self.key(), file, tuple(allowed), dict(refused or {}))

    def key(self) -> int:
        """Another number at each call, for a graph or a version."""
        return next(self._keys)

    def try_graph(self, graph: SharedGraph) -> tuple[str, frozenset[str]]:
        """Build a graph in a process of its own. Returns its digest, and the parameters of which it looks up rows.

        Raises GraphError, also where it ends that process or takes too long.
        """
        graph.trial = trial = Trial(self.template, self._words_file)
        try:
            return trial.built(graph.message, graph.content)
        except BaseException:
            graph.trial = None
            trial.close()
            raise

    def prepare(self, version: SharedVersion, poll: Callable[[], object]) -> None:
        """Have every worker map a version, beside what it answers from.

        A new graph is called in a process of its own before. Raises GraphError, also where it ends that process or
        takes too long, UnfinishedError where all workers ended, for reasons that nobody knows, and what `poll` raises,
        which is called now and then while that call takes long.
        """
        graph = version.graph
        if not graph.works:
            self._call_once(version, poll)
        with self._lock:
            is_new = all(known.graph is not graph for known in self._versions.values())
            seconds = version.seconds + (TRIAL_SECONDS if is_new else 0.0)
            self._versions[version.message.key] = version
            try:
                self._all("version", version.message, descriptors=version.files, seconds=seconds)
            except BaseException:
                self._versions.pop(version.message.key, None)
                raise

    def _call_once(self, version: SharedVersion, poll: Callable[[], object]) -> None:
        graph = version.graph
        if graph.trial is None:
            self.try_graph(graph)
        trial, graph.trial = graph.trial, None
        assert trial is not None
        try:
            trial.called(version.message, version.files, poll)
        finally:
            trial.close()
        graph.works = True

    def change(self) -> None:
        """Have all workers answer from what `show` returns, from one instant on. One that is late is ended."""
        with self._lock:
            shown = self._show()
            epoch = self._word[0] + 1
            if any(isinstance(model.settings, ConnectionSettings) for model in shown[0]):
                self._all("join", shown[0], seconds=TRIAL_SECONDS)
            for joined in self._all("show", epoch, shown[0], seconds=_SHOW_SECONDS):
                self.joined = joined
            self._word[0] = epoch
            self._shown = shown
            self.forget()

    def forget(self) -> None:
        """Have all workers let go of versions that are gone here."""
        with self._lock:
            for worker in self._workers:
                worker.channel.tell("shown", self._word[0], sorted(self._versions))

    def join(self, models: Sequence[ModelMessage]) -> Mapping[str, Joining]:
        """Have all workers join models as these say, and return the outcome. What answers does not change."""
        with self._lock:
            return next(iter(self._all("join", models, seconds=TRIAL_SECONDS)), {})

    def tell(self, what: str, *arguments: Any) -> None:
        for worker in list(self._workers):
            worker.channel.tell(what, *arguments)

    def check(self) -> None:
        """End workers that do not answer, such as stopped ones, and those whose every request fails. Returns at once
        while they map or show something."""
        if not self._lock.acquire(blocking=False):
            return
        try:
            there = [worker for worker in self._workers if worker.state is not WorkerState.STARTING]
            for worker, answer in _asked(there, "alive", seconds=_ALIVE_SECONDS):
                try:
                    if failing := answer():
                        worker.end(failing)
                except LateError:
                    if not worker.is_stopped:
                        self._hung.add(worker)
                    worker.end(f"it has not answered for {_ALIVE_SECONDS:g} s")
                except ClosedError:
                    pass  # it is being replaced
        finally:
            self._lock.release()

    def ask_all(self, what: str, *arguments: Any, seconds: float) -> list[Any]:
        """The answers that come in time. What one worker refuses, such as one that is being started, is logged."""
        answers = []
        for worker, answer in _asked(self._workers, what, *arguments, seconds=seconds):
            try:
                answers.append(answer())
            except (LateError, ClosedError):
                pass
            except Exception as error:  # noqa: BLE001, the others answer all the same
                _log.error("worker %d, which was asked for %s: %r", worker.number, what, error)
        return answers

    def replace_no_more(self) -> None:
        """Do not replace workers that end from now on."""
        self._ended.set()

    def close(self) -> None:
        """End every process."""
        self._ended.set()
        with self._lock:
            workers = [*self._workers, *self._starting]
            self._workers = []
        for worker in workers:
            worker.channel.close()
        if self._closes_template:
            self.template.close()

    def _all(self, what: str, *arguments: Any, descriptors: Sequence[int] = (), seconds: float) -> list[Any]:
        """The answers of all workers. Those that are late or gone are replaced; what others refuse is raised."""
        answers = []
        workers = list(self._workers)
        for worker, answer in _asked(workers, what, *arguments, descriptors=descriptors, seconds=seconds):
            try:
                answers.append(answer())
            except LateError:
                worker.end(f"{what}: expected it within {seconds:g} s")  # before the others go on to what it lacks
            except ClosedError:
                pass  # its own thread replaces it
        if workers and not answers and descriptors:
            raise UnfinishedError("every worker ended while it was to have the version; it is tried again")
        return answers


def _asked(
    workers: Iterable[Worker], what: str, *arguments: Any, descriptors: Sequence[int] = (), seconds: float
) -> Iterator[tuple[Worker, Callable[[], Any]]]:
    """Ask all of them at once. Each with its answer, which is waited for until the seconds of all are over."""
    waiting = [(worker, worker.channel.ask(what, *arguments, descriptors=descriptors)) for worker in list(workers)]
    end = time.monotonic() + seconds
    for worker, answer in waiting:
        yield worker, lambda answer=answer: answer.result(max(0.0, end - time.monotonic()))  # type: ignore[misc]
