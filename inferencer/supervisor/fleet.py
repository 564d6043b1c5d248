"""Fleet: the workers of one server. What they answer from changes for all of them at one instant."""

from __future__ import annotations

import errno
import logging
import mmap
import os
import pickle
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as LateError
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any
from weakref import WeakValueDictionary

from paramsync.errors import GraphError, UnfinishedError

from ..processes.channel import Channel, ClosedError, Handler, pair
from ..processes.messages import GraphMessage, Joining, ModelMessage, VersionMessage
from ..settings.settings import ConnectionSettings

_log = logging.getLogger("paramsync.supervisor")
_IMPORT_SECONDS = 120.0
_START_SECONDS = 30.0
_TRIAL_SECONDS = 60.0  # in which a graph is built and called once
_MAP_SECONDS = 5.0  # in which a worker maps a version, and so many bytes more in each second
_MAP_BYTES = 100 << 20
_ALIVE_SECONDS = 5.0
_SHOW_SECONDS = 2.0  # in which it comes to know an epoch: the others wait for it
_CALM_SECONDS = 10.0  # after which the end of a worker is not held to be a part of a loop of crashes
_FIRST_PAUSE, _MOST_PAUSE = 0.05, 10.0  # before another one is started

Shown = tuple[Sequence[ModelMessage], Sequence[Any]]
"""What is answered, and what has to be kept for that, for workers that start later too."""


