"""What happens at a follower, as values, and how many listeners hear of it without ever holding it up."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Collection
from dataclasses import dataclass
from enum import Enum

from paramsync.sources.progress import Progress
from paramsync.version import Version

MOST_UNREAD = 256  # events that a subscriber may leave unread
_MOST_PROGRESS = 64  # unread events beyond which progress is left out


class EventKind(Enum):
    FOUND = "found"  # a version that was not the latest before is in the store
    RESTORING = "restoring"  # it is being restored; again, with progress, where that takes long
    RESTORED = "restored"  # it is in memory and was checked
    SWAPPED = "swapped"  # it serves
    QUARANTINED = "quarantined"  # it cannot be used, see reason


EVERY_KIND = frozenset(EventKind)


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """One thing that happened. `at` is in seconds since the epoch."""

    kind: EventKind
    model: str
    version: Version
    at: float
    reason: str = ""
    restore_seconds: float = 0.0
    progress: Progress | None = None


class Subscription:
    """The events of one follower from now on, of these kinds, for one listener. Any thread may use it.

    `wake` is called on the follower's thread after each event: it must return at once and must not raise. Where the
    listener leaves too many unread it has fallen behind, and nothing comes after those. Progress is left out before.
    """

    def __init__(
        self, wake: Callable[[], None], leave: Callable[[Subscription], None], kinds: Collection[EventKind]
    ) -> None:
        self._events: deque[Event] = deque()
        self._kinds = kinds
        self._wake = wake
        self._leave = leave
        self.fell_behind = False

    def put(self, event: Event) -> None:
        if event.kind not in self._kinds:
            return
        if event.kind is EventKind.RESTORING and event.progress is not None and len(self._events) >= _MOST_PROGRESS:
            return
        self.fell_behind = self.fell_behind or len(self._events) >= MOST_UNREAD
        if not self.fell_behind:
            self._events.append(event)
        self._wake()

    def take(self) -> list[Event]:
        """Every event since the last call, oldest first."""
        taken = []
        while True:
            try:
                taken.append(self._events.popleft())
            except IndexError:
                return taken

    def close(self) -> None:
        self._leave(self)


class Subscribers:
    """Who listens to one follower. Its lock is held to change the list, never while an event is delivered."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._members: tuple[Subscription, ...] = ()

    def add(self, wake: Callable[[], None], kinds: Collection[EventKind] = EVERY_KIND) -> Subscription:
        member = Subscription(wake, self._remove, kinds)
        with self._lock:
            self._members = (*self._members, member)
        return member

    def _remove(self, member: Subscription) -> None:
        with self._lock:
            self._members = tuple(one for one in self._members if one is not member)

    def tell(self, event: Event) -> None:
        for member in self._members:
            member.put(event)
