"""Publisher: what a training loop calls to make its parameters visible, one step at a time."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Literal, SupportsFloat

from paramsync.errors import PublishError, SettingsError, StoppedError
from paramsync.version import Version
from paramsync.writer import StoreWriter
from trainer.behind import PublisherStatus, WriteBehind
from trainer.metrics import MetricReader
from trainer.schedule import Moment, PublishSchedule
from trainer.snapshot import Frozen, Snapshot, pin

if TYPE_CHECKING:
    import keras
    import tensorflow as tf

OnError = Literal["log", "raise"]
Metrics = Mapping[str, SupportsFloat]


class Publisher:
    """The one publisher of a store.

        with Publisher(store, model, schedule=PublishSchedule(every_seconds=1)) as publisher:
            for step in range(steps):
                train_step()
                publisher.publish_if_due(step)

    Leaving the block without an error is the end of training: where the schedule has `at_end`, the step that was seen
    last is published, with the values that the variables have then. Call `finish` to say another step.

    `publish_if_due`, `publish` and `finish` belong to the thread that trains: they pin the values of the step in
    microseconds a variable, and one thread in the background writes them. Where publications come faster than they can
    be written, the newest wins and the others count as skipped. `request`, `status` and `subscribe` may be called from
    any thread.

    A publication that fails in the background is logged and in the status, and training goes on; with
    `on_error="raise"` it is raised as PublishError at the next call. Metrics may be tensors still being computed; one
    that is no number is left out with a warning.

    With `durable`, a version is on the disk when it is published, and survives the machine's end too; that costs what
    the disk takes, on the background's thread. `store` is its directory, or one that is open already; `keep` and
    `durable` are then its own.

    Raises, when made: SettingsError, StoreError (StoreLockedError for a second publisher), GraphError for a model that
    cannot be captured, such as one not built yet.
    """

    def __init__(
        self,
        store: str | Path | StoreWriter,
        model: keras.Model | tf.Module,
        *,
        schedule: PublishSchedule,
        keep: int = 5,
        durable: bool = False,
        on_error: OnError = "log",
    ) -> None:
        from paramsync.graphs.capture import capture  # here: publishing itself needs no TensorFlow

        if on_error not in ("log", "raise"):
            raise SettingsError(f'on_error: expected "log" or "raise", found {on_error!r}')
        self._capture = capture(model)
        self._graph = self._capture.graph.to_bytes()
        self._schedule = schedule
        self._raise = on_error == "raise"
        self._since: Moment | None = None  # the last snapshot, or where the counting began
        self._seen: tuple[int, Metrics | None] | None = None  # the last step there was a call for
        self._metrics = MetricReader()  # of the writing thread
        self._lock = threading.Lock()  # guards the next two
        self._requests: list[Future[Version]] = []
        self._accepting = True
        if not isinstance(store, StoreWriter):
            store = StoreWriter(Path(store), keep=keep, durable=durable)
        self._store = store
        self._frozen = Frozen()
        self._behind: WriteBehind[Snapshot] = WriteBehind(self._write)
        self._behind.start()

    def publish_if_due(self, step: int, metrics: Metrics | None = None) -> Version | None:
        """Publish this step where the schedule or somebody's `request` wants it; costs about a microsecond where not.

        Returns the version that is being written, or None. It is visible once it is committed.
        """
        self._surface()
        self._seen = (step, metrics)
        now = time.monotonic()
        if self._requests or self._schedule.due(step, now, since=self._since):
            return self._publish(step, now, metrics)
        if self._since is None:
            self._since = Moment(step, now)
        return None

    def publish(self, step: int, *, wait: bool = False, metrics: Metrics | None = None) -> Version:
        """Publish this step now. With `wait`, returns the version once committed, or raises PublishError."""
        self._surface()
        if not wait:
            return self._publish(step, time.monotonic(), metrics)
        future: Future[Version] = Future()
        self._publish(step, time.monotonic(), metrics, future)
        return future.result()

    def finish(self, step: int, metrics: Metrics | None = None) -> Version | None:
        """Training is over: publish its last step where the schedule or a request wants that, and wait for the writer.

        Requests are refused from here on. Returns the last committed version. Leaving the `with` block does the same.
        """
        with self._lock:
            self._accepting = False
        self._behind.flush(None)
        committed = self.status().published
        if self._requests or self._schedule.due_at_end(step, published=committed.step if committed else None):
            self._publish(step, time.monotonic(), metrics)
        self.flush(None)
        return self.status().published

    def request(self) -> Future[Version]:
        """Ask for a publication at the next step, from any thread; the future has the version once it is committed.

        Raises StoppedError when training has stopped. The future raises PublishError where writing fails.
        """
        with self._lock:
            if not self._accepting:
                raise StoppedError
            future: Future[Version] = Future()
            self._requests.append(future)
        return future

    def subscribe(self, listener: Callable[[Version], None]) -> None:
        """Call this with every version once it is committed, on the writing thread: it must not block."""
        self._behind.subscribe(listener)

    def status(self) -> PublisherStatus:
        """How publishing goes, as one value."""
        return self._behind.status()

    def flush(self, timeout: float | None = None) -> bool:
        """Wait until everything is written; False where that takes longer than `timeout` seconds."""
        done = self._behind.flush(timeout)
        self._surface()
        return done

    def close(self) -> None:
        """Write what waits, answer who waits, give the store up. Publishes nothing by itself; may be called again."""
        self._release()
        self._surface()

    def __enter__(self) -> Publisher:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        try:
            if error is None and self._accepting and self._seen is not None:
                self.finish(*self._seen)
        finally:
            self._release()
        if error is None:
            self._surface()

    def _publish(self, step: int, now: float, metrics: Metrics | None, *waiting: Future[Version]) -> Version:
        self._seen = (step, metrics)
        done_at = time.time()
        with self._lock:
            requests, self._requests = self._requests, []
        values = pin(self._capture)
        number = self._store.next_number(step)
        version = Version(
            number=number,
            step=step,
            prefix=f"ckpt-{number}",
            graph=self._capture.graph.digest,
            step_done_at=done_at,
            snapshot_at=time.time(),
        )
        self._since = Moment(step, now)
        self._behind.put(Snapshot(version=version, values=values, metrics=metrics or {}), *requests, *waiting)
        return version

    def _write(self, snapshot: Snapshot) -> Version:
        self._store.add_graph(self._capture.graph.digest, self._graph)
        version = replace(snapshot.version, metrics=self._metrics.read(snapshot.metrics))
        tensors = snapshot.tensors()
        version = self._store.commit(version, tensors, unchanged=self._frozen.names(tensors))
        self._frozen.published(snapshot, tensors, self._store.unchanged)
        return version

    def _surface(self) -> None:
        if self._raise and (error := self._behind.take_error()) is not None:
            raise PublishError(f"an earlier publication failed: {error}")

    def _release(self) -> None:
        with self._lock:
            self._accepting = False
            requests, self._requests = self._requests, []
        for future in requests:
            if future.set_running_or_notify_cancel():
                future.set_exception(StoppedError())
        self._behind.close()
        self._store.close()