class Template:
    """The process that is forked, see `program.template`. Any thread may ask it for another one."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._ready = False
        self._spawn()

    def start(self, role: str, *arguments: Any, descriptors: Sequence[int]) -> None:
        """Raises OSError where there is none."""
        said = os.memfd_create(role)  # of any length
        try:
            os.write(said, pickle.dumps((role, arguments)))
            with self._lock:
                if self.has_ended:
                    _log.error("the process that workers are forked from is gone; another one is started")
                    self._spawn()
                if not self._ready:
                    self._socket.settimeout(_IMPORT_SECONDS)
                    if self._socket.recv(16) != b"ready":
                        raise OSError("the process that imports TensorFlow ended; its output says why")
                    self._socket.settimeout(None)
                    self._ready = True
                socket.send_fds(self._socket, [b"fork"], [said, *descriptors])
        finally:
            os.close(said)

    @property
    def has_ended(self) -> bool:
        return self._process.poll() is not None

    def close(self) -> None:
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(2)
        self._process.kill()

    def _spawn(self) -> None:
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)  # one message, one process
        package = __package__.rpartition(".")[0]
        command = [sys.executable, "-m", f"{package}.program.template", str(theirs.fileno())]
        self._process = subprocess.Popen(command, pass_fds=[theirs.fileno()])
        theirs.close()
        self._ready = False


@dataclass(eq=False)
class SharedGraph:
    """A graph as a file in memory, for workers that start later too."""

    key: int
    content: int
    """A descriptor."""
    allowed: tuple[str, ...] = ()
    refused: Mapping[str, str] = field(default_factory=dict)
    trial: Trial | None = None
    """Where it was built, and is still to be called."""
    works: bool = False
    """Whether it was called there."""

    @property
    def message(self) -> GraphMessage:
        return GraphMessage(self.key, self.allowed, self.refused)

    def __del__(self) -> None:
        os.close(self.content)
        if self.trial is not None:
            self.trial.close()


@dataclass(eq=False)
class SharedFiles:
    """A version as workers get it: the message, and the files, each held by a lock of its own."""

    graph: SharedGraph
    message: VersionMessage
    descriptors: tuple[int, ...]

    @property
    def seconds(self) -> float:
        """In which a worker maps it."""
        return _MAP_SECONDS + sum(self.message.sizes) / _MAP_BYTES

    def __del__(self) -> None:
        for one in self.descriptors:
            os.close(one)


class Worker:
    """A process that answers."""

    def __init__(
        self, number: int, template: Template, arguments: tuple[Any, ...], word: int, handlers: Mapping[str, Handler]
    ) -> None:
        ours, theirs = pair()
        self.number = number
        self.channel = Channel(ours, handlers, name=f"worker {number}")
        self.gone = threading.Event()
        self.channel.ended = self.gone.set
        template.start("worker", *arguments, descriptors=[theirs.fileno(), word])
        theirs.close()
        self.channel.start()

        self.pid = int(self.channel.ask("pid").result(_START_SECONDS))

    def kill(self, why: str) -> None:
        _log.error("worker %d is ended: %s", self.number, why)
        with suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)
        self.channel.close()


class Fleet:
    """Any thread may use it. One epoch follows the other: whoever changes what is shown waits for its turn."""

    def __init__(
        self,
        count: int,
        arguments: tuple[Any, ...],
        handlers: Mapping[str, Handler],
        show: Callable[[], Shown],
        *,
        template: Template | None = None,
    ) -> None:
        """`arguments` are those of a worker; `handlers` answer its questions; `show` says what is to be answered.

        A `template` that is given is closed by who gives it.
        """
        self._count = count
        self._arguments = arguments
        self._handlers = handlers
        self._show = show
        self._shown: Shown = ((), ())
        self._word_file = os.memfd_create("epoch")
        os.ftruncate(self._word_file, mmap.PAGESIZE)
        self._word = memoryview(mmap.mmap(self._word_file, mmap.PAGESIZE)).cast("Q")
        self.template = template or Template()
        self._closes_template = template is None
        self._lock = threading.RLock()  # of what follows, and of the order in which workers are told
        self._workers: list[Worker] = []
        self._graphs: WeakValueDictionary[int, SharedGraph] = WeakValueDictionary()  # that workers have
        self._versions: WeakValueDictionary[int, SharedFiles] = WeakValueDictionary()
        self._keys = 0
        self._ended = threading.Event()
        self.restarts = 0
        self.joined: Mapping[str, Joining] = {}
        """What came of models that are joined, by name."""

    # Workers ----------------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Start the workers, and return once all listen. Raises what keeps the first one from that."""
        self.change()
        listening: list[Future[None]] = [Future() for _ in range(self._count)]
        for number, one in enumerate(listening):
            threading.Thread(target=self._keep, args=(number, one), name=f"keep {number}", daemon=True).start()
        for one in listening:
            one.result()

    def _keep(self, number: int, listening: Future[None]) -> None:
        """Have a worker of this number, until the end."""
        pause = 0.0
        while not self._ended.wait(pause):
            began = time.monotonic()
            try:
                worker = self._add(number)
            except Exception as error:  # noqa: BLE001, it is tried again, unless it is the first one
                if not listening.done():
                    listening.set_exception(error)
                    return
                _log.error("worker %d does not start: %s", number, error)
            else:
                if not listening.done():
                    listening.set_result(None)
                worker.gone.wait()
                self._remove(worker)
            lived = time.monotonic() - began
            if self._ended.is_set():
                return
            self.restarts += 1
            pause = 0.0 if lived > _CALM_SECONDS else min(_MOST_PAUSE, max(_FIRST_PAUSE, 2 * pause))
            _log.warning("worker %d ended after %.1f s; another one takes its place", number, lived)
        if not listening.done():
            listening.set_exception(ClosedError("the server ends before it has begun"))

    def _add(self, number: int) -> Worker:
        """Start a worker, which joins the others once it has all that they have. Raises where that fails."""
        worker = Worker(number, self.template, (number, *self._arguments), self._word_file, self._handlers)
        try:
            with self._lock:
                for graph in list(self._graphs.values()):
                    worker.channel.ask("graph", graph.message, descriptors=[graph.content]).result(_TRIAL_SECONDS)
                for one in list(self._versions.values()):
                    worker.channel.ask("version", one.message, descriptors=one.descriptors).result(
                        one.seconds + _TRIAL_SECONDS
                    )
                worker.channel.ask("join", self._shown[0]).result(_TRIAL_SECONDS)
                worker.channel.ask("show", self._word[0], self._shown[0]).result(_SHOW_SECONDS)
                self._workers.append(worker)
            worker.channel.ask("start").result(0 if self._ended.is_set() else _START_SECONDS)
        except BaseException:
            self._remove(worker)
            worker.kill("it does not start")
            raise
        return worker

    def _remove(self, worker: Worker) -> None:
        with self._lock:
            if worker in self._workers:
                self._workers.remove(worker)

    # What they answer from --------------------------------------------------------------------------------------------

    def graph(
        self, content: bytes, *, allowed: Sequence[str] = (), refused: Mapping[str, str] | None = None
    ) -> SharedGraph:
        """A graph for versions that come. It is tried with the first of them."""
        file = os.memfd_create("graph")
        with os.fdopen(os.dup(file), "wb") as target:
            target.write(content)
        with self._lock:
            self._keys += 1
            return SharedGraph(self._keys, file, tuple(allowed), dict(refused or {}))

    def key(self) -> int:
        with self._lock:
            self._keys += 1
            return self._keys

    def try_graph(self, graph: SharedGraph) -> tuple[str, frozenset[str]]:
        """Build a graph in a process of its own. Returns its digest, and the parameters of which it looks up rows.

        Raises GraphError, where it kills that process or takes too long, too.
        """
        graph.trial = trial = Trial(self.template, self._word_file)
        try:
            return trial.built(graph)
        except BaseException:
            graph.trial = None
            trial.close()
            raise

    def prepare(self, one: SharedFiles) -> None:
        """Have every worker map a version, beside what it answers from.

        Its graph, where it is new, was called in a process of its own before. Raises GraphError, also where that ended
        the process or took too long, and UnfinishedError where no worker came through, of which nobody knows why.
        """
        if not one.graph.works:
            self._call_once(one)
        with self._lock:
            seconds = one.seconds
            if one.graph.key not in self._graphs:
                self._all("graph", one.graph.message, descriptors=[one.graph.content], seconds=_TRIAL_SECONDS)
                self._graphs[one.graph.key] = one.graph
                seconds += _TRIAL_SECONDS
            self._versions[one.message.key] = one
            try:
                self._all("version", one.message, descriptors=one.descriptors, seconds=seconds)
            except BaseException:
                self._versions.pop(one.message.key, None)
                raise

    def _call_once(self, one: SharedFiles) -> None:
        graph = one.graph
        if graph.trial is None:
            self.try_graph(graph)
        trial, graph.trial = graph.trial, None
        assert trial is not None
        try:
            trial.called(one)
        finally:
            trial.close()
        graph.works = True

    def change(self) -> None:
        """From now on all workers answer what `show` says. Where one does not come to know it in time, it is ended."""
        with self._lock:
            shown = self._show()
            epoch = self._word[0] + 1
            if any(isinstance(one.settings, ConnectionSettings) for one in shown[0]):
                self._all("join", shown[0], seconds=_TRIAL_SECONDS)
            for joined in self._all("show", epoch, shown[0], seconds=_SHOW_SECONDS):
                self.joined = joined
            self._word[0] = epoch
            self._shown = shown
            for worker in self._workers:
                worker.channel.tell("shown", epoch, sorted(self._versions), sorted(self._graphs))

    def join(self, models: Sequence[ModelMessage]) -> Mapping[str, Joining]:
        """Have all workers join models as these say. Returns what came of it; nothing that answers changes."""
        with self._lock:
            return next(iter(self._all("join", models, seconds=_TRIAL_SECONDS)), {})

    def tell(self, what: str, *arguments: Any) -> None:
        for worker in list(self._workers):
            worker.channel.tell(what, *arguments)

    def check(self) -> None:
        """End workers that do not answer, as those that were stopped. Not while they are told something, which may take
        as long as it may."""
        if not self._lock.acquire(blocking=False):
            return
        try:
            asked = [(worker, worker.channel.ask("alive")) for worker in self._workers]
            end = time.monotonic() + _ALIVE_SECONDS
            for worker, answer in asked:
                try:
                    answer.result(max(0.0, end - time.monotonic()))
                except LateError:
                    worker.kill(f"it has not answered for {_ALIVE_SECONDS:g} s")
                except ClosedError:
                    pass  # it is being replaced
        finally:
            self._lock.release()

    def ask_all(self, what: str, *arguments: Any, seconds: float) -> list[Any]:
        """The answers of those that answer."""
        asked = [worker.channel.ask(what, *arguments) for worker in self._workers]
        end = time.monotonic() + seconds
        found = []
        for one in asked:
            with suppress(LateError, ClosedError):
                found.append(one.result(max(0.0, end - time.monotonic())))
        return found

    def replace_no_more(self) -> None:
        """Workers that end from now on have no successors."""
        self._ended.set()

    def close(self) -> None:
        """End every process."""
        self._ended.set()
        with self._lock:
            workers, self._workers = self._workers, []
        for worker in workers:
            worker.channel.close()
        if self._closes_template:
            self.template.close()

    def _all(self, what: str, *arguments: Any, descriptors: Sequence[int] = (), seconds: float) -> list[Any]:
        """Returns what those answered that did. Who is late or gone is replaced; what the others refuse is raised."""
        asked: list[tuple[Worker, Future[Any]]] = [
            (worker, worker.channel.ask(what, *arguments, descriptors=descriptors)) for worker in self._workers
        ]
        end = time.monotonic() + seconds
        found = []
        for worker, answer in asked:
            try:
                found.append(answer.result(max(0.0, end - time.monotonic())))
            except LateError:
                worker.kill(f"{what}: expected it within {seconds:g} s")  # before the others go on to what it lacks
            except ClosedError:
                pass  # its own thread replaces it
        if asked and not found and descriptors:
            raise UnfinishedError("every worker ended while it was to have the version; it is tried again")
        return found


