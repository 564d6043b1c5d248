"""Follower: keeps a replica at the right version, from one worker thread."""

from __future__ import annotations

import concurrent.futures
import logging
import threading
import time
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic

from paramsync.errors import NotServingError
from paramsync.following.faults import describe
from paramsync.following.operator_requests import Action, OperatorRequests
from paramsync.following.pins_file import Change, PinsFile
from paramsync.following.reconciler import Reconciler
from paramsync.following.report import Report, Subscription
from paramsync.following.residents import Residents
from paramsync.sources.source import Bell
from paramsync.status import EVERY_KIND, EventKind, State, Status, waits_until
from paramsync.version import Version

if TYPE_CHECKING:
    from typing_extensions import Self, TypeVar

    from paramsync.following.replica import Replica

    V = TypeVar("V", bound=Residents[Any], default=Replica)
else:
    from typing import TypeVar

    V = TypeVar("V")

_log = logging.getLogger("paramsync.follower")
_JOIN_SECONDS = 10.0
_WAITING_SECONDS = 1.0  # the longest pause between two rounds while nothing serves: the watch may miss a new directory
_LONG_SECONDS = 0.5  # a longer round with a swap is repeated at once: some file systems report no changes
_TEND_SECONDS = 0.05  # how often to check whether requests still use a dropped version


