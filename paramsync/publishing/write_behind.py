"""Write-behind: one thread fetches the newest snapshot from its device and commits it to the store.

A snapshot refers to the values of all parameters at one step. TensorFlow is imported only for tensors of TensorFlow.
"""

from __future__ import annotations

import atexit
import logging
import os
import sys
import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from functools import cache
from typing import TYPE_CHECKING, Any, Generic, SupportsFloat, TypeVar

import ml_dtypes
import numpy as np

from paramsync.dtypes import Array
from paramsync.errors import NotFiniteError, ParamsyncError, PublishError, StructureError
from paramsync.host import files
from paramsync.host.files import Repeats
from paramsync.store.commit import StoreWriter
from paramsync.version import Version

if TYPE_CHECKING:
    from paramsync.remote.bucket_status import BucketStatus

PIECE = 64 << 20  # bytes fetched from a device at once

_LONG = 200  # the most characters of a metric's name

_log = logging.getLogger("paramsync.trainer")
T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class PublisherStatus:
    """The state of publishing. `last_error` is None if the last publication succeeded."""

    published: Version | None = None
    publishes: int = 0  # versions that this publisher committed
    skipped: int = 0  # snapshots that a newer snapshot replaced before they were written
    failed: int = 0  # snapshots that could not be published, whatever the reason
    refused: int = 0  # failures because of NaN or infinity
    last_error: str | None = None
    held_back: str | None = None  # the due step that the gate holds back, and the reason
    bucket: BucketStatus | None = None  # the state of copying to the bucket, if the store is in a bucket


