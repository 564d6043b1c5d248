"""Workers: starts the processes that answer requests, replaces processes that end, and collects their counts."""

from __future__ import annotations

import logging
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future
from concurrent.futures import TimeoutError as LateError
from contextlib import suppress
from typing import Any

from paramsync.errors import SyncError
from paramsync.status import Status

from ..processes.channel import ClosedError, Handler
from ..processes.shared_words import SharedWords
from ..serving.metrics import Metrics
from ..serving.worker_status import Replaced, WorkerState, WorkerStatus
from .child import ChildProcess, exit_text
from .crashes import QUICK_SECONDS, Crashes, CrashLoops
from .listeners import Listeners
from .template import Template

_log = logging.getLogger("paramsync.supervisor")
_START_SECONDS = 30.0
_ALIVE_SECONDS = 15.0  # a worker that does not answer for so long is ended; on a busy machine an answer takes 5
_CHECK_SECONDS = 1.0  # the time between two checks of all workers
_LEAVE_SECONDS = 60.0  # how long a worker may take to leave: only a safeguard, since its own limits are shorter
_LEAVING_QUIET = 0.05  # after so long without a call, a leaving worker closes its last connections
_FIRST_PAUSE, _MOST_PAUSE = 0.05, 10.0  # seconds: the back-off before another worker is started


class Worker(ChildProcess):
    """A process that answers requests."""

    def __init__(self, number: int, slot: int, template: Template, role: str, *arguments: Any, **options: Any) -> None:
        self.number = number
        self.slot = slot  # the worker's slot in the shared words
        self.state = WorkerState.STARTING
        self.since = time.time()
        self.over = threading.Event()
        """Set once the process is gone or its successor answers."""
        self.successor: Future[Worker | None] | None = None
        """The worker's successor, once it is being started. The future's result is None if it does not start."""
        self.hangs = False
        self.counted: Any = None
        """The last counts that the worker sent."""
        self.computed: frozenset[int] = frozenset()
        """The keys of the versions that the worker was computing when it ended."""
        self.stopped_since: float | None = None
        """When a check first found the process stopped; None if it runs."""
        # Only the thread of Epochs uses `telling` and `told`.
        self.telling: list[Future[Any]] = []
        """Messages with statuses that the worker has not acknowledged."""
        self.told: dict[str, Status] = {}
        """The last status of each model that was sent to the worker."""
        super().__init__(template, role, *arguments, **options)

    def _ended(self) -> None:
        self.over.set()
        super()._ended()

    def become(self, state: WorkerState) -> None:
        self.state, self.since = state, time.time()

    def end(self, why: str) -> None:
        _log.error("worker %d is ended: %s", self.number, why)
        self.kill()


