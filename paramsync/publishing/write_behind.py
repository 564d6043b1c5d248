"""WriteBehind: one thread that writes the newest item it was handed. Knows neither the items nor where they go."""

from __future__ import annotations

import atexit
import logging
import os
import threading
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, replace
from typing import Generic, TypeVar

from paramsync.errors import NotFiniteError, ParamsyncError, PublishError
from paramsync.version import Version

_log = logging.getLogger("paramsync.trainer")
T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class PublisherStatus:
    """How publishing goes. `last_error` is None when the last publication went well, `held_back` where none is."""

    published: Version | None = None
    publishes: int = 0  # committed by this publisher
    skipped: int = 0  # snapshots that a newer one overtook before they were written
    refused: int = 0  # snapshots that were not published because of their values
    last_error: str | None = None
    held_back: str | None = None  # the step that was due last and is not published, and why: a gate's words


@dataclass(frozen=True, slots=True)
class _Work(Generic[T]):
    item: T
    waiting: tuple[Future[Version], ...]


class WriteBehind(Generic[T]):
    """Writes items one after another on a thread of its own; of those that wait, only the newest is written.

    Callers that wait for an item which is overtaken get the version of the item that overtook it. One lock guards all
    fields; it is not held while writing.
    """

    def __init__(self, write: Callable[[T], Version]) -> None:
        self._write = write
        self._changed = threading.Condition()
        self._next: _Work[T] | None = None
        self._busy = False
        self._closed = False
        self._status = PublisherStatus()
        self._error: str | None = None
        self._listeners: tuple[Callable[[Version], None], ...] = ()
        self._thread = threading.Thread(target=self._run, name="publisher", daemon=True)

    def start(self) -> None:
        """Begin to write. Without it, `run_once` does. At the interpreter's end, what waits is written before that."""
        self._thread.start()
        atexit.register(self._end, os.getpid())

    def subscribe(self, listener: Callable[[Version], None]) -> None:
        """Call this with every version once it is committed, on the writing thread: it must not block."""
        with self._changed:
            self._listeners = (*self._listeners, listener)

    def put(self, item: T, *waiting: Future[Version]) -> None:
        """Write this next, in place of what has been waiting; then resolve the futures. PublishError once closed."""
        with self._changed:
            if self._closed:
                raise PublishError("the publisher is closed")
            if self._next is not None:
                waiting = (*self._next.waiting, *waiting)
                self._status = replace(self._status, skipped=self._status.skipped + 1)
            self._next = _Work(item, waiting)
            self._changed.notify_all()

    def run_once(self) -> bool:
        """Write what waits; False where nothing does. An error goes to those who wait for it and into the status."""
        with self._changed:
            work, self._next = self._next, None
            self._busy = work is not None
        if work is None:
            return False
        try:
            version = self._write(work.item)
        except Exception as error:  # noqa: BLE001, the edge of the thread: training goes on whatever writing does
            self._failed(error, work.waiting)
        else:
            self._written(version, work.waiting)
        with self._changed:
            self._busy = False
            self._changed.notify_all()
        return True

    def flush(self, timeout: float | None) -> bool:
        """Wait until nothing waits to be written; False where that takes longer than `timeout` seconds."""
        self.check_thread()
        with self._changed:
            return self._changed.wait_for(lambda: self._next is None and not self._busy, timeout)

    def close(self) -> None:
        """Write what waits, then end the thread."""
        self.check_thread()
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        if self._thread.is_alive():
            self._thread.join()
        atexit.unregister(self._end)

    def check_thread(self) -> None:
        """Raises PublishError on the writing thread, where to wait for what it writes would be for ever."""
        if threading.current_thread() is self._thread:
            raise PublishError("expected another thread than the one that writes: a listener must not wait for it")

    def status(self) -> PublisherStatus:
        """How it goes, as one value."""
        return self._status

    def take_error(self) -> str | None:
        """The last error, unless it was taken already."""
        if self._error is None:  # asked at every step: without the lock
            return None
        with self._changed:
            error, self._error = self._error, None
        return error

    def _end(self, process: int) -> None:
        if os.getpid() == process:  # a forked child has no thread that writes
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
            # the text, not the error: its traceback would keep the whole snapshot in memory
            self._error = text
            again = self._status.last_error == text
            refused = self._status.refused + isinstance(error, NotFiniteError)
            self._status = replace(self._status, refused=refused, last_error=text)
        if not again:  # else it was said: a training that diverged would fill the log
            _log.error("a publication failed, training goes on: %s", text, exc_info=None if expected else error)
        for future in waiting:
            if future.set_running_or_notify_cancel():
                told = NotFiniteError(error.names) if isinstance(error, NotFiniteError) else PublishError(text)
                future.set_exception(told)
