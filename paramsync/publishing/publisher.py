"""Publisher: what a training loop calls to make its parameters visible, one step at a time."""

from __future__ import annotations

import logging
import operator
import sys
import threading
import time
from collections.abc import Callable, Collection
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypedDict, runtime_checkable

from paramsync.errors import ParamsyncError, PublishError, SettingsError, StoppedError, StructureError
from paramsync.publishing.external_values import ExternalValues, Values
from paramsync.publishing.metrics import Gate, Meter, Metrics, PublishIf
from paramsync.publishing.schedule import Moment, PublishSchedule
from paramsync.publishing.write_behind import (
    PublisherStatus,
    Snapshot,
    SnapshotWriter,
    WriteBehind,
    device_name,
    fetch,
)
from paramsync.rpc.addresses import HOST
from paramsync.store.commit import StoreWriter
from paramsync.store.retention import Retention
from paramsync.version import NUMBERS, Version

if TYPE_CHECKING:
    import keras
    import tensorflow as tf
    from typing_extensions import Self, Unpack

    from paramsync.graphs.capturing import Capture
    from paramsync.publishing.control_port import ControlPort
    from paramsync.publishing.live_variables import Averages, LiveVariables
    from paramsync.rpc.tls import TlsFiles

_log = logging.getLogger("paramsync.trainer")
OnError = Literal["log", "raise"]
_TLS = ("tls_cert", "tls_key", "tls_client_ca")


class PublishOptions(TypedDict, total=False):
    """What Publisher takes, whatever it publishes."""

    keep: int
    keep_for: float | None
    keep_every: float | None
    durable: bool
    on_error: OnError
    allow_nan: bool
    allow_ops: Collection[str]
    publish_if: PublishIf | None
    control_port: int | None
    host: str
    tls_cert: str | Path | None
    tls_key: str | Path | None
    tls_client_ca: str | Path | None
    signing_key: str | Path | None


def check_options(options: PublishOptions) -> None:
    """Raises TypeError for others, and SettingsError for what can be seen to be wrong before there is a publisher."""
    if others := options.keys() - PublishOptions.__annotations__.keys():
        raise TypeError(f"unexpected keyword arguments: {', '.join(sorted(others))}")
    if (publish_if := options.get("publish_if")) is not None:
        Gate(publish_if)
    Retention(keep=options.get("keep", 5), keep_for=options.get("keep_for"), keep_every=options.get("keep_every"))
    _port_tls(options.get("control_port"), *(options.get(name) for name in _TLS))


@runtime_checkable
class ValueSource(Protocol):
    """Where the values of a publication come from, and the graph that they are for."""

    digest: str
    content: bytes  # of the graph file; another one after a `pin` that found another structure

    def pin(self, values: Any = None) -> dict[str, Any]:
        """The values of this step by their keys in a checkpoint, so that no later step changes them.

        `values` is what the publisher's caller gave, or None. Raises StructureError where the structure has changed and
        cannot be published.
        """


