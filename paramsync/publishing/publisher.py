"""Publisher: a training loop calls it to publish its parameters."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Collection
from concurrent.futures import Future
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from paramsync.errors import ParamsyncError, PublishError, SettingsError, StoppedError, StructureError
from paramsync.publishing.external_values import ExternalValues, Values
from paramsync.publishing.metrics import Gate, Meter, Metrics
from paramsync.publishing.options import PublishOptions, check_options, read_tls
from paramsync.publishing.schedule import Moment, PublishSchedule, step_number
from paramsync.publishing.write_behind import (
    PublisherStatus,
    Snapshot,
    SnapshotWriter,
    WriteBehind,
    device_name,
    fetch,
    rounded,
    trace_context,
)
from paramsync.rpc.addresses import HOST
from paramsync.store.commit import StoreWriter
from paramsync.store.state_file import Retention
from paramsync.version import Version

if TYPE_CHECKING:
    import keras
    import tensorflow as tf
    from typing_extensions import Self, Unpack

    from paramsync.graphs.capturing import Capture
    from paramsync.publishing.control_port import ControlPort
    from paramsync.publishing.live_variables import Averages, LiveVariables
    from paramsync.remote.child import MirrorChild
    from paramsync.remote.outgoing import Outgoing

_log = logging.getLogger("paramsync.trainer")


@runtime_checkable
class ValueSource(Protocol):
    """The source of a publisher's values and of their graph."""

    digest: str
    content: bytes  # the bytes of the graph file; if the structure has changed, `pin` replaces `content` and `digest`

    def pin(self, values: Any = None) -> dict[str, Any]:
        """Return the values of this step by their checkpoint keys. Later steps do not change the returned values.

        `values` is the argument that the publisher was called with, or None. Raises StructureError if the structure has
        changed and cannot be published.
        """


