"""Publishes to a bucket: the publisher writes to a local store in memory, and a mirror process copies its versions."""

from __future__ import annotations

import logging
import os
import shutil
import threading
from collections.abc import Callable
from contextlib import ExitStack, closing
from dataclasses import replace
from pathlib import Path

from paramsync.errors import RemoteError
from paramsync.host.files import locked_folder
from paramsync.remote import manifest as manifests
from paramsync.remote import state as states
from paramsync.remote.bucket import Bucket, check_keep
from paramsync.remote.bucket_status import BucketStatus, Copied
from paramsync.remote.child import MirrorChild, memory
from paramsync.remote.copy_span import trace_copy
from paramsync.remote.protocol import Answer
from paramsync.store.commit import StoreWriter
from paramsync.store.store import Store
from paramsync.version import Version

_log = logging.getLogger("paramsync.trainer")

_LOCAL = 2  # versions that the local store keeps
_MOST_WAITING = 256  # most versions in `_waiting`; listeners are not called for older versions
_PREFIX, _KEPT = "paramsync-out-", "paramsync-kept-"


class Outgoing:
    """The local store of one publisher, at `path`. After the call of `writer` its versions are copied to a bucket.

    `close` removes the store once its last version is in the bucket. If the publisher was killed, the mirror removes
    the store. If the mirror was killed, too, the next publisher on this machine removes the store. Any thread may use
    this object.
    """

    def __init__(self, address: str, *, keep: int) -> None:
        """`keep` is how many of the newest versions the bucket lists. Raises SettingsError."""
        check_keep(address, keep)
        self.address = address
        self.child: MirrorChild | None = None
        self._bucket = Bucket(address)
        self._keep = keep
        self._closed = False
        self._changing = threading.Lock()  # guards the next three fields
        self._waiting: dict[int, Version] = {}  # versions that are not in the bucket yet
        self._waiting_since = 0.0  # when the first waiting version was published, or when the last copy was made
        self._listeners: tuple[Callable[[Version], object], ...] = ()
        self.path, self._lock = locked_folder(_PREFIX, memory())

    def writer(self, *, durable: bool = False, signing_key: Path | None = None) -> StoreWriter:
        """Take over the bucket from an earlier publisher. Returns a writer that continues the bucket's numbers.

        Call this last, after everything else that can fail: a program that cannot publish, because its port is taken or
        its settings are wrong, must not stop an earlier publisher that works. Raises RemoteError, and the errors of
        StoreWriter.
        """
        with ExitStack() as until_failure:
            until_failure.callback(self.give_up)
            writer = StoreWriter(self.path, keep=_LOCAL, durable=durable, signing_key=signing_key)
            until_failure.enter_context(closing(writer))
            self.child = MirrorChild(
                str(self.path), self.address, keep=self._keep, lock=self._lock, on_copied=self._copied
            )
            self.child.wait_until_taken_over()
            newest = _newest(self._bucket)  # after the take-over, because an earlier publisher could add versions
            if newest is not None:
                writer.go_above(newest)
            until_failure.pop_all()
        return writer

    def subscribe(self, listener: Callable[[Version], object]) -> None:
        """Call `listener` with each version once it is in the bucket, on a thread that it must not block."""
        with self._changing:
            self._listeners = (*self._listeners, listener)

    def published(self, version: Version) -> None:
        """Note that a version was committed to the local store, and have the mirror send it."""
        with self._changing:
            if not self._waiting:
                self._waiting_since = version.committed_at or version.snapshot_at
            self._waiting[version.number] = version
            if len(self._waiting) > _MOST_WAITING:
                del self._waiting[min(self._waiting)]
        if self.child is None:
            return
        self.child.look()
        copied = self.child.status.copied
        if copied is not None and copied.number >= version.number:  # the mirror had copied it before this call
            self._copied(copied)

    def _copied(self, copied: Copied) -> None:
        with self._changing:
            version = self._waiting.get(copied.number)
            self._waiting = {number: waits for number, waits in self._waiting.items() if number > copied.number}
            self._waiting_since = copied.here_at
        if version is not None:  # None if `published` was not called yet, which will then call `_copied` again
            trace_copy("upload", copied)
            for listener in self._listeners:
                listener(version)

    def status(self) -> BucketStatus:
        """Return the status of the mirror, with how many versions wait and since when."""
        status = BucketStatus(address=self.address) if self.child is None else self.child.status
        with self._changing:
            newest = -1 if status.newest is None else status.newest
            # A version in `_waiting` may be in the bucket already, if the mirror died before it reported the copy.
            behind = sum(number > newest for number in self._waiting)
            return replace(status, behind=behind, waiting_since=self._waiting_since if behind else None)

    def give_up(self) -> None:
        """End the mirror at once and remove the store. For a publisher that fails before its first version."""
        if self._closed:
            return
        self._closed = True
        if self.child is not None:
            self.child.close(0.0)
        self._remove()

    def close(self) -> None:
        """Wait at most a minute until the last version is in the bucket. If it is not, keep the store for a person."""
        if self._closed:
            return
        self._closed = True
        if self.child is None or self.child.close():
            self._remove()
            return
        latest = Store(self.path).latest()
        if latest is None or self.child.newest == latest.number:
            self._remove()
            return
        kept = keep_aside(self.path)
        os.close(self._lock)
        place = f"{kept} keeps it"
        if not self.child.over:
            place += f", and this copies it: paramsync mirror {kept} {self.address} --once"
        _log.error("version %d is not in the bucket: %s; %s", latest.number, self.child.reason or "no time left", place)

    def _remove(self) -> None:
        shutil.rmtree(self.path, ignore_errors=True)
        os.close(self._lock)


def keep_aside(store: Path) -> Path:
    """Rename the local store of a publisher that has ended, so that no program removes it before a person looks."""
    kept = store.with_name(store.name.replace(_PREFIX, _KEPT, 1))
    store.rename(kept)
    return kept


def _newest(bucket: Bucket) -> Version | None:
    """Return the newest version in a bucket. Raises RemoteError, also while the bucket does not answer."""
    found = bucket.read()
    if found is Answer.MISSING:
        return None
    if found is None or isinstance(found, Answer):
        raise RemoteError(f"{bucket.address} does not answer: {bucket.last_error}")
    newest = states.from_json(found.content).newest
    if newest is None:
        return None
    try:
        content = bucket.get(newest.manifest, manifests.LIMIT)
    except (FileNotFoundError, ConnectionError) as error:
        raise RemoteError(f"{bucket.address}: version {newest.number} cannot be read: {error}") from error
    return manifests.from_json(content, name=newest.manifest, digest=newest.digest).version()