class Publisher:
    """The one publisher of a store.

        with Publisher(store, model, schedule=PublishSchedule(every_seconds=1)) as publisher:
            for step in range(steps):
                train_step()
                publisher.publish_if_due(step)

    Leaving the block without an error is the end of training: where the schedule has `at_end`, the step that was seen
    last is published, with the values that the variables have then. Call `finish` to say another step. Without a
    `schedule`, the loop calls `publish` when it wants to.

    `publish_if_due`, `publish` and `finish` belong to the thread that trains: they pin the values of the step in
    microseconds a variable, and one thread in the background writes them. Where publications come faster than they can
    be written, the newest wins and the others count as skipped. `request`, `status` and `subscribe` may be called from
    any thread.

    A publication that fails in the background is logged and in the status, and training goes on; with
    `on_error="raise"` it is raised once, as PublishError at the next call. Parameters that are NaN or infinite are such
    a failure, NotFiniteError, and count as `refused`: the version before stays the latest, unless `allow_nan`. Metrics
    may be tensors still being computed; one that is no number is left out with a warning. A step is a whole number,
    also of another framework, or a variable that holds one; anything else is a SettingsError at the call. One lower
    than the one before is published under a number that rises all the same, with one warning.

    The first step seen is published where the store has no version yet, so that a training that begins anew does not
    take the place of what was trained before (see PublishSchedule). With `publish_if`, what is due is published only
    where that says so, the last step too: a metric's name, such as "val_loss", which must not get worse than that of
    the newest version, or a function of the metrics. What it holds back, and what comes without metrics, stays due, and
    is in the status. It is asked on the thread that trains, and waits for the metrics it looks at. `publish`, an
    operator's request, and a start that the schedule says `at_start=True` of are not asked about.

    With `control_port`, an operator is answered there while the publisher is open: `paramsync status`, and
    `paramsync sync --fresh`, whose request is met at the next call of `publish_if_due`. 0 is any free port, `control`
    says which; `host` is the address to listen on. With the files `tls_cert` and `tls_key` the port speaks TLS, with
    `tls_client_ca` callers show a certificate that was signed so; the files are read again when they change. Without
    `control_port` gRPC is not imported.

    With `durable`, a version is on the disk when it is published, and survives the machine's end too; that costs what
    the disk takes, in the background. With the file of a `signing_key`, as `paramsync keys new` makes it, versions are
    signed, for inferencers that serve no others. The `keep` newest versions stay in the store; with `keep_for` older
    ones stay for as many seconds, with `keep_every` of these one for each period of as many seconds. `store` is its
    directory, or one open already, with its own `keep`, `keep_for`, `keep_every`, `durable` and `signing_key`.

    What is published is a model, or the Capture of anything else that has variables: a function, several signatures,
    a model that has to be told its inputs. `averages` gives the variable that is published in place of another, as
    `tf.train.ExponentialMovingAverage.average` does. For values of other frameworks, see `of_graph`.

    Raises, when made: SettingsError, StoreError (StoreLockedError for a second publisher), GraphError for a model that
    cannot be captured, such as one not built yet, and UnsafeGraphError for one with ops that followers refuse, such as
    a function in Python. Where followers were told to allow an op, `allow_ops` does so here.
    """

    def __init__(
        self,
        store: str | Path | StoreWriter,
        source: keras.Model | tf.Module | Capture | ValueSource,
        *,
        schedule: PublishSchedule | None = None,
        keep: int = 5,
        keep_for: float | None = None,
        keep_every: float | None = None,
        durable: bool = False,
        on_error: OnError = "log",
        averages: Averages | None = None,
        allow_nan: bool = False,
        allow_ops: Collection[str] = (),
        publish_if: PublishIf | None = None,
        control_port: int | None = None,
        host: str = HOST,
        tls_cert: str | Path | None = None,
        tls_key: str | Path | None = None,
        tls_client_ca: str | Path | None = None,
        signing_key: str | Path | None = None,
    ) -> None:
        if on_error not in ("log", "raise"):
            raise SettingsError(f'on_error: expected "log" or "raise", found {on_error!r}')
        tls = _port_tls(control_port, tls_cert, tls_key, tls_client_ca)
        self._gate = None if publish_if is None else Gate(publish_if)
        self._is_live = not isinstance(source, ValueSource)
        self._source = source if isinstance(source, ValueSource) else _live(source, averages, allow_ops)
        self._schedule = PublishSchedule() if schedule is None else schedule
        self._raise = on_error == "raise"
        self._since: Moment | None = None  # the last snapshot, or where the counting began
        self._seen: tuple[int, Metrics | None, Values | None] | None = None  # the arguments of the last call
        self._told: str | None = None  # the last failure that was raised
        self._warned = False  # of steps that fall back
        self._lock = threading.Lock()  # guards the next two
        self._requests: list[Future[Version]] = []
        self._accepting = True
        self.meter = Meter()
        path = store.path if isinstance(store, StoreWriter) else Path(store)
        self._control = None if control_port is None else _listening(host, control_port, path, tls)
        try:
            key = None if signing_key is None else Path(signing_key)
            self._store = (
                store
                if isinstance(store, StoreWriter)
                else StoreWriter(
                    path, keep=keep, keep_for=keep_for, keep_every=keep_every, durable=durable, signing_key=key
                )
            )
        except BaseException:
            self._hang_up()
            raise
        self._empty, self._before = _found(self._store)  # at the start; and the metrics of its latest version
        self._begun: int | None = None  # the step that stands for that version
        self._pinned: Metrics = self._before  # of the last publication, whether or not it is written
        self._behind: WriteBehind[Snapshot] = WriteBehind(SnapshotWriter(self._store, finite=not allow_nan).write)
        self._behind.start()
        if self._control is not None:
            self._answer(self._control)

    @classmethod
    def of_graph(
        cls,
        store: str | Path,
        digest: str | None = None,
        *,
        schedule: PublishSchedule | None = None,
        copy: bool = True,
        **options: Unpack[PublishOptions],
    ) -> Publisher:
        """Publish values of JAX, PyTorch, numpy or anything else, for a graph that `paramsync graph publish` put there.

            with Publisher.of_graph(store, schedule=PublishSchedule(every_seconds=1)) as publisher:
                for step in range(steps):
                    train_step()
                    publisher.publish_if_due(step, values=lambda: {v.path: v.value for v in model.variables})

        Imports neither TensorFlow nor Keras. `digest` says which graph, where there are several.

        The values of each publication come by name: the one in checkpoints, or Keras' path or TensorFlow's name of the
        variable. What training may write to, such as arrays of numpy and tensors of PyTorch, is copied on the thread
        that trains. Arrays of JAX are not copied on the CPU, and elsewhere on their device; a step may be given their
        memory (donate). With `copy=False` nothing is copied, and whoever trains leaves alone what was published until
        it is written. `options` are those of the constructor. Raises as it does, and SettingsError where the graph is
        not there.
        """
        return cls(store, ExternalValues.in_store(Path(store), digest, copy=copy), schedule=schedule, **options)

    def begin(self, step: int, *, values: Values | None = None) -> Version | None:
        """Training begins at this step, of which nothing is trained yet: publish it where the schedule wants the start.

        Optional. Where the store has versions, and no step comes after this one, the end is not published either.
        """
        self._begun = None if self._empty else step_number(step)
        return self.publish_if_due(step, values=values)

    def publish_if_due(
        self, step: int, metrics: Metrics | None = None, *, values: Values | None = None
    ) -> Version | None:
        """Publish this step where the schedule or somebody's `request` wants it; costs about a microsecond where not.

        Returns the version that is being written, or None. It is visible once it is committed. `values` are those of
        the parameters by name, or a function that gives them: for publishers `of_graph` only, which raise
        ParameterError for what does not fit the graph.
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
        """Whether `publish_if_due` would publish this step now; for who has to know before metrics are computed.

        With `publish_if`: whether it would ask that.
        """
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
            self._told = self._behind.take_error()  # it surfaces here
            raise

    def finish(self, step: int, metrics: Metrics | None = None, *, values: Values | None = None) -> Version | None:
        """Training is over: publish its last step where the schedule or a request wants that, and wait for the writer.

        Requests are refused from here on. Returns the last committed version. Leaving the `with` block does the same.
        """
        return self._finish(step, metrics, values)

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
        return replace(self._behind.status(), held_back=self._gate.held_back if self._gate else None)

    @property
    def control(self) -> str | None:
        """Where an operator is answered; None where nobody is."""
        return None if self._control is None else self._control.address

    def flush(self, timeout: float | None = None) -> bool:
        """Wait until everything is written; False where that takes longer than `timeout` seconds."""
        done = self._behind.flush(timeout)
        self._surface()
        return done

    def close(self) -> None:
        """Write what waits, answer who waits, give the store up. Publishes nothing by itself; may be called again."""
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
            self._release(finished=not isinstance(error, Exception))  # Ctrl-C is somebody's wish
        if error is None:
            self._surface()

    def _publish(
        self, step: int, now: float, metrics: Metrics | None, values: Values | None, *waiting: Future[Version]
    ) -> Version:
        self._seen = None  # values that are refused here are not tried again at the end
        self._warn_of_lower(step)
        done_at = time.time()
        try:
            pinned, problem = self._source.pin(values), ""
        except StructureError as error:  # told like any publication that fails, on the writing thread
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
            context=_trace_context(),
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
        told = self._told if self._since is not None and self._since.step == step else None
        if self._requests or (due and not self._is_held_back(step, metrics)):
            self._publish(step, time.monotonic(), metrics, values)
        self._behind.flush(None)
        self._surface(told)
        return self.status().published

    def _has_changed(self, published: Version) -> bool:
        """Whether the model has other values than this version, the last one: some are restored where training ends."""
        if not self._is_live:
            return False  # values are given at the call: there are none of a later time
        try:
            pinned = self._source.pin()
        except StructureError:
            return True  # told like any publication that fails
        return self._source.digest != published.graph or not self._store.has(fetch(pinned))

    def _is_held_back(self, step: int, metrics: Metrics | None) -> bool:
        """Whether the gate keeps a step that is due from being published."""
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

    def _surface(self, told: str | None = None) -> None:
        """Raise the error of an earlier publication, unless the caller was `told` of it."""
        if self._raise and (error := self._behind.take_error()) not in (None, told):
            self._told = error
            raise PublishError(f"an earlier publication failed: {error}")

    def _release(self, *, finished: bool = True) -> None:
        with self._lock:
            self._accepting = False
            requests, self._requests = self._requests, []
        for future in requests:
            if future.set_running_or_notify_cancel():
                future.set_exception(StoppedError())
        self._behind.close()
        self._store.close(finished=finished)
        self._hang_up()

    def _answer(self, control: ControlPort) -> None:
        """Have the control port tell of this publisher from now on."""
        from paramsync.publishing.control_port import Training  # here: gRPC is imported by who wants it

        device = device_name() if self._is_live else ""
        control.training_begins(Training(publisher=self, meter=self.meter, device=device))
        _log.info("publisher ready: control %s, store %s", control.address, self._store.path)

    def _hang_up(self) -> None:
        control, self._control = self._control, None
        if control is not None:
            control.close()


def step_number(step: Any) -> int:
    """A step as an int: from a whole number of any framework, or a variable that holds one.

    Raises SettingsError for anything else, and for numbers that no version has: below 0, or of more than 18 digits.
    """
    number: int = step if type(step) is int else _whole(step)
    if not 0 <= number < NUMBERS:
        raise SettingsError(f"step: expected a whole number from 0 to {NUMBERS - 1}, found {number}")
    return number


def _whole(step: Any) -> int:
    try:
        held = step.numpy() if hasattr(step, "numpy") else step  # of a variable, or a tensor
        return int(operator.index(held))
    except TypeError as error:
        raise SettingsError(f"step: expected a whole number, found {type(step).__name__} {step!r:.80}") from error


def _port_tls(port: int | None, *given: Any) -> TlsFiles | None:
    """What a control port shows, of the files that the options of `_TLS` name. Raises SettingsError."""
    files = {name: Path(file) for name, file in zip(_TLS, given, strict=True) if file is not None}
    if not files:
        return None
    if port is None:
        raise SettingsError(f"{next(iter(files))}: expected control_port with it, found none")
    from paramsync.rpc.settings import KEYWORDS  # here: who speaks no TLS need not import it
    from paramsync.rpc.tls import tls_files

    return tls_files(*(files.get(name) for name in _TLS), options=KEYWORDS)


def _listening(host: str, port: int, store: Path, tls: TlsFiles | None) -> ControlPort:
    from paramsync.publishing.control_port import ControlPort  # here, too
    from paramsync.rpc.access import Access
    from paramsync.rpc.settings import KEYWORDS, tokens
    from paramsync.rpc.tls import ServerTls

    certificates = tls is not None and tls.client_ca is not None
    access = Access(host=host, tokens=tokens(), certificates=certificates, options=KEYWORDS)
    shown = None if tls is None else ServerTls(tls)
    return ControlPort(host, port, store=store, option="control_port", access=access, tls=shown)


def _trace_context() -> Any:
    """Which span is open on this thread; None where nobody has imported OpenTelemetry."""
    current = getattr(sys.modules.get("opentelemetry.context"), "get_current", None)
    return None if current is None else current()


def _found(store: StoreWriter) -> tuple[bool, Metrics]:
    """Whether the store has no version, and the metrics of its latest."""
    try:
        latest = store.latest()
    except ParamsyncError:  # something is there
        return False, {}
    return latest is None, latest.metrics if latest else {}


def _live(source: Any, averages: Averages | None, allow_ops: Collection[str]) -> LiveVariables:
    from paramsync.graphs.capturing import Capture, capture  # here: publishing itself needs no TensorFlow
    from paramsync.publishing.live_variables import LiveVariables

    captured = source if isinstance(source, Capture) else capture(source)
    return LiveVariables(captured, averages, allow_ops=allow_ops)