class Publisher:
    """Publishes versions to a store. A store has only one publisher at a time.

        with Publisher(store, model, schedule=PublishSchedule(every_seconds=1)) as publisher:
            for step in range(steps):
                train_step()
                publisher.publish_if_due(step)

    Leaving the block without an error ends training. If the schedule has `at_end`, the step of the last call is then
    published, with the current values of the variables. Call `finish` to publish another step at the end. Without a
    `schedule`, only the start and the end are published, unless the loop calls `publish`.

    Call `publish_if_due`, `publish` and `finish` on the thread that trains. They take a snapshot of the step, in
    microseconds for each variable, and a background thread writes the snapshot. If snapshots come faster than they can
    be written, only the newest is written, and the other snapshots count as skipped. `request`, `status` and
    `subscribe` may be called from any thread.

    A publication that fails in the background is logged and reported in the status, and training goes on. Metrics may
    be tensors that are still being computed; a metric that is not a number is left out, with a warning. A step is a
    whole number of any framework, or a variable with a whole number; any other step raises SettingsError. If a step is
    lower than the step before, its version still gets a higher number. The first such step logs a warning.

    The first step is published if the store has no version yet, so that a restarted training does not replace an
    earlier, trained version (see PublishSchedule).

    Args:
        store: The directory of the store; the address of a bucket, such as s3://bucket/models/digits; an open
            StoreWriter, with its own `keep`, `durable` and `signing_key`; or an Outgoing, with its own `keep`.
        source: A model, or the Capture of anything else with variables: a function, several signatures, or a model
            whose inputs must be named. For values of other frameworks see `of_graph`.
        schedule: When a step is due.
        averages: Maps a variable to the variable that is published in its place, like
            `tf.train.ExponentialMovingAverage.average`.
        keep: How many of the newest versions stay in the store, or a Retention, which keeps older versions by age.
        durable: Whether a version is written to the disk before it counts as published, so that it survives a crash of
            the machine. The background thread waits for the disk.
        signing_key: A file made by `paramsync keys new`. Versions are signed with this key, for inferencers that serve
            only signed versions.
        on_error: "log" only logs a failed publication. "raise" also raises PublishError once, at the next call.
        allow_nan: Whether to publish parameters that are NaN or infinite. Otherwise such a publication fails with
            NotFiniteError and counts as `refused`: the previous version stays the latest.
        precision: "bfloat16" rounds float32 values to bfloat16. The files still contain float32, with zeros as low
            bytes, so that only a small part of a version's size is sent to a bucket (see docs/beyond-one-machine.md).
        serve_after: Seconds from a version's commit until all followers swap to it at the same moment, by their clocks.
            They prepare the version in the meantime; followers that are late swap once they can (see
            docs/beyond-one-machine.md).
        allow_ops: Ops that followers are configured to allow, in addition to ops that only compute.
        publish_if: The gate, a condition for publishing a step that is due. Either the name of a metric, such as
            "val_loss", that must not be worse than in the newest version. Or a function that gets all metrics and
            returns whether to publish; the thread that trains calls it. A step that the gate holds back, or that has no
            metrics, stays due and is shown in the status. The gate does not apply to `publish`, to an operator's
            request, and to a start with `at_start=True`.
        control_port: The port for operators while the publisher is open. It answers `paramsync status`, and `paramsync
            sync --fresh`, which makes the next call of `publish_if_due` publish. 0 means any free port; `control` is
            the address. Without a port, gRPC is not imported.
        host: The address on which the control port listens.
        tls: The certificate of the control port; see TlsFiles.

    The constructor raises SettingsError; StoreError (StoreLockedError for a second publisher); GraphError for a model
    that cannot be captured, for example because it is not built yet; and UnsafeGraphError for a model with ops that
    followers refuse, for example a call of a Python function.
    """

    def __init__(
        self,
        store: str | Path | StoreWriter | Outgoing,
        source: keras.Model | tf.Module | Capture | ValueSource,
        *,
        schedule: PublishSchedule | None = None,
        averages: Averages | None = None,
        **options: Unpack[PublishOptions],
    ) -> None:
        check_options(options)
        publish_if = options.get("publish_if")
        self._gate = None if publish_if is None else Gate(publish_if)
        self._is_live = not isinstance(source, ValueSource)
        allow_ops = options.get("allow_ops", ())
        self._source = source if isinstance(source, ValueSource) else _live(source, averages, allow_ops)
        self._schedule = PublishSchedule() if schedule is None else schedule
        self._raise = options.get("on_error") == "raise"
        self._since: Moment | None = None  # when the last snapshot was taken; before the first snapshot, the first call
        self._seen: tuple[int, Metrics | None, Values | None] | None = None  # the arguments of the last call
        self._raised: str | None = None  # the text of the failure that was raised last
        self._warned = False  # whether a warning about a lower step was logged
        self._lost = False  # whether an error was raised because the bucket is lost
        self._lock = threading.Lock()  # guards the next two fields
        self._requests: list[Future[Version]] = []
        self._accepting = True
        self.meter = Meter()
        self._outgoing = _outgoing(store, options)
        with ExitStack() as until_failure:
            if self._outgoing is not None:
                until_failure.callback(self._outgoing.give_up)
            self._control = _control_port(store, self._outgoing, options)
            until_failure.callback(self._close_control)
            self._store = _store_writer(store, self._outgoing, options)
            until_failure.pop_all()
        # the store at the start: whether it was empty, and its latest metrics
        self._empty, self._before = _latest(self._store)
        self._begun: int | None = None  # the step given to `begin`, if the store had a version
        self._pinned: Metrics = self._before  # the metrics of the last snapshot, even if its write failed
        self._precision = options.get("precision") or ""
        serve_after = options.get("serve_after")
        write = SnapshotWriter(self._store, finite=not options.get("allow_nan", False), serve_after=serve_after).write
        self._behind: WriteBehind[Snapshot] = WriteBehind(write)
        if self._outgoing is not None:
            self._behind.subscribe(self._outgoing.published)
        self._behind.start()
        if self._control is not None:
            self._answer(self._control)

    @classmethod
    def of_graph(
        cls,
        store: str | Path,
        digest: str | None = None,
        *,
        graph: str | Path | None = None,
        schedule: PublishSchedule | None = None,
        copy: bool = True,
        **options: Unpack[PublishOptions],
    ) -> Publisher:
        """Publish values of JAX, PyTorch, numpy or anything else. Their graph was stored by `paramsync graph publish`.

            with Publisher.of_graph(store, schedule=PublishSchedule(every_seconds=1)) as publisher:
                for step in range(steps):
                    train_step()
                    publisher.publish_if_due(step, values=lambda: {v.path: v.value for v in model.variables})

        Neither TensorFlow nor Keras is imported. `digest` selects a graph if the store has several. If `store` is the
        address of a bucket, `graph` is the directory into which `paramsync graph publish` put the graph.

        Values are named by their checkpoint keys, by Keras' paths, or by TensorFlow's names of the variables. Values
        that training may write to, such as arrays of numpy and tensors of PyTorch, are copied on the thread that
        trains. Arrays of JAX are copied on their device, or not at all on the CPU; a training step may donate their
        memory. With `copy=False` nothing is copied, and training must not change published values until they are
        written. `options` are the constructor's. Raises as the constructor does, and SettingsError if the graph is not
        in the store.
        """
        if graph is None:
            if "://" in str(store):
                raise SettingsError(f"of_graph({str(store)!r}): expected graph=DIR with it, found none")
            graph = store
        return cls(store, ExternalValues.in_store(Path(graph), digest, copy=copy), schedule=schedule, **options)

    def begin(self, step: int, *, values: Values | None = None) -> Version | None:
        """Call this before the first step is trained. Publishes this step if the schedule wants the start.

        The call is optional. It lets the publisher recognise a training that did nothing: if the store has versions,
        and training ends at this same step, the end is not published.
        """
        self._begun = None if self._empty else step_number(step)
        return self.publish_if_due(step, values=values)

    def publish_if_due(
        self, step: int, metrics: Metrics | None = None, *, values: Values | None = None
    ) -> Version | None:
        """Publish this step if the schedule or a `request` wants it. Otherwise the call takes about a microsecond.

        Returns the version that is being written, or None. Followers see the version once it is committed. `values` are
        only for publishers made by `of_graph`: the parameters by name, or a function that returns them. Raises
        ParameterError for values that do not fit the graph.
        """
        self._surface()
        step = step_number(step)
        now = time.monotonic()
        self.meter.advance(step, metrics.get("loss") if metrics else None, now)
        if self.is_due(step, now) and not self._is_held_back(step, metrics):
            return self._publish(step, now, metrics, values)
        self._seen = (step, metrics, values)
        if self._since is None:
            self._since = Moment(step, now)
        return None

    def is_due(self, step: int, now: float | None = None) -> bool:
        """Return whether `publish_if_due` would publish this step now, if the gate allows it. Needs no metrics."""
        now = time.monotonic() if now is None else now
        return bool(self._requests) or self._schedule.due(step, now, since=self._since, empty=self._empty)

    def publish(
        self, step: int, *, wait: bool = False, metrics: Metrics | None = None, values: Values | None = None
    ) -> Version:
        """Publish this step now. With `wait`, returns the version once it is committed, or raises PublishError."""
        self._surface()
        step = step_number(step)
        if not wait:
            return self._publish(step, time.monotonic(), metrics, values)
        self._behind.check_thread()
        future: Future[Version] = Future()
        self._publish(step, time.monotonic(), metrics, values, future)
        try:
            return future.result()
        except PublishError:
            self._raised = self._behind.take_error()  # this call raises the error, so no later call must
            raise

    def finish(self, step: int, metrics: Metrics | None = None, *, values: Values | None = None) -> Version | None:
        """End training: publish the last step if the schedule or a request wants it, and wait for the writer.

        Later requests are refused. Returns the last committed version. Leaving the `with` block does the same.
        """
        return self._finish(step, metrics, values)

    def request(self) -> Future[Version]:
        """Ask for a publication at the next step, from any thread. The future gets the version once it is committed.

        Raises StoppedError when training has stopped. The future raises PublishError if writing fails.
        """
        with self._lock:
            if not self._accepting:
                raise StoppedError
            future: Future[Version] = Future()
            self._requests.append(future)
        return future

    def subscribe(self, listener: Callable[[Version], None], *, in_bucket: bool = False) -> None:
        """Call `listener` with every committed version, on the writing thread: it must not block.

        With `in_bucket`, the listener is called when a version has reached the bucket. If several versions reach the
        bucket at once, the listener gets only the newest. Raises SettingsError for a store that is not in a bucket.
        """
        if not in_bucket:
            self._behind.subscribe(listener)
        elif self._outgoing is None:
            raise SettingsError(f"in_bucket: expected a publisher to a bucket, found store {self._store.path}")
        else:
            self._outgoing.subscribe(listener)

    def status(self) -> PublisherStatus:
        """Return the state of publishing, as one value."""
        status = replace(self._behind.status(), held_back=self._gate.held_back if self._gate else None)
        if self._outgoing is None:
            return status
        bucket = self._outgoing.status()
        return replace(status, last_error=status.last_error or bucket.reason or None, bucket=bucket)

    @property
    def mirror(self) -> MirrorChild | None:
        """The process that copies versions to the bucket; None if the store is not in a bucket."""
        return None if self._outgoing is None else self._outgoing.child

    @property
    def control(self) -> str | None:
        """The address of the control port, if any."""
        return None if self._control is None else self._control.address

    def flush(self, timeout: float | None = None) -> bool:
        """Wait until everything is written; False after `timeout` seconds."""
        done = self._behind.flush(timeout)
        self._surface()
        return done

    def close(self) -> None:
        """Write waiting values, refuse open requests, and release the store. May be called again."""
        self._release()
        self._surface()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        try:
            if error is None and self._accepting and self._seen is not None:
                self._finish(*self._seen)
        finally:
            self._release(finished=not isinstance(error, Exception))  # Ctrl-C is a normal end of training
        if error is None:
            self._surface()

    def _publish(
        self, step: int, now: float, metrics: Metrics | None, values: Values | None, *waiting: Future[Version]
    ) -> Version:
        self._seen = None  # if `pin` raises, the end of training does not try again
        self._warn_of_lower(step)
        done_at = time.time()
        try:
            pinned, problem = self._source.pin(values), ""
        except StructureError as error:  # reported like any publication that fails, on the writing thread
            pinned, problem = {}, str(error)
        self._seen = (step, metrics, values)
        with self._lock:
            requests, self._requests = self._requests, []
        number = self._store.next_number(step)
        version = Version(
            number=number,
            step=step,
            prefix=f"ckpt-{number}",
            graph=self._source.digest,
            precision=self._precision,
            step_done_at=done_at,
            snapshot_at=time.time(),
        )
        self._since = Moment(step, now)
        self._pinned = metrics or {}
        if self._gate is not None:
            self._gate.held_back = None
        snapshot = Snapshot(
            version=version,
            values=pinned,
            metrics=dict(metrics or {}),
            graph=self._source.content,
            problem=problem,
            context=trace_context(),
        )
        self._behind.put(snapshot, *requests, *waiting)
        self.meter.step = step
        self.meter.stall = time.monotonic() - now
        return version

    def _finish(self, step: int, metrics: Metrics | None, values: Values | None) -> Version | None:
        step = step_number(step)
        with self._lock:
            self._accepting = False
        if self._control is not None:
            self._control.training_ends()
        self._behind.flush(None)
        committed = self.status().published
        due = self._schedule.due_at_end(step, published=committed.step if committed else self._begun) or (
            self._schedule.at_end and committed is not None and self._has_changed(committed)
        )
        raised = self._raised if self._since is not None and self._since.step == step else None
        if self._requests or (due and not self._is_held_back(step, metrics)):
            self._publish(step, time.monotonic(), metrics, values)
        self._behind.flush(None)
        self._surface(raised)
        return self.status().published

    def _has_changed(self, published: Version) -> bool:
        """Return whether the model differs from the last version, for example because a callback restored weights."""
        if not self._is_live:
            return False  # without live variables, the caller gives the values with each call
        try:
            pinned = self._source.pin()
        except StructureError:
            return True  # `_publish` reports the error
        return self._source.digest != published.graph or not self._store.has(rounded(fetch(pinned), self._precision))

    def _is_held_back(self, step: int, metrics: Metrics | None) -> bool:
        """Return whether the gate holds back a step that is due."""
        if self._gate is None or self._requests or (self._since is None and self._schedule.at_start):
            return False
        status = self._behind.status()
        committed = status.published.metrics if status.published else self._before
        return self._gate.refuses(step, metrics, self._pinned if status.last_error is None else committed)

    def _warn_of_lower(self, step: int) -> None:
        if self._since is not None and step < self._since.step and not self._warned:
            self._warned = True
            _log.warning(
                "step %d is published after step %d: versions go on rising, and say the step as it is given",
                step,
                self._since.step,
            )

    def _surface(self, raised: str | None = None) -> None:
        """With on_error="raise", raise each background error once: a failed publication, or the loss of the bucket.

        Ignores the error whose text is `raised`, because it was raised before.
        """
        if self._raise and (error := self._behind.take_error()) not in (None, raised):
            self._raised = error
            raise PublishError(f"an earlier publication failed: {error}")
        if self._raise and self._outgoing is not None and not self._lost and (lost := self._outgoing.status()).over:
            self._lost = True
            raise PublishError(f"no version gets into the bucket any more: {lost.reason}")

    def _release(self, *, finished: bool = True) -> None:
        with self._lock:
            self._accepting = False
            requests, self._requests = self._requests, []
        for future in requests:
            if future.set_running_or_notify_cancel():
                future.set_exception(StoppedError())
        self._behind.close()
        self._store.close(finished=finished)
        if self._outgoing is not None:
            self._outgoing.close()
        self._close_control()

    def _answer(self, control: ControlPort) -> None:
        """Make the control port report this publisher from now on."""
        from paramsync.publishing.control_port import Training  # imported here, because it imports gRPC

        device = device_name() if self._is_live else ""
        control.training_begins(Training(publisher=self, device=device))
        place = self._store.path if self._outgoing is None else self._outgoing.address
        _log.info("publisher ready: control %s, store %s", control.address, place)

    def _close_control(self) -> None:
        control, self._control = self._control, None
        if control is not None:
            control.close()


