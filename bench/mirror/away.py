"""What a server notices of two buckets that are away for `--seconds`, and of the first bucket's loss."""

from __future__ import annotations

import threading
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from bench.mirror.changing import NEVER, Counting, mirror, wait
from bench.publishing import INPUTS, Dense
from bench.settings import Settings
from paramsync import Follower, Publisher, Replica
from paramsync.errors import RemoteError
from paramsync.publishing.schedule import PublishSchedule
from paramsync.remote import copy_note
from paramsync.remote.bucket import Bucket
from paramsync.remote.child import follow

_EVERY = 1.0  # seconds from version to version
_STEADY = 10.0  # most seconds for which requests are counted before the bucket goes away
_ASK = 0.01  # seconds between two requests to the server


class _Region(Counting):
    """A proxy before the bucket, which loses every request while it is away."""

    is_away = False

    def _count(self, method: str, path: str) -> str:
        super()._count(method, path)
        return "request lost" if self.is_away else ""


class _Training:
    """Publishes a version every second until it is closed."""

    def __init__(self, store: Path, size: int) -> None:
        self._model, self._ended = Dense(size), threading.Event()
        self._publisher = Publisher(store, self._model, schedule=PublishSchedule(at_end=False))
        self.number = 0
        self._publish()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _publish(self) -> None:
        self._model.bias.assign([float(self.number)] * self._model.bias.shape[0])
        self._publisher.publish(self.number)

    def _run(self) -> None:
        while not self._ended.wait(_EVERY):
            self.number += 1
            self._publish()

    def close(self) -> None:
        self._ended.set()
        self._thread.join()
        self._publisher.close()


class _Asking:
    """Asks a replica all the time. `at` says when each version answered first."""

    def __init__(self, replica: Any) -> None:
        self._replica, self._ended = replica, threading.Event()
        self.requests = self.failed = self.back = 0
        self.at: dict[int, float] = {}
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        while not self._ended.wait(_ASK):
            self.requests += 1
            try:
                _, version = self._replica.predict({"x": INPUTS["dense"]})
            except Exception:  # noqa: BLE001, every kind of failure counts
                self.failed += 1
            else:
                self.back += version.number < max(self.at, default=-1)
                self.at.setdefault(version.number, time.monotonic())

    def close(self) -> None:
        self._ended.set()
        self._thread.join()


def _newest(bucket: Bucket) -> int | None:
    try:
        newest = bucket.state().newest
    except RemoteError:  # nothing is published there yet
        return None
    return None if newest is None else newest.number


def _followed(cache: Path) -> str:
    note = copy_note.read(cache)
    return note.status.address if note is not None and note.status is not None else ""


def run(given: Settings, folder: Path) -> dict[str, Any]:
    """Take the bucket away under load, bring it back, and then lose it while a second bucket goes on."""
    place = f"{given.address}/{time.time_ns()}"
    with ExitStack() as stack:
        first, second = stack.enter_context(_Region()), stack.enter_context(_Region())
        addresses = [f"{place}-{name}?endpoint={region.endpoint}" for name, region in (("1", first), ("2", second))]
        training = _Training(folder / "store", given.bytes)
        stack.callback(training.close)
        mirror(stack, folder / "store", addresses[0], folder / "first.log")
        wait(lambda: first.kinds["PUT"] > 2, lambda: "the first version")
        mirror(stack, addresses[0], addresses[1], folder / "second.log")
        cache = follow(",".join(addresses), owner := type("Owner", (), {})(), folder / "cache")
        follower = stack.enter_context(Follower(replica := Replica("bench", cache)))
        follower.sync(timeout=60)
        asking = _Asking(replica)
        stack.callback(asking.close)

        def serves(number: int) -> float:
            wait(lambda: max(asking.at, default=-1) >= number, lambda: str(follower.status()))
            return min(at for found, at in asking.at.items() if found >= number)

        counted = first.kinds.total()
        NEVER.wait(seconds := min(_STEADY, given.seconds))
        steady = (first.kinds.total() - counted) / seconds
        first.is_away = second.is_away = True
        counted = first.kinds.total()
        NEVER.wait(given.seconds)
        away = (first.kinds.total() - counted) / given.seconds
        newest, back = training.number, time.monotonic()
        first.is_away = second.is_away = False
        returned = serves(newest) - back
        training.close()
        second_bucket = Bucket(addresses[1])
        wait(lambda: _newest(second_bucket) == training.number, lambda: f"{_newest(second_bucket)} in the second")
        wait(lambda: _followed(cache) == addresses[0], lambda: _followed(cache))
        lost, first.is_away = time.monotonic(), True
        wait(lambda: _followed(cache) == addresses[1], lambda: _followed(cache))
        failed_over = time.monotonic() - lost
        assert owner
    row = {
        "away s": f"{given.seconds:g}",
        "requests": str(asking.requests),
        "failed": str(asking.failed),
        "backwards": str(asking.back),
        "steady GET, PUT /s": steady,
        "away /s": away,
        "newest back after s": returned,
        "second followed after s": failed_over,
    }
    return {"rows": {"away": [row]}}