class WriteBehind(Generic[T]):
    """Writes items on its own thread. Of several waiting items it writes only the newest.

    A caller whose item was replaced gets the version of the newer item. One lock guards all fields; it is not held
    while writing.
    """

    def __init__(self, write: Callable[[T], Version]) -> None:
        self._write = write
        self._changed = threading.Condition()
        self._next: tuple[T, tuple[Future[Version], ...]] | None = None  # the item, and the futures that wait for it
        self._busy = False
        self._closed = False
        self._status = PublisherStatus()
        self._error: str | None = None
        self._repeats = Repeats()  # used by the writing thread
        self._listeners: tuple[Callable[[Version], None], ...] = ()
        self._thread = threading.Thread(target=self._run, name="publisher", daemon=True)

    def start(self) -> None:
        """Start the thread. When the interpreter ends, the waiting item is still written."""
        self._thread.start()
        atexit.register(self._end, os.getpid())

    def subscribe(self, listener: Callable[[Version], None]) -> None:
        """Call `listener` with every committed version, on the writing thread: it must not block."""
        with self._changed:
            self._listeners = (*self._listeners, listener)

    def put(self, item: T, *waiting: Future[Version]) -> None:
        """Queue an item. It replaces an item that is still waiting, and takes over the futures of that item.

        The futures are resolved when the item is written. Raises PublishError after `close`.
        """
        with self._changed:
            if self._closed:
                raise PublishError("the publisher is closed")
            if self._next is not None:
                waiting = (*self._next[1], *waiting)
                self._status = replace(self._status, skipped=self._status.skipped + 1)
            self._next = item, waiting
            self._changed.notify_all()

    def run_once(self) -> bool:
        """Write the waiting item. Returns False if there is none. An error goes to the futures and into the status."""
        with self._changed:
            work, self._next = self._next, None
            self._busy = work is not None
        if work is None:
            return False
        item, waiting = work
        try:
            version = self._write(item)
        except Exception as error:  # noqa: BLE001, the edge of the thread: training goes on whatever writing does
            self._failed(error, waiting)
        else:
            self._written(version, waiting)
        with self._changed:
            self._busy = False
            self._changed.notify_all()
        return True

    def flush(self, timeout: float | None) -> bool:
        """Wait until everything is written; False after `timeout` seconds."""
        self.check_thread()
        with self._changed:
            return self._changed.wait_for(lambda: self._next is None and not self._busy, timeout)

    def close(self) -> None:
        """Write the waiting item, then end the thread."""
        self.check_thread()
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        if self._thread.is_alive():
            self._thread.join()
        atexit.unregister(self._end)

    def check_thread(self) -> None:
        """Raise PublishError on the writing thread, because this thread would wait for itself."""
        if threading.current_thread() is self._thread:
            raise PublishError("expected another thread than the one that writes: a listener must not wait for it")

    def status(self) -> PublisherStatus:
        """Return the state of publishing, as one value."""
        return self._status

    def take_error(self) -> str | None:
        """Return the last error once: the next call returns None."""
        if self._error is None:  # read without the lock, because every step calls this
            return None
        with self._changed:
            error, self._error = self._error, None
        return error

    def _end(self, process: int) -> None:
        if os.getpid() == process:  # a forked child has no writing thread
            self.close()

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._next is not None or self._closed)
            if not self.run_once():
                return

    def _written(self, version: Version, waiting: tuple[Future[Version], ...]) -> None:
        with self._changed:
            count = self._status.publishes + 1
            self._status = replace(self._status, published=version, publishes=count, last_error=None)
            listeners = self._listeners
        _log.debug("published version %d, step %d", version.number, version.step)
        if (failed := self._repeats.over()) > 1:
            _log.warning("version %d is published, after %d failures in a row", version.number, failed)
        for future in waiting:
            if future.set_running_or_notify_cancel():
                future.set_result(version)
        for listener in listeners:
            try:
                listener(version)
            except Exception:  # noqa: BLE001, somebody else's code must not end the publishing
                _log.exception("a listener failed at version %d", version.number)

    def _failed(self, error: Exception, waiting: tuple[Future[Version], ...]) -> None:
        text = str(error) or type(error).__name__
        expected = isinstance(error, (ParamsyncError, OSError))
        with self._changed:
            # Keep only the text, because the error's traceback would keep the whole snapshot in memory.
            self._error = text
            refused = self._status.refused + isinstance(error, NotFiniteError)
            failed = self._status.failed + 1
            self._status = replace(self._status, failed=failed, refused=refused, last_error=text)
        if (told := self._repeats.text(text)) is not None:  # None for a repeated error that is not logged
            _log.error("a publication failed, training goes on: %s", told, exc_info=None if expected else error)
        for future in waiting:
            if future.set_running_or_notify_cancel():
                failure = NotFiniteError(error.names) if isinstance(error, NotFiniteError) else PublishError(text)
                future.set_exception(failure)


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """The values of one step, until they are written.

    `values` are what the ValueSource pinned. Tensors of TensorFlow share the variables' buffers: variables are
    copy-on-write, so an update after the snapshot goes into a new buffer. This costs memory for as long as the snapshot
    lives. `metrics` may be tensors that are still being computed; they are read when the snapshot is written, not on
    the training thread. `graph` is the graph file. `problem` is the reason if there are no values. `context` is the
    span that was open when the snapshot was taken.
    """

    version: Version
    values: dict[str, Any]
    metrics: Mapping[str, SupportsFloat]
    graph: bytes = b""
    problem: str = ""
    context: Any = None

    def tensors(self) -> dict[str, Array]:
        """Return the tensors of a checkpoint, by key. Values in host memory are not copied; other values are fetched.

        A fetched value is released on its device. So a snapshot takes at most as much of the device's memory as the
        parameters and one piece.
        """
        return fetch(self.values, fetched=self.let_go)

    def let_go(self, name: str) -> None:
        """Release a value that was written. May be called from any thread."""
        self.values.pop(name, None)


def rounded(tensors: dict[str, Any], precision: str) -> dict[str, Any]:
    """Return the tensors. If the precision is "bfloat16", float32 values are rounded to the nearest bfloat16."""
    if precision != "bfloat16":
        return tensors
    arrays = {name: np.asarray(tensor) for name, tensor in tensors.items()}
    return {
        name: array.astype(ml_dtypes.bfloat16).astype(np.float32) if array.dtype == np.float32 else array
        for name, array in arrays.items()
    }


