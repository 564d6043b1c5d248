"""What operators ask of a follower, and when it has come true or never will. Knows no store and no replica."""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterable
from concurrent.futures import Future
from dataclasses import dataclass, field
from enum import Enum

from inferencer.status import Status
from paramsync.errors import ParamsyncError, SyncError, UnknownVersionError


class Action(Enum):
    SYNC = "sync"
    PIN = "pin"
    UNPIN = "unpin"


@dataclass(eq=False)
class Wish:
    """One call. `number` is the version asked for; that of a sync that names none is filled in when it is known."""

    action: Action
    number: int | None
    answer: Future[Status] = field(default_factory=Future)
    admitted: bool = False
    backward: bool = False  # a sync that names a version older than the one that serves


class Wishes:
    """The calls not answered yet, and the version pinned. A lock guards the list; the worker admits and settles.

    A pin is kept once it has come true. Until then it is tried: where it fails, where its caller leaves or another pin
    or unpin takes its place, what was kept before it stands.
    """

    def __init__(self) -> None:
        self._kept: int | None = None
        self._tried: Wish | None = None
        self._lock = threading.Lock()
        self._open: list[Wish] = []
        self._refusal: ParamsyncError | None = None

    def ask(self, action: Action, number: int | None) -> Future[Status]:
        wish = Wish(action, number)
        with self._lock:
            if self._refusal is None:
                self._open.append(wish)
            else:
                wish.answer.set_exception(self._refusal)
        wish.answer.add_done_callback(lambda _: self._take(wish))  # whose caller left is nobody's concern any more
        return wish.answer

    @property
    def pinned(self) -> int | None:
        """The version to serve and to stay at. For the worker."""
        tried = self._tried
        return self._kept if tried is None or tried.answer.done() else tried.number

    def fresh(self) -> list[Wish]:
        """What is new: to be taken before a look at the store, and admitted after it."""
        with self._lock:
            return [wish for wish in self._open if not wish.admitted]

    def admit(self, fresh: Iterable[Wish], status: Status, published: Collection[int] | None) -> set[int]:
        """Take up what can be judged now. Returns the versions it asks for: a quarantined one is tried once more.

        `published` is None where nobody knows; then unpin and what is about versions in memory can be judged.
        """
        for wish in fresh:
            if wish.action is Action.SYNC:
                wish.admitted = _sync_admitted(wish, status)
            elif wish.action is Action.UNPIN:
                self._kept, self._tried = None, None
                wish.admitted = True
            else:
                known = wish.number in status.resident or (published is not None and wish.number in published)
                self._tried = wish if known else self._tried
                wish.admitted = known or published is not None
        return {wish.number for wish in fresh if wish.admitted and wish.number is not None}

    def settle(self, status: Status, published: Collection[int] | None) -> None:
        """Answer every wish that has come true in `status` or never will. `published` is None where nobody knows."""
        with self._lock:
            waiting = [wish for wish in self._open if wish.admitted]
        outcomes = [(wish, _outcome(wish, status, published)) for wish in waiting]
        for wish, outcome in outcomes:
            if outcome is None or not self._take(wish):
                continue
            if _answer(wish, outcome) and wish.action is Action.PIN:
                self._kept = wish.number

    def refuse(self, error: ParamsyncError) -> None:
        """Answer everything, now and from now on, with this error."""
        with self._lock:
            self._refusal = error
            refused, self._open = self._open, []
        for wish in refused:
            _answer(wish, error)

    def _take(self, wish: Wish) -> bool:
        """Whether it was still open, which it is no longer."""
        with self._lock:
            there = wish in self._open
            if there:
                self._open.remove(wish)
        return there


def _sync_admitted(wish: Wish, status: Status) -> bool:
    if wish.number is not None:
        wish.backward = status.serving is not None and wish.number < status.serving.number
        return True
    if status.published is None or status.last_error is not None:  # nobody knows which is newest
        return False
    wish.number = status.published.number
    return True


def _outcome(wish: Wish, status: Status, published: Collection[int] | None) -> Status | ParamsyncError | None:
    """What to answer; None as long as it has to wait."""
    try:
        return status if fulfilled(wish, status, published) else None
    except (SyncError, UnknownVersionError) as error:
        return error


def _answer(wish: Wish, outcome: Status | ParamsyncError) -> bool:
    """Whether it came true and somebody was told so."""
    if not wish.answer.set_running_or_notify_cancel():
        return False
    if isinstance(outcome, ParamsyncError):
        wish.answer.set_exception(outcome)
        return False
    wish.answer.set_result(outcome)
    return True


def fulfilled(wish: Wish, status: Status, published: Collection[int] | None) -> bool:
    """Whether it has come true. Raises SyncError or UnknownVersionError, with the reason, where it never will."""
    if wish.action is Action.UNPIN:
        return True
    if wish.number is None:
        return False
    quarantined = status.quarantine_of(wish.number)
    if quarantined is not None:
        raise SyncError(f"version {wish.number} of model {status.model!r} is quarantined: {quarantined.reason}")
    serving = status.serving.number if status.serving else None
    if serving == wish.number and (wish.action is Action.SYNC or status.pinned == wish.number):
        return True
    if published is not None and _never_comes(wish, wish.number, status, published):
        raise UnknownVersionError(f"store {status.store}", wish.number, published)
    if wish.action is Action.PIN and status.pinned != wish.number:
        instead = "unpinned" if status.pinned is None else f"pinned to version {status.pinned}"
        raise SyncError(f"model {status.model!r} was {instead} while it was being pinned to version {wish.number}")
    if status.pinned not in (None, wish.number):
        raise SyncError(f"model {status.model!r} is pinned to version {status.pinned}; unpin it to follow its store")
    if wish.action is Action.SYNC and serving is not None and serving > wish.number:
        if wish.backward:
            raise SyncError(
                f"version {wish.number} of model {status.model!r} is older than version {serving}, which serves;"
                " pin it to go back"
            )
        return True  # a newer version overtook it
    return False


def _never_comes(wish: Wish, number: int, status: Status, published: Collection[int]) -> bool:
    """Numbers only rise, so one below the latest that is not there will not come any more."""
    if number in published or number in status.resident:
        return False
    if wish.action is Action.PIN or wish.backward:
        return True
    overtaken = status.serving is not None and number < status.serving.number
    return status.published is not None and number < status.published.number and not overtaken


def waiting_for(number: int | None, status: Status) -> str:
    """Why a wish that neither came true nor failed has to wait."""
    if status.restoring is not None:
        return f"version {status.restoring} is being restored"
    if status.last_error is not None:
        return status.last_error
    if status.published is None:
        return f"nothing is published in {status.store} yet"
    if number is not None and number > status.published.number:
        return f"the newest version in {status.store} is {status.published.number}"
    return "the store has not been looked at yet"
