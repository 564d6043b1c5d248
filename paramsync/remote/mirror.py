"""A mirror copies the newest version of one store to another. At least one of the two stores is in a bucket.

It polls the source: a look is one check for a new version.
"""

from __future__ import annotations

import operator
import os
import random
import shutil
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from types import TracebackType

from paramsync.errors import EmptiedError, FencedError, NotFollowedError, ParamsyncError, RemoteError, SettingsError
from paramsync.host.files import Repeats, locked_folder
from paramsync.remote.bucket import Bucket, check_address, check_keep, is_address, naming
from paramsync.remote.bucket_status import BucketStatus, Copied
from paramsync.remote.download import Download
from paramsync.remote.in_order import InOrder, NoVersionError, buckets
from paramsync.remote.protocol import Answer
from paramsync.remote.transfer import Transfer
from paramsync.remote.upload import Claim, Upload
from paramsync.store.store import Store

BUSY, IDLE = 0.1, 2.0  # least and most seconds between two looks
_AWAY = 0.75  # most seconds between two looks at a bucket that does not answer, so that versions soon come again
_LOCAL = 0.02  # replaces BUSY for a local source, because a look there costs no request
_SHARE = 1 / 16  # the time between two looks, as a share of the time since the last version
_LONGEST = 12.0  # most seconds between two attempts after other errors, which may cost a transfer; chance adds up to 3
_END_SECONDS = 50.0  # how long to retry copying the last version at the end of training
_RANDOM = random.SystemRandom()