def trace_context() -> Any:
    """Return the span that is open on this thread; None if OpenTelemetry is not imported."""
    current = getattr(sys.modules.get("opentelemetry.context"), "get_current", None)
    return None if current is None else current()


class FrozenVariables:
    """Knows, without comparing values, which variables are unchanged since the last version. Belongs to one thread.

    TensorFlow's variables are copy-on-write: while the published buffer is referenced, an update goes into another
    buffer. So a variable that still has the published buffer still has the published values. A reference costs memory
    once its variable is updated. Therefore only buffers of variables that did not change between the last two versions
    are referenced. Variables that were rewritten with equal values are never referenced again.
    """

    def __init__(self) -> None:
        self._buffers: dict[str, Array] = {}
        self._rewritten: set[str] = set()

    def unchanged(self, tensors: Mapping[str, Array]) -> set[str]:
        """Return the names of tensors that still have the published buffers."""
        buffers = self._buffers
        return {name for name, buffer in buffers.items() if name in tensors and _is_at(tensors[name], buffer)}

    def note_published(self, snapshot: Snapshot, tensors: Mapping[str, Array], unchanged: Collection[str]) -> None:
        """Note that these tensors were committed, and which of them the store found `unchanged`."""
        self._rewritten.update(set(self._buffers).intersection(unchanged) - self.unchanged(tensors))
        self._buffers = {
            name: tensors[name]
            for name in unchanged
            if name not in self._rewritten and "CPU" in getattr(snapshot.values.get(name), "backing_device", "")
        }


class SnapshotWriter:
    """Commits snapshots to a store. One thread owns it."""

    def __init__(self, store: StoreWriter, **how: Any) -> None:
        """`how` is passed to each `StoreWriter.commit`."""
        self._store = store
        self._how = how
        self._metrics = MetricReader()
        self._frozen = FrozenVariables()

    def write(self, snapshot: Snapshot) -> Version:
        """Commit a snapshot, and return its version. Raises as `StoreWriter.commit` does, and StructureError."""
        if snapshot.problem:
            raise StructureError(snapshot.problem)
        if "opentelemetry.trace" not in sys.modules:  # without this module no tracer provider exists
            return self._written(snapshot)
        from paramsync.publishing.spans import traced

        return traced(snapshot.version, snapshot.context, lambda parent: self._written(snapshot, traceparent=parent))

    def _written(self, snapshot: Snapshot, *, traceparent: str = "") -> Version:
        self._store.add_graph(snapshot.version.graph, snapshot.graph)
        metrics = self._metrics.read(snapshot.metrics)
        version = replace(snapshot.version, metrics=metrics, traceparent=traceparent)
        tensors = snapshot.tensors()

        def let_go(name: str) -> None:  # lets training update the variable in place
            del tensors[name]
            snapshot.let_go(name)

        unchanged = self._frozen.unchanged(tensors)
        values = rounded(tensors, version.precision)
        version = self._store.commit(version, values, unchanged=unchanged, copied=let_go, **self._how)
        self._frozen.note_published(snapshot, tensors, self._store.unchanged)
        return version


class MetricReader:
    """Reads metrics as numbers. A metric that cannot be read or recorded is left out, with one warning per name.

    So a wrong metric never prevents a publication. Belongs to one thread.
    """

    def __init__(self) -> None:
        self._told: set[str] = set()

    def read(self, metrics: Mapping[str, SupportsFloat]) -> dict[str, float]:
        """Return the metrics as numbers. Waits for metrics that are still being computed."""
        read = {}
        for name, value in metrics.items():
            try:
                _check(name)
                read[name] = float(value)
            except Exception as error:  # noqa: BLE001, a value of any kind, perhaps computed on another device
                self._warn(name, error)
        return read

    def _warn(self, name: str, error: Exception) -> None:
        if name not in self._told:
            self._told.add(name)
            _log.warning("metric %s is left out of all versions it is no number in: %.300s", files.shown(name), error)