class Trial:
    """A process in which a graph is tried, that may end, hang or grow: nothing is answered there."""

    def __init__(self, template: Template, word: int) -> None:
        ours, theirs = pair()
        self._template = template
        self._channel = Channel(ours, {}, name="trial")
        template.start("trial", descriptors=[theirs.fileno(), word])
        theirs.close()
        self._channel.start()
        try:
            self._pid = int(self._channel.ask("pid").result(_START_SECONDS))
        except (ClosedError, LateError) as error:
            raise ChildProcessError(errno.ECHILD, "no process could be started to try the graph in") from error

    def built(self, graph: SharedGraph) -> tuple[str, frozenset[str]]:
        found: tuple[str, frozenset[str]] = self._answer(
            self._channel.ask("graph", graph.message, descriptors=[graph.content]), "built"
        )
        return found

    def called(self, one: SharedFiles) -> None:
        self._answer(self._channel.ask("version", one.message, descriptors=one.descriptors), "called once")

    def close(self) -> None:
        with suppress(OSError):
            os.kill(self._pid, signal.SIGKILL)
        self._channel.close()

    def _answer(self, answer: Future[Any], what: str) -> Any:
        try:
            return answer.result(_TRIAL_SECONDS)
        except LateError as error:
            raise GraphError(f"the graph was not {what} within {_TRIAL_SECONDS:g} s") from error
        except ClosedError as error:
            if self._template.has_ended:
                raise ChildProcessError(errno.ECHILD, "the process ended with the one it was forked from") from error
            raise GraphError(f"the graph ended the process in which it was to be {what}") from error