class Mirror:
    """Copies new versions of the store `source` to the store `target`. Each is a directory or the address of a bucket.

    One thread owns it.
    """

    def __init__(
        self,
        source: str,
        target: str,
        *,
        keep: int = 5,
        stop: threading.Event | None = None,
        claim: Claim | None = None,
        news: threading.Event | None = None,
        report: Callable[[BucketStatus], object] = lambda status: None,
    ) -> None:
        """`keep` is how many of the newest versions stay at the target. Retries end when `stop` is set.

        `source` may be several addresses, separated by commas: the first that answers is followed.

        Setting `news` makes this mirror look at once. `report` is called with each status that differs from the
        previous status.

        Raises SettingsError, StoreError.
        """
        self._sources = InOrder(buckets(source)) if "://" in source else None
        if "://" in target:
            check_address(target)
        if not is_address(source) and not is_address(target):
            found = f"found {source!r} and {target!r}"
            raise SettingsError(f"expected the address of a bucket, such as s3://bucket/models/m, on one side, {found}")
        check_keep(target, keep)
        self.source, self.target = source, target
        self.stop = stop or threading.Event()
        self.news = news or threading.Event()
        self._report = report
        self._is_away = False  # whether a bucket did not answer the last time
        self._reported: BucketStatus | None = None
        self._between: tuple[Path, int] | None = None  # the store between two buckets, and its lock
        self._down: Download | None = None
        self._up: Upload | None = None
        folder = Path(target)
        if self._sources is not None:
            if is_address(target):
                self._between = locked_folder("paramsync-mirror-", Path(tempfile.gettempdir()))
                folder = self._between[0]
            self._bucket = self._sources.buckets[0]
            self._down = Download(
                self._bucket, folder, keep=keep, stop=self.stop, between=target if is_address(target) else ""
            )
        else:
            folder = Path(source)
        if is_address(target):
            self._bucket = Bucket(target)
            self._up = Upload(Store(folder), self._bucket, keep=keep, stop=self.stop, claim=claim)
        every = [self._bucket] if self._sources is None or self._up is not None else self._sources.buckets
        addresses = ",".join(bucket.address for bucket in every)
        self.status = BucketStatus(address=self._bucket.address, addresses=addresses)

    def run_once(self) -> Transfer | None:
        """Copy the newest version, unless the target has it.

        Raises the errors of `Download.run_once` and `Upload.run_once`, after which the next call tries again. After
        FencedError, or EmptiedError of an upload, no further call can succeed.
        """
        try:
            if self._up is not None and self._is_away:
                self._check_answers()
            done = None
            if self._sources is not None:
                with suppress(NoVersionError):
                    done = self._sources.first(self._fetch)
            source = None if self._down is None else self._down.state
            if self._up is not None and (self._down is None or source is not None):
                self._up.run = "" if source is None else source.run
                self._up.choices = {} if self._down is None else self._down.choices
                done = self._up.run_once()
        except Exception as error:
            self._is_away = isinstance(error, ConnectionError)
            self._note(self.describe(error))
            raise
        self._is_away = False
        self._note("", done)
        return done

    def _heard(self) -> list[float]:
        """Return when a bucket of the source last answered, and when the target did. Omits a side without a bucket."""
        sides = [] if self._sources is None else [self._sources.buckets]
        sides += [] if self._up is None else [[self._bucket]]
        return [max(bucket.answered_at or 0.0 for bucket in side) for side in sides]

    def _check_answers(self) -> None:
        """Raise ConnectionError if the target does not answer yet, because sending a version would be in vain."""
        if self._bucket.look(None) is Answer.UNKNOWN:
            raise ConnectionError(f"{self._bucket.address}: {self._bucket.last_error}")

    def _fetch(self, bucket: Bucket) -> Transfer | None:
        assert self._down is not None
        self._down.turn_to(bucket)
        try:
            done = self._down.run_once()
        except EmptiedError as error:
            raise NotFollowedError(naming(bucket.address, error)) from error  # the state may come back
        if self._down.newest is None:
            raise NoVersionError
        if self._up is None:
            self._bucket = bucket
        return done

    @property
    def newest(self) -> int | None:
        """Number of the newest version in the bucket, as last seen here."""
        side = self._up if self._down is None else self._down
        return None if side is None else side.newest

    def describe(self, error: Exception) -> str:
        """Return the text of an error, with the address or path that it is about."""
        if isinstance(error, OSError) and error.strerror:
            return f"{error.filename or self.target}: {error.strerror}"
        address = self.target if self._sources is None else self._sources.buckets[0].address
        return naming(address, error) if isinstance(error, RemoteError) else str(error)

    def _note(self, reason: str, done: Transfer | None = None) -> None:
        """Report the status of this mirror. Also write it, with operators' choices, into a local copy for followers."""
        before = self.status
        waiting = () if self._down is None else self._down.waiting
        status = replace(
            before,
            address=self._bucket.address,
            reason=reason,
            answered_at=self._bucket.answered_at,
            newest=self.newest,
            behind=len(waiting),
            waiting_since=min((listed.at for listed in waiting if listed.at), default=None),
            failures=before.failures + bool(reason),
            clock="" if self._down is None else self._down.clock,
        )
        if done is not None:
            ways = {f"{done.way}_bytes": getattr(before, f"{done.way}_bytes") + done.bytes}
            status = replace(status, copied=_copied(done, time.time()), **ways)
        self.status = status
        if status.ageless() != self._reported:
            self._reported = status.ageless()
            self._report(status)
        if self._down is not None:
            self._down.note(status)

    def run(self, tell: Callable[[Transfer], object], complain: Callable[[str], object]) -> None:
        """Copy versions until `stop` is set; set `news` as well to end a wait. `tell` gets each copied version.

        `complain` gets the text of each new error, of each damage that a copy met, and of each change to another source
        bucket. Raises FencedError and EmptiedError if the target is a bucket.
        """
        last = time.monotonic()
        busy = _LOCAL if self._down is None else BUSY
        wait = busy
        repeats = Repeats()
        while not self.stop.is_set():
            address, heard = self.status.address, self._heard()
            try:
                done = self.run_once()
            except InterruptedError:
                return
            except (OSError, ParamsyncError) as error:
                if self._is_over(error):
                    raise
                if (told := repeats.text(self.describe(error))) is not None:
                    complain(told)
                is_silent = self._is_away and any(map(operator.eq, heard, self._heard()))
                costs_little = self._sources is not None and self._sources.costs_little
                wait = min(2 * max(wait, BUSY), _AWAY if is_silent else IDLE if costs_little else _LONGEST)
            else:
                repeats.over()
                if self.status.address != address:
                    why = "" if self._sources is None or not self._sources.problem else f": {self._sources.problem}"
                    complain(f"follows {self.status.address}{why}")
                if done is not None:
                    last = time.monotonic()
                    for damage in done.damages:
                        complain(damage)
                    tell(done)
                wait = pause(time.monotonic() - last, busy)
            self.news.wait(wait * _RANDOM.uniform(0.75, 1.25))
            self.news.clear()

    def finish(self, tell: Callable[[Transfer], object], complain: Callable[[str], object]) -> bool:
        """Copy the version that was published last, with retries. Returns False if the version could not be copied.

        Does nothing and returns True if this mirror has not taken over a bucket. Raises FencedError, EmptiedError.
        """
        if self._up is None or not self._up.has_begun:  # taking over the bucket now might fence off a successor
            return True
        end = time.monotonic() + _END_SECONDS
        while not self.stop.is_set():
            try:
                done = self.run_once()
                self._up.tell_end(is_over=True)
            except InterruptedError:
                return False
            except (OSError, ParamsyncError) as error:
                if self._is_over(error):
                    raise
                if time.monotonic() > end:
                    complain(f"the last version did not get into the bucket: {self.describe(error)}")
                    return False
                self.stop.wait(BUSY)
            else:
                if done is not None:  # this was the newest version, because nobody publishes any more
                    tell(done)
                return True
        return False

    def _is_over(self, error: Exception) -> bool:
        """Whether this mirror must not try again. If only the source is a bucket, its state may come back."""
        return self._up is not None and isinstance(error, (FencedError, EmptiedError))

    def close(self) -> None:
        """Unlock the local store, and remove it if it is between two buckets. May be called twice."""
        if self._down is not None:
            self._down.close()
        if self._between is not None:
            folder, lock = self._between
            self._between = None
            shutil.rmtree(folder, ignore_errors=True)
            os.close(lock)

    def __enter__(self) -> Mirror:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        self.close()


def pause(quiet: float, busy: float = BUSY) -> float:
    """Return the seconds until the next look, if the last version came `quiet` seconds ago."""
    return min(IDLE, max(busy, quiet * _SHARE))


def _copied(done: Transfer, now: float) -> Copied:
    version = done.version
    return Copied(
        number=version.number,
        step_done_at=version.step_done_at,
        published_at=version.committed_at or version.snapshot_at,
        in_bucket_at=done.at or None,
        here_at=now,
        way=done.way,
        deltas=done.deltas,
        bytes=done.bytes,
        size=done.size,
        seconds=done.seconds,
        traceparent=version.traceparent,
    )
