"""Followers for tests, and helpers that read their state."""

from __future__ import annotations

import threading
import weakref
from pathlib import Path
from typing import final

from paramsync.following.follower import Follower
from paramsync.following.replica import Replica
from paramsync.following.report import Subscription
from paramsync.inference.resident import Resident
from paramsync.status import Event, EventKind

LONG = 30.0  # seconds; a test that waits this long has failed


@final
class _Silent:
    """A bell that never rings: the follower looks only when a test asks for it."""

    def arm(self) -> None: ...

    def close(self) -> None: ...


SILENT = _Silent()


def milestones(events: Subscription) -> list[Event]:
    """Return the events since the last call, except progress of long restores."""
    return [event for event in events.take() if event.kind is not EventKind.RESTORING or event.progress is None]


def serving(follower: Follower) -> int | None:
    version = follower.status().serving
    return None if version is None else version.number


def quarantined(follower: Follower) -> list[int]:
    return [one.number for one in follower.status().quarantined]


def saver_follower(path: Path) -> Follower:
    return Follower(Replica("m", path, inputs=["x:0"], outputs=["y:0"]), poll_seconds=60.0)


def freed_by(one: Resident) -> list[str]:
    """A list that will get the name of the thread that frees the parameters."""
    threads: list[str] = []
    weakref.finalize(one.parameters[0], lambda: threads.append(threading.current_thread().name))
    return threads
