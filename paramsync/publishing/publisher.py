"""Publisher: what a training loop calls to make its parameters visible, one step at a time."""

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
    """The source of a publication's values, and their graph."""

    digest: str
    content: bytes  # of the graph file; a `pin` that sees another structure changes it

    def pin(self, values: Any = None) -> dict[str, Any]:
        """The values of this step by their keys in a checkpoint, so that no later step changes them.

        `values` is what the publisher's caller gave, or None. Raises StructureError if the structure has changed and
        cannot be published.
        """


class Publisher:
    """The one publisher of a store.

        with Publisher(store, model, schedule=PublishSchedule(every_seconds=1)) as publisher:
            for step in range(steps):
                train_step()
                publisher.publish_if_due(step)

    Leaving the block without an error is the end of training: if the schedule has `at_end`, the last step is published,
    with the values that the variables have then. Call `finish` to name another step. Without a `schedule`, the loop
    calls `publish` when it wants to.

    `publish_if_due`, `publish` and `finish` belong to the thread that trains: they pin the values of the step in
    microseconds a variable, and a thread in the background writes them. If publications come faster than they can be
    written, the newest wins and the others count as skipped. `request`, `status` and `subscribe` may be called from any
    thread.

    A publication that fails in the background is logged and in the status, and training goes on. Metrics may be tensors
    that are still being computed; a metric that is not a number is left out with a warning. A step is a whole number,
    also of another framework, or a variable that holds one; anything else is a SettingsError at the call. A step lower
    than the step before is published under a number that rises all the same, with one warning.

    The first step is published if the store has no version yet, so that a restarted training does not replace an
    earlier, trained version (see PublishSchedule).

    Args:
        store: The directory of the store; the address of a bucket, such as s3://bucket/models/digits; or a StoreWriter
            that is open, with its own `keep`, `durable` and `signing_key`; or an Outgoing, with its own `keep`.
        source: A model, or the Capture of anything else that has variables: a function, several signatures, a model
            whose inputs have to be named. For values of other frameworks see `of_graph`.
        schedule: When a step is due.
        averages: Gives the variable that is published in place of another, as
            `tf.train.ExponentialMovingAverage.average` does.
        keep: How many of the newest versions stay in the store, or a Retention, which keeps older versions by age.
        durable: Whether a version is on the disk when it is published, so that it survives a crash of the machine.
            The background thread waits for the disk.
        signing_key: A file that `paramsync keys new` made: versions are signed, for inferencers that serve no others.
        on_error: "log", or "raise": a publication that failed raises PublishError once, at the next call.
        allow_nan: Whether to publish parameters that are NaN or infinite. Otherwise such a publication fails with
            NotFiniteError and counts as `refused`: the previous version stays the latest.
        precision: "bfloat16" rounds float32 values to bfloat16. They stay float32 in the files, with low bytes of zero:
            a version then travels to a bucket as a small part of its size (see docs/beyond-one-machine.md).
        allow_ops: Ops that followers are configured to allow, in addition to ops that only compute.
        publish_if: Publishes a step that is due only if the gate lets it through: the name of a metric, such as
            "val_loss", that must not get worse than that of the newest version, or a function of the metrics, called on
            the thread that trains. A step that the gate holds back, or that comes without metrics, stays due, and is in
            the status. The gate is not asked about `publish`, an operator's request, and a start with `at_start=True`.
        control_port: Where an operator is answered while the publisher is open: `paramsync status`, and `paramsync sync
            --fresh`, whose request is met at the next call of `publish_if_due`. 0 is any free port; `control` has the
            address. Without it gRPC is not imported.
        host: The address that the control port listens on.
        tls: The certificate that the control port shows; see TlsFiles.

    Raises, when made: SettingsError, StoreError (StoreLockedError for a second publisher), GraphError for a model that
    cannot be captured, such as a model that is not built yet, and UnsafeGraphError for a model with ops that followers
    refuse, such as a function in Python.
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
        self._since: Moment | None = None  # the last snapshot, or the start of the counting
        self._seen: tuple[int, Metrics | None, Values | None] | None = None  # the arguments of the last call
        self._raised: str | None = None  # the text of the last raised failure
        self._warned = False  # whether it warned about steps that go back
        self._lost = False  # whether it raised that another publisher has the bucket
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
        self._empty, self._before = _latest(self._store)  # emptiness and latest metrics at the start
        self._begun: int | None = None  # the step that the latest version already covers
        self._pinned: Metrics = self._before  # the metrics of the last publication, written or not
        self._precision = options.get("precision") or ""
        write = SnapshotWriter(self._store, finite=not options.get("allow_nan", False)).write
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
        """Publish values of JAX, PyTorch, numpy or anything else, for a graph that `paramsync graph publish` put there.

            with Publisher.of_graph(store, schedule=PublishSchedule(every_seconds=1)) as publisher:
                for step in range(steps):
                    train_step()
                    publisher.publish_if_due(step, values=lambda: {v.path: v.value for v in model.variables})

        Imports neither TensorFlow nor Keras. `digest` names the graph if the store has several. If `store` is the
        address of a bucket, `graph` is the directory that `paramsync graph publish` put the graph into.

        The values of each publication are named as in checkpoints, or by Keras' path or TensorFlow's name of the
        variable. Values that training may write to, such as arrays of numpy and tensors of PyTorch, are copied on the
        thread that trains. Arrays of JAX are not copied on the CPU, and elsewhere on their device; a step may take
        their memory (donate). With `copy=False` nothing is copied, and training must not change published values until
        they are written. `options` are the constructor's. Raises as the constructor does, and SettingsError if
        the graph is not in the store.
        """
        if graph is None:
            if "://" in str(store):
                raise SettingsError(f"of_graph({str(store)!r}): expected graph=DIR with it, found none")
            graph = store
        return cls(store, ExternalValues.in_store(Path(graph), digest, copy=copy), schedule=schedule, **options)

    def begin(self, step: int, *, values: Values | None = None) -> Version | None:
        """Begin at this step, before anything is trained: publish it if the schedule wants the start.

        Optional. If the store has versions, and no step comes after this one, the end is not published either.
        """
        self._begun = None if self._empty else step_number(step)
        return self.publish_if_due(step, values=values)

    def publish_if_due(
        self, step: int, metrics: Metrics | None = None, *, values: Values | None = None
    ) -> Version | None:
        """Publish this step if the schedule or a `request` wants it; costs about a microsecond if not.

        Returns the version that is being written, or None. The version is visible once it is committed. `values` are
        for publishers `of_graph` only: the parameters by name, or a function that returns them. Raises ParameterError
        for values that do not fit the graph.
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
        """Whether `publish_if_due` would publish this step now, or ask the gate; known before metrics are computed."""
        now = time.monotonic() if now is None else now
        return bool(self._requests) or self._schedule.due(step, now, since=self._since, empty=self._empty)

    def publish(
        self, step: int, *, wait: bool = False, metrics: Metrics | None = None, values: Values | None = None
    ) -> Version:
        """Publish this step now. With `wait`, returns the version once committed, or raises PublishError."""
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
            self._raised = self._behind.take_error()  # this call raises the error
            raise

    def finish(self, step: int, metrics: Metrics | None = None, *, values: Values | None = None) -> Version | None:
        """End training: publish the last step if the schedule or a request wants it, and wait for the writer.

        Requests are refused from here on. Returns the last committed version. Leaving the `with` block does the same.
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

        With `in_bucket`, the listener gets each version that is in the bucket; several at once may come to be there as
        one. Raises SettingsError for a store that is not in a bucket.
        """
        if not in_bucket:
            self._behind.subscribe(listener)
        elif self._outgoing is None:
            raise SettingsError(f"in_bucket: expected a publisher to a bucket, found store {self._store.path}")
        else:
            self._outgoing.subscribe(listener)

    def status(self) -> PublisherStatus:
        """How publishing goes, as one value."""
        status = replace(self._behind.status(), held_back=self._gate.held_back if self._gate else None)
        if self._outgoing is None:
            return status
        bucket = self._outgoing.status()
        return replace(status, last_error=status.last_error or bucket.reason or None, bucket=bucket)

    @property
    def mirror(self) -> MirrorChild | None:
        """The mirror that takes versions to a bucket, if the store is the address of one."""
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
        """Write waiting values, answer requests, release the store. Publishes nothing new; may be called again."""
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
        self._seen = None  # refused values are not tried again at the end
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
        """Whether the model has other values than the last version: callbacks may restore weights at the end."""
        if not self._is_live:
            return False  # values come with the call, so none can be newer
        try:
            pinned = self._source.pin()
        except StructureError:
            return True  # reported like any publication that fails
        return self._source.digest != published.graph or not self._store.has(rounded(fetch(pinned), self._precision))

    def _is_held_back(self, step: int, metrics: Metrics | None) -> bool:
        """Whether the gate holds back a step that is due."""
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
        """Raise the error of an earlier publication, unless it was `raised` already."""
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
        """Have the control port report this publisher from now on."""
        from paramsync.publishing.control_port import Training  # here: as for ControlPort

        device = device_name() if self._is_live else ""
        control.training_begins(Training(publisher=self, device=device))
        place = self._store.path if self._outgoing is None else self._outgoing.address
        _log.info("publisher ready: control %s, store %s", control.address, place)

    def _close_control(self) -> None:
        control, self._control = self._control, None
        if control is not None:
            control.close()


def _outgoing(store: str | Path | StoreWriter | Outgoing, options: PublishOptions) -> Outgoing | None:
    """The way into a bucket, if the store is in one."""
    if isinstance(store, (Path, StoreWriter)) or (isinstance(store, str) and "://" not in store):
        return None
    from paramsync.remote.outgoing import Outgoing  # here: most publishers need no package for buckets

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
    from paramsync.publishing.control_port import ControlPort  # here: gRPC is imported only for a port
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
    """Whether the store has no version, and the metrics of its latest version."""
    try:
        latest = store.latest()
    except ParamsyncError:  # the store is not empty
        return False, {}
    return latest is None, latest.metrics if latest else {}


def _live(source: Any, averages: Averages | None, allow_ops: Collection[str]) -> LiveVariables:
    from paramsync.graphs.capturing import Capture, capture  # here: values of other frameworks need no TensorFlow
    from paramsync.publishing.live_variables import LiveVariables

    captured = source if isinstance(source, Capture) else capture(source)
    return LiveVariables(captured, averages, allow_ops=allow_ops)