def _outgoing(store: str | Path | StoreWriter | Outgoing, options: PublishOptions) -> Outgoing | None:
    """Return the Outgoing that sends versions to a bucket, or None if the store is not in a bucket."""
    if isinstance(store, (Path, StoreWriter)) or (isinstance(store, str) and "://" not in store):
        return None
    from paramsync.remote.outgoing import Outgoing  # imported here, because most publishers have no bucket

    if isinstance(store, Outgoing):
        return store
    keep = options.get("keep", 5)
    return Outgoing(store, keep=keep.keep if isinstance(keep, Retention) else keep)


def _store_writer(
    store: str | Path | StoreWriter | Outgoing, outgoing: Outgoing | None, options: PublishOptions
) -> StoreWriter:
    key = options.get("signing_key")
    durable, signing_key = options.get("durable", False), None if key is None else Path(key)
    if outgoing is not None:
        return outgoing.writer(durable=durable, signing_key=signing_key)
    if isinstance(store, StoreWriter):
        return store
    return StoreWriter(Path(str(store)), keep=options.get("keep", 5), durable=durable, signing_key=signing_key)


def _control_port(
    store: str | Path | StoreWriter | Outgoing, outgoing: Outgoing | None, options: PublishOptions
) -> ControlPort | None:
    port, host = options.get("control_port"), options.get("host", HOST)
    if port is None:
        return None
    from paramsync.publishing.control_port import ControlPort  # imported here, because it imports gRPC
    from paramsync.rpc.access import Access
    from paramsync.rpc.settings import KEYWORDS, tokens

    tls = options.get("tls")
    certificates = tls is not None and tls.client_ca is not None
    access = Access(host=host, tokens=tokens(), certificates=certificates, options=KEYWORDS)
    address = None if outgoing is None else outgoing.address
    path = outgoing.path if outgoing is not None else store.path if isinstance(store, StoreWriter) else Path(str(store))
    return ControlPort(
        host, port, store=path, address=address, option="control_port", access=access, tls=read_tls(options)
    )


def _latest(store: StoreWriter) -> tuple[bool, Metrics]:
    """Return whether the store has no version, and the metrics of its latest version."""
    try:
        latest = store.latest()
    except ParamsyncError:  # the store has something that cannot be read
        return False, {}
    return latest is None, latest.metrics if latest else {}


def _live(source: Any, averages: Averages | None, allow_ops: Collection[str]) -> LiveVariables:
    from paramsync.graphs.capturing import Capture, capture  # imported here: other frameworks need no TensorFlow
    from paramsync.publishing.live_variables import LiveVariables

    captured = source if isinstance(source, Capture) else capture(source)
    return LiveVariables(captured, averages, allow_ops=allow_ops)