def _check(name: object) -> None:
    if not isinstance(name, str) or not name.isprintable() or len(name) > _LONG:
        raise ValueError(f"expected a name of at most {_LONG} characters that can be shown")


def device_name() -> str:
    """Describe the device. TensorFlow logs its devices at the first call."""
    import tensorflow as tf

    tf.config.list_logical_devices()
    gpus = tf.config.list_physical_devices("GPU")
    if not gpus:
        return "CPU"
    return f"GPU ({tf.config.experimental.get_device_details(gpus[0]).get('device_name', 'unknown')})"


def device_of(value: Any) -> str | None:
    """Return the accelerator that has a value in its memory; None for a value in the host's memory."""
    device: str = getattr(value, "backing_device", "")
    return device if device and "CPU" not in device else None


def fetch(
    values: Mapping[str, Any],
    *,
    away: Callable[[Any], str | None] = device_of,
    piece: int = PIECE,
    fetched: Callable[[str], object] = lambda name: None,
) -> dict[str, Array]:
    """Return all values as arrays. A value is fetched if `away` returns its device, and not copied if it returns None.

    1. The device concatenates values of one dtype into pieces of at most `piece` bytes. It makes one piece at a time,
       so that fetching takes no more device memory. A larger value is a piece by itself, and is not copied there.
    2. A TensorFlow function copies each piece into page-locked host memory while the device computes. A tensor's
       `.numpy()` would wait for the device each time.
    3. `fetched` is called with each name in the piece, so that the caller can release the value.

    The calling thread waits without the GIL. Raises TensorFlow's errors, such as ResourceExhaustedError if the device
    has no room for a piece.
    """
    places: dict[tuple[str, Any], list[str]] = {}
    arrays: dict[str, Array] = {}
    for name in values:
        device = away(values[name])
        if device is None:
            arrays[name] = np.asarray(values[name])
        else:
            places.setdefault((device, values[name].dtype), []).append(name)
    order = list(values)
    for names in places.values():
        sizes = [values[name].shape.num_elements() * values[name].dtype.size for name in names]
        for piece_names in divide(names, sizes, piece):
            arrays.update(_fetch_piece(piece_names, values))
            for name in piece_names:
                fetched(name)
    return {name: arrays[name] for name in order}


def divide(names: Sequence[str], sizes: Sequence[int], piece: int) -> Iterator[list[str]]:
    """Yield the names in order, in groups of at most `piece` bytes. A larger value is a group by itself."""
    group: list[str] = []
    room = piece
    for name, size in zip(names, sizes, strict=True):
        if group and size > room:
            yield group
            group, room = [], piece
        group.append(name)
        room -= size
    if group:
        yield group


def _fetch_piece(names: Sequence[str], values: Mapping[str, Any]) -> dict[str, Array]:
    whole = np.asarray(_gather()([values[name] for name in names]))
    ends = np.cumsum([values[name].shape.num_elements() for name in names])
    parts = np.split(whole, ends[:-1])
    return {name: part.reshape(values[name].shape) for name, part in zip(names, parts, strict=True)}


@cache
def _gather() -> Any:
    """Return the function that concatenates a piece. Pieces have the same shapes in all publications of a model."""
    import tensorflow as tf  # imported here, because values of other frameworks need no TensorFlow

    @tf.function(autograph=False)
    def gather(values: list[tf.Tensor]) -> tf.Tensor:
        flat = [tf.reshape(value, [-1]) for value in values]
        whole = tf.concat(flat, 0) if len(flat) > 1 else flat[0]
        with tf.device("/CPU:0"):
            return tf.identity(whole)

    return gather


def _is_at(first: Array, second: Array) -> bool:
    return bool(first.__array_interface__["data"] == second.__array_interface__["data"])