class Follower(Generic[V]):
    """Keeps a replica at the right version.

    `start`, or a `with` block, starts a worker thread. It calls `run_once` whenever the watch reports a change, and
    every `poll_seconds`. Without `start`, the thread that calls `run_once` is the worker. All other methods may be
    called from any thread. Only methods with a `timeout` wait for a restore.
    """

    def __init__(
        self,
        replica: V,
        *,
        poll_seconds: float = 5.0,
        clock: Callable[[], float] = time.time,
        keep: Path | None = None,
        labels: Mapping[str, int] | None = None,
        latest: int | None = None,
        change: Change | None = None,
        serve_damaged: bool = False,
    ) -> None:
        """
        Args:
            poll_seconds: Seconds between two looks at the store, if the watch reports no change.
            keep: The directory that stores pins and labels over a restart; None: they are lost at a restart.
            labels: Labels from the settings. A label stored in `keep` wins, unless the settings have changed since.
            latest: How many of the newest versions stay in memory; None: the versions that served last stay instead.
            change: A change of pin and labels that applies from the start, although it is not stored in `keep` yet.
            serve_damaged: Whether a damaged version goes on serving while no other version can replace it.
        """
        kept = PinsFile(keep, replica.model, replica.source.path, given=labels)
        choices = kept.read() if change is None else change.of(kept.read())
        self.replica = replica
        self.model = replica.model
        self._poll_seconds = poll_seconds
        self._requests = OperatorRequests(choices, kept.write, latest=latest)
        self._report = Report(self.model, replica.source.path, pinned=choices.pinned, clock=clock)
        self._rung = threading.Event()
        self._draining = threading.Event()
        self._worker: threading.Thread | None = None
        self.looked: Future[None] = Future()
        """Done after the worker's first round, even if the round failed."""
        self._reconciler = Reconciler(
            replica,
            self._requests,
            self._report,
            clock=clock,
            ended=self._draining,
            rung=self._rung,
            serve_damaged=serve_damaged,
        )

    # For everybody ----------------------------------------------------------------------------------------------------

    def notify(self) -> None:
        """Make the worker look at the store soon."""
        self._rung.set()

    def status(self) -> Status:
        """Return the model's status as of now."""
        status = self._report.status()
        return replace(status, state=State.DRAINING) if self._draining.is_set() else status

    def subscribe(self, wake: Callable[[], None], kinds: Collection[EventKind] = EVERY_KIND) -> Subscription:
        """Subscribe to events of these kinds. `wake` must return at once."""
        return self._report.subscribe(wake, kinds)

    @property
    def latest(self) -> int | None:
        """How many of the newest versions stay in memory; None: the versions that served last stay instead."""
        return self._requests.latest

    @property
    def beside(self) -> tuple[int, ...]:
        """The versions that stay in memory because a configuration names them."""
        return self._requests.beside

    def on_trial(self, trial: bool) -> None:
        """Set whether the model is a new configuration on trial. Log lines of a model on trial name its store."""
        self._report.set_on_trial(trial)

    def hold(self, change: Change | None) -> None:
        """Restore the versions that this change needs, and keep them in memory until the next call of `hold`.

        A request with `Action.PREPARE` waits until these versions are in memory.
        """
        self._requests.hold(change)
        self.notify()

    def ask(
        self,
        action: Action,
        number: int | None = None,
        label: str = "",
        change: Change | None = None,
        serve_at: float | None = None,
    ) -> Future[Status]:
        """Open a request, as `sync` or `pin` do, without waiting. The future may be cancelled. Raises InputError."""
        answer = self._requests.ask(action, number, label, change, serve_at)
        answer.add_done_callback(self._answered)
        self.notify()
        return answer

    def _answered(self, answer: Future[Status]) -> None:
        if answer.cancelled():  # the caller gave up, so the worker has to withdraw the caller's pin or label
            self.notify()

    def sync(self, version: int | None = None, *, timeout: float | None = None) -> Status:
        """Return once this version or a newer version serves. None stands for the newest version published now.

        A quarantined version is tried once more. Raises SyncError if the version cannot be served,
        UnknownVersionError, NotServingError while draining, and TimeoutError, whose message says what took so long.
        """
        return self._wait(self.ask(Action.SYNC, version), version, timeout)

    def pin(self, version: int, *, timeout: float | None = None) -> Status:
        """Serve this version until `unpin`. Returns once the version serves. After an error nothing has changed."""
        return self._wait(self.ask(Action.PIN, version), version, timeout)

    def unpin(self, *, timeout: float | None = None) -> Status:
        """Follow the newest version again."""
        return self._wait(self.ask(Action.UNPIN), None, timeout)

    def rollback(self, version: int | None = None, *, timeout: float | None = None) -> Status:
        """Pin the version that served before the serving version. A version in memory serves at once.

        Raises as `pin` does. `status().back` is the version that a rollback would pin. A caller that showed this
        version to a person passes it as `version`, so that the rollback pins the same version even after a swap. The
        next rollback goes further back.
        """
        return self._wait(self.ask(Action.ROLLBACK, version), version, timeout)

    def label(self, label: str, version: int, *, timeout: float | None = None) -> Status:
        """Give a version a label. Returns once requests that name the label are answered from that version.

        A version that is not in memory is restored beside the serving version. Raises as `pin` does.
        """
        return self._wait(self.ask(Action.LABEL, version, label), version, timeout)

    def unlabel(self, label: str, *, timeout: float | None = None) -> Status:
        """Forget the label. Raises UnknownLabelError."""
        return self._wait(self.ask(Action.UNLABEL, label=label), None, timeout)

    def late(self, number: int | None, seconds: float | None) -> str:
        """Return the message for a caller that waited too long for a version."""
        what = "the newest version" if number is None else f"version {number}"
        waited = "in time" if seconds is None else f"within {seconds:.3g} s"
        return f"{what} of model {self.model!r} did not come to serve {waited}: {_why_waiting(number, self.status())}"

    def _wait(self, answer: Future[Status], number: int | None, timeout: float | None) -> Status:
        try:
            return answer.result(timeout)
        except concurrent.futures.TimeoutError:
            if answer.cancel():
                raise TimeoutError(self.late(number, timeout)) from None
            return answer.result()  # the answer came at the last moment

    # The worker -------------------------------------------------------------------------------------------------------

    def start(self, bell: Bell | None = None) -> None:
        """Start the worker. The worker arms and closes `bell`, which reports changes; by default the source's bell."""
        bell = bell or self.replica.source.bell(self.notify)
        self._worker = threading.Thread(target=self._run, args=(bell,), name=f"follower {self.model}", daemon=True)
        self._worker.start()

    def drain(self, why: str = "the server is stopping") -> None:
        """Report DRAINING, restore nothing more, and refuse operators' requests. The serving version stays."""
        if not self._draining.is_set():
            self._draining.set()
            self._requests.refuse(NotServingError(self.model, why))
        self.notify()

    def close(self) -> None:
        """Drain, and wait for the end of the worker, 10 seconds at most. The worker abandons a restore in progress."""
        self.drain()
        if self._worker is not None:
            self._worker.join(_JOIN_SECONDS)

    def release(self) -> None:
        """Free all versions. Call this after `close`. Returns once no request uses any version."""
        self._reconciler.release()
        while self.replica.leaving:
            self.replica.tend()
            self._rung.clear()
            self._rung.wait(_TEND_SECONDS)

    def __enter__(self) -> Self:
        if self._worker is None:
            self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _run(self, bell: Bell) -> None:
        while not self._draining.is_set():
            self._rung.clear()
            try:
                bell.arm()
                self._follow()
            except Exception as error:  # noqa: BLE001, no later version would be served if this thread ended
                _log.exception("%s: the follower goes on after an error of its own", self._report.name)
                self._report.set_error(describe(error))
            self._has_looked()
            look_again = self._reconciler.look_again
            pause = self._poll_seconds if self.replica.residents else min(self._poll_seconds, _WAITING_SECONDS)
            self._rest(pause if look_again is None else min(pause, look_again))
        bell.close()

    def _follow(self) -> None:
        """Run rounds until a round swaps nothing or is short. A watch may miss a publication during a long round."""
        while True:
            began = time.monotonic()
            swapped = self.run_once()
            self._has_looked()
            if swapped is None or time.monotonic() - began <= _LONG_SECONDS:
                return

    def _rest(self, seconds: float) -> None:
        """Wait for a notification or the timeout. Meanwhile free dropped versions that requests no longer use."""
        end = time.monotonic() + seconds
        while self.replica.leaving and time.monotonic() < end:
            if self._rung.wait(min(_TEND_SECONDS, end - time.monotonic())):
                return
            self._reconciler.tend()
        self._rung.wait(max(0.0, end - time.monotonic()))

    def _has_looked(self) -> None:
        if not self.looked.done():
            self.looked.set_result(None)

    def run_once(self) -> Version | None:
        """Run one round: look at the store, restore the version to serve, and swap to it.

        Returns the version that serves after a swap, or None if no swap took place. A version that cannot be used is
        quarantined, and the next best version is tried in the same round.
        """
        self._rung.clear()
        return self._reconciler.run_once()


def _why_waiting(number: int | None, status: Status) -> str:
    """Return the reason why an open request still waits."""
    if status.restoring is not None:
        return f"version {status.restoring} is being restored"
    if status.reason:
        return status.reason
    if status.next is not None and number in (None, status.next):
        return waits_until(status.next, status.next_at)
    if number is not None and status.published is not None and number > status.published.number:
        return f"the newest version in {status.store} is {status.published.number}"
    return "the store has not been looked at yet"
