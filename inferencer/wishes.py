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
    pinned_before: int | None = None


class Wishes:
    """The calls not answered yet, and the version pinned. A lock guards the list; the worker admits and settles."""

    def __init__(self) -> None:
        self.pinned: int | None = None
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
        return wish.answer

    def fresh(self) -> list[Wish]:
        """What is new: to be taken before a look at the store, and admitted after it."""
        with self._lock:
            return [wish for wish in self._open if not wish.admitted]

    def admit(self, fresh: Iterable[Wish], status: Status, known: Collection[int]) -> set[int]:
        """Take it up. Returns the versions it asks for: a quarantined one is tried once more."""
        for wish in fresh:
            if wish.action is Action.SYNC and wish.number is None:
                newest = status.published if status.last_error is None else None  # else nobody knows which is newest
                wish.number = newest.number if newest else None
            elif wish.action is Action.SYNC and wish.number is not None:
                wish.backward = status.serving is not None and wish.number < status.serving.number
            elif wish.action is Action.UNPIN or wish.number in known:
                wish.pinned_before, self.pinned = self.pinned, wish.number
            wish.admitted = wish.action is Action.UNPIN or wish.number is not None
        return {wish.number for wish in fresh if wish.number is not None}

    def settle(self, status: Status, published: Collection[int] | None) -> None:
        """Answer every wish that has come true in `status` or never will. `published` is None where nobody knows."""
        with self._lock:
            waiting = [wish for wish in self._open if wish.admitted]
        outcomes = [(wish, _outcome(wish, status, published)) for wish in waiting]
        for wish, outcome in outcomes:
            if outcome is not None and self._take(wish):
                if isinstance(outcome, ParamsyncError) and wish.action is Action.PIN and self.pinned == wish.number:
                    self.pinned = wish.pinned_before
                _answer(wish, outcome)

    def refuse(self, error: ParamsyncError) -> None:
        """Answer everything, now and from now on, with this error."""
        with self._lock:
            self._refusal = error
            refused, self._open = self._open, []
        for wish in refused:
            _answer(wish, error)

    def _take(self, wish: Wish) -> bool:
        """Whether it is the caller's to answer. Those whose caller left are dropped with it."""
        with self._lock:
            there = wish in self._open
            self._open = [one for one in self._open if one is not wish and not one.answer.cancelled()]
        return there


def _outcome(wish: Wish, status: Status, published: Collection[int] | None) -> Status | ParamsyncError | None:
    """What to answer; None as long as it has to wait."""
    if wish.answer.cancelled():
        return status
    try:
        return status if fulfilled(wish, status, published) else None
    except (SyncError, UnknownVersionError) as error:
        return error


def _answer(wish: Wish, outcome: Status | ParamsyncError) -> None:
    if not wish.answer.set_running_or_notify_cancel():
        return
    if isinstance(outcome, ParamsyncError):
        wish.answer.set_exception(outcome)
    else:
        wish.answer.set_result(outcome)


def fulfilled(wish: Wish, status: Status, published: Collection[int] | None) -> bool:
    """Whether it has come true. Raises SyncError or UnknownVersionError, with the reason, where it never will."""
    if wish.action is Action.UNPIN:
        return True
    if wish.number is None:
        return False
    refusal = status.quarantine_of(wish.number)
    if refusal is not None:
        raise SyncError(f"version {wish.number} of model {status.model!r} was refused: {refusal.reason}")
    serving = status.serving.number if status.serving else None
    if serving == wish.number:
        return True
    if published is not None and _never_comes(wish, wish.number, status, published):
        raise UnknownVersionError(f"store {status.store}", wish.number, published)
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
    """Why a wish that is neither fulfilled nor refused has to wait."""
    if status.restoring is not None:
        return f"version {status.restoring} is being restored"
    if status.last_error is not None:
        return status.last_error
    if status.published is None:
        return f"nothing is published in {status.store} yet"
    if number is not None and number > status.published.number:
        return f"the newest version in {status.store} is {status.published.number}"
    return "the store has not been looked at yet"
