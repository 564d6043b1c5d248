"""One request of an operator: when it is fulfilled, and when it never will be."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from enum import Enum

from paramsync.errors import ParamsyncError, SyncError, UnknownVersionError
from paramsync.following.pins_file import Choices
from paramsync.status import Status, usable


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """What a configuration says of one model's pin, labels and memory; fulfilled all at once, or not at all."""

    pinned: int | None = None  # the version to pin
    unpin: bool = False
    labels: Mapping[str, int] = field(default_factory=dict)  # to give, or to move
    without: Collection[str] = ()  # labels to take away, where they are there
    beside: tuple[int, ...] | None = None  # what else is to be in memory; None: what was to be stays
    latest: int | None = None  # how many of the newest stay in memory; None: those that served last do

    @property
    def versions(self) -> list[int]:
        """The versions that have to be in memory for it."""
        pinned = () if self.pinned is None else (self.pinned,)
        return sorted({*pinned, *self.labels.values(), *(self.beside or ())})

    def of(self, choices: Choices) -> Choices:
        """The choices after it."""
        labels = {label: number for label, number in choices.labels.items() if label not in self.without}
        pinned = None if self.unpin else choices.pinned if self.pinned is None else self.pinned
        beside = choices.beside if self.beside is None else self.beside
        return replace(choices, pinned=pinned, labels={**labels, **self.labels}, beside=beside)

    def is_so(self, status: Status, latest: int | None, beside: tuple[int, ...]) -> bool:
        """Whether nothing would change, where `latest` versions, and those `beside`, stay in memory now."""
        choices = Choices(pinned=status.pinned, labels=dict(status.labels), beside=beside)
        return latest == self.latest and self.of(choices) == choices


class Action(Enum):
    SYNC = "sync"
    PIN = "pin"
    UNPIN = "unpin"
    ROLLBACK = "rollback"  # a pin to the version that served before
    LABEL = "label"
    UNLABEL = "unlabel"
    PREPARE = "prepare"  # have in memory what a change needs
    BEGIN = "begin"  # the same of a follower that is new, which has to serve as well, or to have nothing to serve yet
    CHANGE = "change"  # which was prepared


PINNING = (Action.PIN, Action.ROLLBACK)
PREPARING = (Action.PREPARE, Action.BEGIN)


@dataclass(eq=False)
class OperatorRequest:
    """One call. `number` is the version asked for; of a sync or rollback that names none it is filled in when known."""

    action: Action
    number: int | None = None
    label: str = ""
    change: Change = field(default_factory=Change)
    answer: Future[Status] = field(default_factory=Future)
    admitted: bool = False
    backward: bool = False  # a sync that names a version older than the one that serves
    failure: ParamsyncError | None = None  # known already when it was admitted, or since

    def outcome(
        self, status: Status, published: Collection[int] | None, *, whole: bool
    ) -> Status | ParamsyncError | None:
        """What to answer; None as long as it has to wait.

        `published` is None where nobody knows, and `whole` says that the newest version was followed since it was
        admitted, as far as that could be.
        """
        if self.failure is not None:
            return self.failure
        if (self.action is Action.UNPIN or self.change.unpin) and not whole and status.pinned is None:
            return None
        try:
            return status if _fulfilled(self, status, published) else None
        except (SyncError, UnknownVersionError) as error:
            return error

    def answered(self, outcome: Status | ParamsyncError) -> None:
        """To be called once, after `answer.set_running_or_notify_cancel`."""
        if isinstance(outcome, ParamsyncError):
            self.answer.set_exception(outcome)
        else:
            self.answer.set_result(outcome)


