"""Several buckets with the same versions, as in two regions: the first that answers is followed."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TypeVar

from paramsync.errors import NotFollowedError, RemoteError, SettingsError
from paramsync.remote.bucket import Bucket, naming

_PATIENCE = 3.0  # how long a bucket may take to answer if another bucket can replace it
_FIRST_PAUSE, _LAST_PAUSE = 1.0, 12.0  # seconds until a bucket that failed is asked again, at the next look
T = TypeVar("T")


class NoVersionError(RemoteError):
    """A bucket has no version yet."""

    def __init__(self) -> None:
        super().__init__("nothing is published there yet")


def addresses(text: str) -> list[str]:
    """Split a text at commas. The first address is to be followed, the others while the first does not answer."""
    return text.split(",")


def buckets(text: str) -> list[Bucket]:
    """Return the buckets at these addresses. Raises SettingsError."""
    found = addresses(text)
    made = [Bucket(address, patience=_PATIENCE if len(found) > 1 else None) for address in found]
    if len({bucket.address for bucket in made}) < len(made):  # checked last, because a wrong address may have a secret
        raise SettingsError(f"expected different addresses, found {text!r}")
    return made


class InOrder:
    """Makes calls with the first bucket that answers. One thread owns it."""

    def __init__(self, buckets: Sequence[Bucket], *, clock: Callable[[], float] = time.monotonic) -> None:
        self.buckets = buckets
        self._clock = clock
        self._problems: dict[Bucket, str] = {}  # why a bucket failed last
        self._pauses: dict[Bucket, tuple[float, float]] = {}  # when to ask it again, and the length of the pause
        self.costs_little = False
        """Whether the last calls failed without a transfer: no bucket answered, or none has a state to follow."""

    @property
    def problem(self) -> str:
        """Why the first bucket is not followed; "" while it is."""
        return self._problems.get(self.buckets[0], "")

    def first(self, call: Callable[[Bucket], T]) -> T:
        """Make a call with each bucket in order, until one succeeds. A bucket that failed is asked last for a while.

        If no call succeeds, raises the error of a single bucket. Of several buckets, raises NoVersionError if a bucket
        has no version, otherwise ConnectionError if a bucket did not answer, otherwise RemoteError.
        """
        errors: list[ConnectionError | RemoteError] = []
        now, self.costs_little = self._clock(), False
        transfers = False
        for bucket in sorted(self.buckets, key=lambda bucket: now < self._pauses.get(bucket, (0.0, 0.0))[0]):
            heard = bucket.answered_at
            try:
                done = call(bucket)
            except (ConnectionError, RemoteError) as error:
                errors.append(error)
                is_silent = isinstance(error, ConnectionError) and bucket.answered_at == heard
                transfers = transfers or not (is_silent or isinstance(error, NotFollowedError))
                self._problems[bucket] = naming(bucket.address, error)
                pause = min(2 * self._pauses.get(bucket, (0.0, _FIRST_PAUSE / 2))[1], _LAST_PAUSE)
                self._pauses[bucket] = self._clock() + pause, pause
            else:
                self._problems.pop(bucket, None)
                self._pauses.pop(bucket, None)
                return done
        self.costs_little = not transfers
        self._pauses.clear()  # all have failed: the next call asks in the given order again
        if len(self.buckets) == 1:
            raise errors[0]
        if empty := [error for error in errors if isinstance(error, NoVersionError)]:
            raise empty[0]
        kind = ConnectionError if any(isinstance(error, ConnectionError) for error in errors) else RemoteError
        raise kind("; ".join(self._problems.values()))