class Workers:
    """The workers of a server. Any thread may use this object. Its lock guards the table of workers.

    No thread waits for a process while it holds the lock.
    """

    def __init__(
        self,
        count: int,
        arguments: tuple[Any, ...],
        handlers: Mapping[str, Handler],
        listeners: Listeners,
        template: Template,
        words: SharedWords,
        *,
        admit: Callable[[Worker], object],
        dismiss: Callable[[Worker], object],
    ) -> None:
        """`arguments` are passed to each worker. `handlers` answer the workers' requests. `admit` gives a new worker
        all that the others have. `dismiss` is called with a worker that is gone.
        """
        self._count = count
        self._arguments = arguments
        self._handlers = handlers
        self._listeners = listeners
        self._admit = admit
        self._dismiss = dismiss
        self._template = template
        self._words = words
        self._lock = threading.Lock()
        self._workers: tuple[Worker, ...] = ()  # workers in any state; the tuple is replaced as a whole
        self._slots = list(range(count + 1))  # slots of the shared words that no worker uses
        self._without_since = [time.time()] * count  # when the last worker of each number ended
        self._restarts = [0] * count
        self._crashes = Crashes()
        self._loops = CrashLoops()
        self._left = Metrics()  # the sum of the counts of workers that are gone
        self._replacing = threading.Lock()  # used as a flag: acquired only without waiting
        self._ended = threading.Event()
        self.trouble = ""
        """Names the workers that end again and again; empty if there are none."""
        self.on_trouble: Callable[[], object] = lambda: None
        """Called when `trouble` may have changed."""
        self.on_crashing: Callable[[int, str], object] = lambda key, reason: None
        """Called with the key of a version on which workers crash."""

    def start(self) -> None:
        """Start the workers and return once all listen. Raises the error of a worker that does not start."""
        listening: list[Future[None]] = [Future() for _ in range(self._count)]
        for number, future in enumerate(listening):
            threading.Thread(target=self._keep, args=(number, future), name=f"keep {number}", daemon=True).start()
        for future in listening:
            future.result()
        threading.Thread(target=self._check_on, name="check", daemon=True).start()

    def _keep(self, number: int, listening: Future[None]) -> None:
        """Keep a worker of this number running: start another whenever one ends, with back-off after quick ends."""
        pause = 0.0
        while not self._ended.wait(pause):
            lived, how, explained = 0.0, "it did not start", False
            try:
                worker: Worker | None = self._add(number)
            except Exception as error:  # noqa: BLE001, a first worker that fails ends the server; any other is tried again
                if not listening.done():
                    listening.set_exception(error)
                    return
                _log.error("worker %d does not start: %s", number, error)
            else:
                if not listening.done():
                    listening.set_result(None)
                while worker is not None:
                    lived, how, explained = self._await_end(number, worker)
                    successor = worker.successor  # read once: `replace` sets it to None if the successor does not start
                    worker = None if successor is None else successor.result()
            self._listeners.drop(number)
            if self._ended.is_set():
                return
            self._restarts[number] += 1
            with self._lock:
                times = self._loops.ended(number, lived, how, explained=explained)
                self.trouble = self._loops.trouble
            pause = min(_MOST_PAUSE, _FIRST_PAUSE * 2 ** min(times - 1, 16)) if times else 0.0
            _log.warning("worker %d ended after %.1f s (%s); another one takes its place", number, lived, how)
            self.on_trouble()
        if not listening.done():
            listening.set_exception(ClosedError("the server ends before it has begun"))

    def _await_end(self, number: int, worker: Worker) -> tuple[float, str, bool]:
        """Wait until a worker is over. Returns how long it lived, how it ended, and whether a version was the cause."""
        began = time.monotonic()
        if not worker.over.wait(QUICK_SECONDS):
            with self._lock:
                self._loops.calm(number)
                self.trouble = self._loops.trouble
            self.on_trouble()
            worker.over.wait()
        if worker.successor is None:
            self._listeners.drop(number)  # first, so that new connections go to the other workers
        elif not worker.gone.is_set():
            return 0.0, "", False
        keys = self._remove(worker)
        if self._ended.is_set():
            return 0.0, "", False
        code = worker.exit_code()
        causes: list[int] = []
        if worker.hangs or (code is not None and code < 0 and code != -signal.SIGKILL):  # SIGKILL comes from outside
            with self._lock:
                causes = self._crashes.add(keys, time.monotonic())
            how = "hung" if worker.hangs else "crashed"
            for key in causes:
                self.on_crashing(key, f"workers {how} while they computed it ({exit_text(code)})")
        return time.monotonic() - began, "it hung" if worker.hangs else exit_text(code), bool(causes)

    def _add(self, number: int) -> Worker:
        """Start a worker, give it all that the others have, and have it answer. Raises the error of a failed step."""
        with self._lock:
            slot = self._slots.pop(0)
        arguments = (number, slot, *self._arguments)
        words = [self._words.descriptor]
        try:
            worker = Worker(
                number, slot, self._template, "worker", *arguments, descriptors=words, handlers=self._handlers
            )
        except BaseException:
            self._slots.append(slot)
            raise
        with self._lock:
            self._workers = (*self._workers, worker)
        try:
            self._admit(worker)
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

    def _remove(self, worker: Worker) -> frozenset[int]:
        """Remove a worker from the table, and return the keys of the versions that it was computing."""
        self._dismiss(worker)
        with self._lock:
            if worker in self._workers:  # unless another thread has already removed the worker
                self._workers = tuple(other for other in self._workers if other is not worker)
                if worker.counted is not None:
                    self._left.take_in(*worker.counted[:2])
                    self._left.fold()
                self._without_since[worker.number] = time.time()
                self._words.taken[worker.slot] = 0  # the worker's requests are gone with it
                self._slots.append(worker.slot)
                worker.computed = self._words.calls(worker.slot).take()
            return worker.computed

    # Replacing --------------------------------------------------------------------------------------------------------

    def replace(self, number: int) -> Replaced:
        """Start a successor of the worker with this number. The worker leaves once its successor answers, so that no
        caller notices.
        Raises SyncError while others are being replaced, if the successor does not start, and when the server ends.
        """
        if not self._replacing.acquire(blocking=False):
            raise SyncError("workers are being replaced already; wait until they are")
        try:
            began = time.monotonic()
            old = next((worker for worker in self._workers if worker.number == number), None)
            if old is None or old.state is not WorkerState.ANSWERING:
                raise SyncError(f"worker {number} is being started just now; try again in a moment")
            successor: Future[Worker | None] = Future()
            old.successor = successor
            try:
                worker = self._add(number)
            except BaseException as error:
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
        """Have a worker hand its callers over, then end it."""
        try:
            worker.counted = worker.channel.ask("leave", _LEAVING_QUIET).result(_LEAVE_SECONDS)
        except LateError:
            worker.end("it does not leave")
        except ClosedError:
            pass  # the worker has ended
        except Exception as error:  # noqa: BLE001, its successor answers
            _log.error("worker %d, while it left: %r", worker.number, error)
        worker.channel.close()
        self._remove(worker)  # frees its slot

    def drain(self, quiet_seconds: float, *, seconds: float) -> None:
        """Have every worker answer its requests and close its ports. Workers that end are not replaced any more."""
        self._ended.set()
        for worker, answer in asked(self._workers, "drain", quiet_seconds, seconds=seconds):
            try:
                answer()
            except (LateError, ClosedError):
                pass
            except Exception as error:  # noqa: BLE001, the others are drained all the same
                _log.error("worker %d, while it was drained: %r", worker.number, error)

    def close(self) -> None:
        """End every worker."""
        self._ended.set()
        for worker in self._workers:
            worker.channel.close()

    # Asking -----------------------------------------------------------------------------------------------------------

    def statuses(self) -> list[WorkerStatus]:
        """Return the status of every worker, and of each number without a worker, in the order of the numbers."""
        statuses = [
            WorkerStatus(worker.number, worker.state, worker.since, worker.pid, self._restarts[worker.number])
            for worker in self._workers
        ]
        for number in {*range(self._count)} - {status.number for status in statuses}:
            restarts = self._restarts[number]
            # A number that never had a worker waits for the import of TensorFlow.
            state = WorkerState.ENDED if restarts else WorkerState.STARTING
            statuses.append(WorkerStatus(number, state, self._without_since[number], None, restarts))
        return sorted(statuses, key=lambda status: status.number)

    def counts(self, *, seconds: float) -> list[tuple[Any, Any, int]]:
        """Return the counts of each worker, and the sum for workers that are gone: requests, calls, waiting requests.

        A worker that is stopped, or does not answer in time, counts with its last answer.
        """
        leaving = WorkerState.LEAVING  # a leaving worker sends its last counts in its answer to "leave"
        going = [worker for worker in self._workers if worker.state is not leaving and not worker.is_stopped]
        for worker, answer in asked(going, "counts", seconds=seconds):
            with suppress(LateError, ClosedError):
                counts = answer()
                if worker.state is not leaving:
                    worker.counted = counts
        with self._lock:
            counted = [worker.counted for worker in self._workers if worker.counted is not None]
            return [(dict(self._left.requests), dict(self._left.calls), 0), *counted]

    def _check_on(self) -> None:
        while not self._ended.wait(_CHECK_SECONDS):
            try:
                self.check()
            except Exception:  # noqa: BLE001, otherwise no worker would be checked any more
                _log.exception("a check of the workers failed; the next one follows")

    def check(self) -> None:
        """End workers that do not answer, such as stopped processes, and workers whose every request fails."""
        going = [
            worker
            for worker in self._workers
            if worker.state is not WorkerState.STARTING and not self._check_stopped(worker)
        ]
        for worker, answer in asked(going, "alive", seconds=_ALIVE_SECONDS):
            try:
                if failing := answer():
                    worker.end(failing)
            except LateError:
                worker.hangs = not worker.is_stopped
                worker.end(f"it has not answered for {_ALIVE_SECONDS:g} s")
            except ClosedError:
                pass  # the worker has ended

    def _check_stopped(self, worker: Worker) -> bool:
        """Return whether the worker is stopped, so that its socket may be full. End a worker that stays stopped."""
        now = time.monotonic()
        if not worker.is_stopped:
            worker.stopped_since = None
            return False
        if worker.stopped_since is None:
            worker.stopped_since = now
        elif now - worker.stopped_since >= _ALIVE_SECONDS:
            worker.end(f"it has been stopped for {_ALIVE_SECONDS:g} s")
        return True


def asked(
    workers: Iterable[Worker], what: str, *arguments: Any, seconds: float
) -> Iterator[tuple[Worker, Callable[[], Any]]]:
    """Ask all workers at once. Yields each worker with a function that waits for its answer. All waits together take at
    most `seconds`."""
    waiting = [(worker, worker.channel.ask(what, *arguments)) for worker in workers]
    end = time.monotonic() + seconds
    for worker, answer in waiting:
        yield worker, lambda answer=answer: answer.result(max(0.0, end - time.monotonic()))  # type: ignore[misc]