def _fulfilled(request: OperatorRequest, status: Status, published: Collection[int] | None) -> bool:
    """Whether a request is fulfilled. Raises SyncError or UnknownVersionError, with why, where it never will be."""
    number = request.number
    if request.action in (Action.UNPIN, Action.UNLABEL):
        return True
    if request.action in PREPARING:
        return _prepared(request, status, published)
    if request.action is Action.CHANGE:
        return _changed(request.change.pinned, status)
    if number is None:
        return False
    if request.action is Action.LABEL and status.labels.get(request.label) == number:
        return True
    _check_usable(number, status)
    serving = status.serving.number if status.serving else None
    if serving == number and (request.action is Action.SYNC or (request.action in PINNING and status.pinned == number)):
        return True
    if published is not None and _never_comes(request, number, status, published):
        raise UnknownVersionError(f"store {status.store}", number, published)
    if request.action is Action.LABEL:
        return False
    if request.action in PINNING and status.pinned != number:
        instead = "unpinned" if status.pinned is None else f"pinned to version {status.pinned}"
        raise SyncError(f"model {status.model!r} was {instead} while it was being pinned to version {number}")
    if status.pinned not in (None, number):
        raise SyncError(f"model {status.model!r} is pinned to version {status.pinned}; unpin it to follow its store")
    if request.action is Action.SYNC and serving is not None and serving > number:
        if request.backward:
            raise SyncError(
                f"version {number} of model {status.model!r} is older than version {serving}, which serves;"
                " pin it to go back"
            )
        return True  # a newer version overtook it
    return False


def _changed(pinned: int | None, status: Status) -> bool:
    """Whether what was chosen is in effect: labels are by now, a pin once it serves, or another one took its place."""
    if pinned is None or status.pinned != pinned:
        return True
    _check_usable(pinned, status)
    return status.serving is not None and status.serving.number == pinned


def _prepared(request: OperatorRequest, status: Status, published: Collection[int] | None) -> bool:
    """Whether all that its change needs is in memory. Raises SyncError, UnknownVersionError where that never is so."""
    for number in request.change.versions:
        if number in status.resident:
            continue
        _check_usable(number, status)
        if published is not None and number not in published:
            raise UnknownVersionError(f"store {status.store}", number, published)
        return False
    if request.action is Action.BEGIN and not _begun(status, published):
        return False
    if request.change.latest is None or status.pinned is not None:  # the newest versions are not followed then
        return True
    if published is None:
        return status.last_error is not None
    wanted = usable(published, {case.number for case in status.quarantined})[: request.change.latest]
    return all(number in status.resident for number in wanted)


def _begun(status: Status, published: Collection[int] | None) -> bool:
    """Whether it serves, or nothing is there to serve as yet. Raises SyncError where it will not, as things are."""
    if status.serving is not None:
        return True
    if status.last_error is not None:
        raise SyncError(f"model {status.model!r} cannot serve: {status.last_error}")
    if published and not usable(published, {case.number for case in status.quarantined}):
        raise SyncError(f"model {status.model!r} cannot serve: {status.obstacle}")
    return published is not None and not published


def _check_usable(number: int, status: Status) -> None:
    if (quarantined := status.quarantine_of(number)) is not None:
        raise SyncError(f"version {number} of model {status.model!r} is quarantined: {quarantined.reason}")


def _never_comes(request: OperatorRequest, number: int, status: Status, published: Collection[int]) -> bool:
    """Numbers only rise, so one below the latest that is not there will not come any more."""
    if number in published or number in status.resident:
        return False
    if request.action is not Action.SYNC or request.backward:
        return True
    overtaken = status.serving is not None and number < status.serving.number
    return status.published is not None and number < status.published.number and not overtaken


def waiting_for(number: int | None, status: Status) -> str:
    """Why a request that is neither fulfilled nor failed has to wait."""
    if status.restoring is not None:
        return f"version {status.restoring} is being restored"
    if status.last_error is not None:
        return status.last_error
    if status.published is None:
        return f"nothing is published in {status.store} yet"
    if number is not None and number > status.published.number:
        return f"the newest version in {status.store} is {status.published.number}"
    return "the store has not been looked at yet"
