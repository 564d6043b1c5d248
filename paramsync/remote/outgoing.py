"""A publisher's way into a bucket: a local store in memory, and a mirror beside training that empties it."""

from __future__ import annotations

import logging
import shutil
import tempfile
from contextlib import ExitStack
from pathlib import Path

from paramsync.errors import RemoteError
from paramsync.remote import manifest as manifests
from paramsync.remote import state as states
from paramsync.remote.bucket import Bucket
from paramsync.remote.child import MirrorChild, memory
from paramsync.remote.protocol import Answer
from paramsync.store.commit import StoreWriter
from paramsync.store.store import Store
from paramsync.version import Version

_log = logging.getLogger("paramsync.trainer")

_LOCAL = 2  # versions in the local store; the bucket keeps the others


class Outgoing:
    """The local store of one publisher, at `path`, whose versions go to a bucket. Any thread.

    The store is removed once its last version is in the bucket, even if the publisher was killed.
    """

    def __init__(self, address: str, *, keep: int) -> None:
        """`keep` is how many of the newest versions the bucket lists. Raises SettingsError, RemoteError."""
        self.address = address
        self._closed = False
        bucket = Bucket(address)
        self.path = Path(tempfile.mkdtemp(prefix="paramsync-", dir=memory()))
        with ExitStack() as until_failure:
            until_failure.callback(shutil.rmtree, self.path, ignore_errors=True)
            self.child = MirrorChild(str(self.path), address, keep=keep)
            until_failure.callback(self.child.close, 0.0)
            self.child.wait_until_taken_over()
            self._latest = _newest(bucket)  # only now: until then an earlier publisher may add versions
            until_failure.pop_all()

    def writer(self, *, durable: bool = False, signing_key: Path | None = None) -> StoreWriter:
        """The writer of the local store, whose versions come after those in the bucket. Raises as StoreWriter does."""
        writer = StoreWriter(self.path, keep=_LOCAL, durable=durable, signing_key=signing_key)
        if self._latest is not None:
            writer.go_above(self._latest)
        return writer

    def give_up(self) -> None:
        """End the mirror at once, before anything is published, and remove the store."""
        self.child.close(0.0)
        shutil.rmtree(self.path, ignore_errors=True)

    def close(self) -> None:
        """Wait until the last version is in the bucket, at most a minute. A version that is not there yet is kept."""
        if self._closed:
            return
        self._closed = True
        if self.child.close() or (latest := Store(self.path).latest()) is None or self.child.copied == latest.number:
            shutil.rmtree(self.path, ignore_errors=True)
            return
        place = f"{self.path} keeps it"
        if not self.child.over:
            place += f", and this copies it: paramsync mirror {self.path} {self.address} --once"
        _log.error("version %d is not in the bucket: %s; %s", latest.number, self.child.reason or "no time left", place)


def _newest(bucket: Bucket) -> Version | None:
    """The newest version in a bucket. Raises RemoteError, also while the bucket does not answer."""
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
