"""Requests of operators to a follower: the rules of each action, the open requests, and the earlier choices.

A request is admitted as soon as enough is known about its version. From then on its pin or label takes effect as soon
as possible. Once the request is fulfilled, the choice is saved and the caller is answered. Where the table says "at
once", the choice is saved when the request is admitted.

| action | admitted | fulfilled | saved choice |
|---|---|---|---|
| SYNC | once its version is known (by default the newest version) | that version or a newer version serves | |
| PIN, ROLLBACK | once its version is in memory or the store was read | that version serves | the pin |
| UNPIN | at once | a complete round ran without the pin | no pin (at once) |
| LABEL | as PIN | the label names its version | the label |
| UNLABEL | at once | at once | no label (at once) |
| PREPARE | once the store was read or its versions are in memory | its versions and newest versions are in memory | |
| BEGIN | as PREPARE | as PREPARE, and the model serves or its store is empty | |
| CHANGE | at once | its pin serves; its unpin as UNPIN | the whole change (at once) |

A choice that is not saved at once is dropped, and the earlier choice stays, if the request fails, if its caller gives
up, or if another request replaces the request. This module uses neither a store nor a replica.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from enum import Enum
from itertools import takewhile

from paramsync.errors import ParamsyncError, SyncError, UnknownLabelError, UnknownVersionError
from paramsync.following.pins_file import MOST_LABELS, Change, Choices, check_label
from paramsync.moments import Move
from paramsync.status import Status


class Action(Enum):
    SYNC = "sync"
    PIN = "pin"
    UNPIN = "unpin"
    ROLLBACK = "rollback"  # a pin to the version that served before
    LABEL = "label"
    UNLABEL = "unlabel"
    PREPARE = "prepare"  # bring the versions that a change needs into memory
    BEGIN = "begin"  # like PREPARE, for a new follower
    CHANGE = "change"  # apply a prepared change


_PINNING = (Action.PIN, Action.ROLLBACK)
_PREPARING = (Action.PREPARE, Action.BEGIN)


@dataclass(eq=False)
class OperatorRequest:
    """One call of an operator. `number` is the version that the call names.

    If a sync or rollback names no version, `number` is set when the request is admitted.
    """

    action: Action
    number: int | None = None
    label: str = ""
    change: Change = field(default_factory=Change)
    serve_at: float | None = None  # the moment at which a SYNC, PIN, UNPIN or ROLLBACK is made; None: at once
    # for a request with a moment: the version that a sync names, else the newest when the request was first seen
    newest: int | None = None
    answer: Future[Status] = field(default_factory=Future)
    admitted: bool = False
    backward: bool = False  # whether a sync names a version older than the serving version
    failure: ParamsyncError | None = None  # why the request can never be fulfilled

    def outcome(
        self, status: Status, published: Collection[int] | None, *, whole: bool
    ) -> Status | ParamsyncError | None:
        """Return the answer, or None as long as the request has to wait.

        `published` is None if the store cannot be read. `whole` is True if a complete round, with a look at the store,
        has run since the request was admitted.
        """
        if self.failure is not None:
            return self.failure
        if (self.action is Action.UNPIN or self.change.unpin) and not whole and status.pinned is None:
            return None
        try:
            return status if _FULFILLED[self.action](self, status, published) else None
        except (SyncError, UnknownVersionError) as error:
            return error


# Each function returns whether a request is fulfilled. It raises SyncError or UnknownVersionError if the request can
# never be fulfilled.


def _synced(request: OperatorRequest, status: Status, published: Collection[int] | None) -> bool:
    number, serving = request.number, _serving(status)
    assert number is not None  # the request is admitted
    _check_usable(number, status)
    if serving == number:
        return True
    _check_comes(request, status, published)
    if status.pinned not in (None, number):
        raise SyncError(f"model {status.model!r} is pinned to version {status.pinned}; unpin it to follow its store")
    if serving is None or serving < number:
        return False
    if request.backward:
        raise SyncError(
            f"version {number} of model {status.model!r} is older than version {serving}, which serves; pin it to go"
            " back"
        )
    return True  # a newer version serves instead


def _pinned(request: OperatorRequest, status: Status, published: Collection[int] | None) -> bool:
    number = request.number
    _check_usable(number, status)
    if status.pinned == number == _serving(status):
        return True
    _check_comes(request, status, published)
    if status.pinned != number:
        instead = "unpinned" if status.pinned is None else f"pinned to version {status.pinned}"
        raise SyncError(f"model {status.model!r} was {instead} while it was being pinned to version {number}")
    return False


def _labelled(request: OperatorRequest, status: Status, published: Collection[int] | None) -> bool:
    if status.labels.get(request.label) == request.number:
        return True
    _check_usable(request.number, status)
    _check_comes(request, status, published)
    return False


def _prepared(request: OperatorRequest, status: Status, published: Collection[int] | None) -> bool:
    for number in request.change.versions:
        if number in status.resident:
            continue
        _check_usable(number, status)
        if published is not None and number not in published:
            raise UnknownVersionError(f"store {status.store}", number, published)
        return False
    if request.action is Action.BEGIN and not _begun(status, published):
        return False
    # a pinned model does not keep the newest versions in memory
    if request.change.latest is None or status.pinned is not None:
        return True
    if published is None:
        return status.store_lost
    return all(number in status.resident for number in status.usable(published)[: request.change.latest])


def _begun(status: Status, published: Collection[int] | None) -> bool:
    """Return whether a new model serves, or its store is empty. Raises SyncError if the model cannot serve."""
    if status.serving is not None:
        return True
    none_usable = published and not status.usable(published)
    if none_usable or (status.reason and status.next is None and (published or status.store_lost)):
        raise SyncError(f"model {status.model!r} cannot serve: {status.reason or status.short_reason}")
    return published is not None and not published


def _changed(request: OperatorRequest, status: Status, published: Collection[int] | None) -> bool:
    pinned = request.change.pinned
    if pinned is None or status.pinned != pinned:  # there is no pin to wait for, or another pin replaced this pin
        return True
    _check_usable(pinned, status)
    return _serving(status) == pinned


_FULFILLED: Mapping[Action, Callable[[OperatorRequest, Status, Collection[int] | None], bool]] = {
    Action.SYNC: _synced,
    Action.PIN: _pinned,
    Action.ROLLBACK: _pinned,
    Action.UNPIN: lambda *_: True,
    Action.LABEL: _labelled,
    Action.UNLABEL: lambda *_: True,
    Action.PREPARE: _prepared,
    Action.BEGIN: _prepared,
    Action.CHANGE: _changed,
}


def _serving(status: Status) -> int | None:
    return None if status.serving is None else status.serving.number


def _check_usable(number: int | None, status: Status) -> None:
    case = None if number is None else status.quarantine_of(number)
    if case is not None:
        raise SyncError(f"version {number} of model {status.model!r} is quarantined: {case.reason}")


def _check_comes(request: OperatorRequest, status: Status, published: Collection[int] | None) -> None:
    """Raise UnknownVersionError if the version is neither in the store nor in memory.

    Only a sync may wait for a version that is still to come, or be answered by a newer version.
    """
    number, serving = request.number, _serving(status)
    if number is None or published is None or number in published or number in status.resident:
        return
    if request.action is Action.SYNC and not request.backward:
        overtaken = serving is not None and number < serving
        if overtaken or status.published is None or number > status.published.number:
            return
    raise UnknownVersionError(f"store {status.store}", number, published)


# The open requests ----------------------------------------------------------------------------------------------------


class OperatorRequests:
    """The open requests, the pinned version and the labels.

    A lock guards the list of requests. Any thread may call `ask`, `hold` and `refuse`, and read `latest` and `beside`.
    All other members belong to the follower's thread.
    """

    def __init__(self, choices: Choices, keep: Callable[[Choices], None], *, latest: int | None = None) -> None:
        """`keep` saves the choices. It is called after each change, before the caller gets its answer.

        `latest` is how many of the newest versions stay in memory. If it is None, the versions that served most
        recently stay.
        """
        self._choices = choices
        self.fleet = Choices()
        """The choices that the bucket has for all its followers. Choices made at this follower override them."""
        self.fleet_move: Move | None = None
        """The move of all followers of the bucket to the pin of `fleet`; None if they move at once."""
        self.now = 0.0
        """When this round began, in seconds since the epoch."""
        self.is_waiting = False
        """Whether the moment of `next_move` is still in the future."""
        self._next: OperatorRequest | None = None  # the request that `next_move` is about
        self._keep = keep
        self._latest = latest
        self._held: Change | None = None
        self._pinning: OperatorRequest | None = None  # the admitted pin or rollback that waits for its answer
        self._labelling: dict[str, OperatorRequest] = {}  # by label: the admitted request that waits for its answer
        self._lock = threading.Lock()
        self._open: list[OperatorRequest] = []
        self._refusal: ParamsyncError | None = None

    def ask(
        self,
        action: Action,
        number: int | None = None,
        label: str = "",
        change: Change | None = None,
        serve_at: float | None = None,
    ) -> Future[Status]:
        """Open a request. Safe from any thread. Raises InputError for a label that cannot be stored."""
        if action is Action.LABEL:
            check_label("label", label)
        request = OperatorRequest(action, number, label, change or Change(), serve_at)
        with self._lock:
            if self._refusal is None:
                self._open.append(request)
            else:
                request.answer.set_exception(self._refusal)
        request.answer.add_done_callback(lambda _: self._remove(request))  # runs also when the caller cancels
        return request.answer

    def hold(self, change: Change | None) -> None:
        """Keep in memory the versions that this change needs; None: no versions for a change. Safe from any thread."""
        self._held = change

    @property
    def held(self) -> list[int]:
        """The versions to keep in memory for the change in preparation (see `hold`) and for the last change made."""
        return sorted({*self._choices.beside, *(() if self._held is None else self._held.versions)})

    @property
    def beside(self) -> tuple[int, ...]:
        """The versions that the last change keeps in memory."""
        return self._choices.beside

    @property
    def latest(self) -> int | None:
        """How many of the newest versions stay in memory; None: the versions that served most recently stay instead."""
        held = self._held
        return self._latest if held is None or held.latest is None else max(held.latest, self._latest or 0)

    @property
    def any_open(self) -> bool:
        """Whether any caller waits for an answer."""
        return bool(self._open)

    @property
    def preparing(self) -> bool:
        """Whether a caller waits for the versions that a change needs."""
        with self._lock:
            return any(request.action in _PREPARING for request in self._open)

    @property
    def pinned(self) -> int | None:
        """The version to serve until an unpin; None without a pin.

        The pin of an admitted request takes precedence over the saved pin, and the saved pin over the bucket's pin.
        """
        if self._pinned_here is not None:
            return self._pinned_here
        move = self.fleet_move
        is_waiting = move is not None and (self.is_waiting if self._next is None else move.at > self.now)
        return self.fleet.pinned if move is None or not is_waiting else move.before

    @property
    def pinned_next(self) -> int | None:
        """The version that will be pinned after the moment of `next_move`."""
        request = self._next
        if request is not None and request.action is not Action.UNPIN:
            return request.number if request.action in _PINNING else self.pinned
        return self.fleet.pinned if request is not None or self._pinned_here is None else self._pinned_here

    def next_move(self, newest: int | None) -> Move | None:
        """Return the move that comes next: the first open request with a moment, or the move of all followers.

        `newest` is the newest version in the store.
        """
        with self._lock:  # an admitted sync still counts: the sync's moment overrides the version's moment
            waiting = [
                request
                for request in self._open
                if request.serve_at is not None and (not request.admitted or request.action is Action.SYNC)
            ]
        request = self._next = min(waiting, key=lambda request: request.serve_at or 0.0, default=None)
        if request is None or request.serve_at is None:
            return self.fleet_move
        is_sync = request.action is Action.SYNC
        if request.newest is None:
            request.newest = request.number if is_sync and request.number is not None else newest
        return Move(at=request.serve_at, newest=request.newest or 0, sync=is_sync)

    @property
    def _pinned_here(self) -> int | None:
        tried = self._pinning
        return self._choices.pinned if tried is None or tried.answer.done() else tried.number

    @property
    def going_back(self) -> bool:
        """Whether `pinned` comes from a rollback that is not answered yet."""
        return self._pinning is not None and not self._pinning.answer.done() and self._pinning.action is Action.ROLLBACK

    @property
    def labels(self) -> Mapping[str, int]:
        """The version that each label should name, by label."""
        return {**self.fleet.labels, **self._choices.labels, **self.labelling}

    @property
    def labelling(self) -> Mapping[str, int]:
        """The labels of admitted requests that are not answered yet, with their versions."""
        return {
            label: request.number
            for label, request in self._labelling.items()
            if request.number is not None and not request.answer.done()
        }

    def fresh(self) -> list[OperatorRequest]:
        """Return the requests that are due and not admitted yet.

        Call this before a look at the store, and `admit` after the look, so that the look is newer than the requests.
        """
        with self._lock:
            return [
                request
                for request in self._open
                if not request.admitted and (request.serve_at is None or request.serve_at <= self.now)
            ]

    def refuse_unknown(self, status: Status, published: Collection[int] | None) -> None:
        """Fail pins and rollbacks before their moments if their versions are neither in memory nor in the store."""
        with self._lock:
            pins = [request for request in self._open if request.action in _PINNING and not request.admitted]
        for request in pins:
            number = request.number
            if request.serve_at is None or number is None or published is None or number in status.resident:
                continue
            if number not in published:
                request.admitted = True
                request.failure = UnknownVersionError(f"store {status.store}", number, published)

    def urgent(self, status: Status) -> list[OperatorRequest]:
        """Return the new requests that need only versions in memory, up to the first that needs the store.

        Syncs and preparations are left out: they always need the store.
        """
        changes = (request for request in self.fresh() if request.action not in (Action.SYNC, *_PREPARING))
        return list(takewhile(lambda request: _in_memory(request, status), changes))

    def overtaking(self, status: Status) -> bool:
        """Return whether an urgent request pins a version in memory, so that a restore in progress can be abandoned."""
        return any(request.action in _PINNING or request.change.pinned is not None for request in self.urgent(status))

    def admit(
        self, fresh: Iterable[OperatorRequest], status: Status, published: Collection[int] | None, newest: int | None
    ) -> set[int]:
        """Admit the requests for which enough is known. Returns the versions that admitted requests name.

        The caller lifts the quarantine of these versions. `published` is None if the store cannot be read; `newest` is
        None if the newest version is unknown.
        """
        for request in fresh:
            if request.action is Action.SYNC:
                request.backward = request.number is not None and request.number < (_serving(status) or 0)
                if request.number is None:
                    request.number = newest if request.newest is None else request.newest
                request.admitted = request.number is not None
            elif request.action is Action.UNPIN:
                self._pinning = None
                request.admitted = True
                self._choose(replace(self._choices, pinned=None, beside=()))
            elif request.action is Action.UNLABEL:
                self._unlabel(request, status)
            elif request.action in _PREPARING:
                request.admitted = published is not None or {*request.change.versions} <= {*status.resident}
                if len(request.change.of(self._choices).labels) > MOST_LABELS:
                    request.failure = _too_many(status)
            elif request.action is Action.CHANGE:
                self._change(request, status)
            else:
                self._try(request, status, published)
        admitted = [request for request in fresh if request.admitted]
        numbers = {request.number for request in admitted if request.number is not None}
        return numbers.union(*(request.change.versions for request in admitted if request.action in _PREPARING))

    def _change(self, request: OperatorRequest, status: Status) -> None:
        """Apply and save a prepared change. Its versions are in memory already."""
        request.admitted = True
        change = request.change
        self._latest = change.latest
        if change.unpin or change.pinned is not None:
            self._pinning = None
        for label in {*change.labels, *change.without} & self._labelling.keys():
            self._overtake(label, f"a configuration spoke of the label {label!r}", status)
        self._choices = change.of(self._choices)
        self._keep(self._choices)

    def _try(self, request: OperatorRequest, status: Status, published: Collection[int] | None) -> None:
        """Let a pin, rollback or label take effect if its version is in memory or in the store."""
        if request.action is Action.ROLLBACK and request.number is None:
            back = status.back_among(published)
            request.number = None if back is None else back.number
            if request.number is None and published is not None:
                request.failure = _nothing_before(status)
        is_there = request.number is not None and request.number in {*status.resident, *(published or ())}
        request.admitted = is_there or published is not None
        if request.action is Action.LABEL and request.label not in self.labels and len(self.labels) >= MOST_LABELS:
            request.admitted, request.failure = True, _too_many(status)
        elif is_there and request.action is Action.LABEL:
            self._overtake(request.label, f"version {request.number} was given the label {request.label!r}", status)
            self._labelling[request.label] = request
        elif is_there:
            self._pinning = request

    def _unlabel(self, request: OperatorRequest, status: Status) -> None:
        request.admitted = True
        if request.label not in {**self.labels, **status.labels}:
            request.failure = UnknownLabelError(status.model, request.label, status.labels)
            return
        self._overtake(request.label, f"the label {request.label!r} was taken away", status)
        others = {label: number for label, number in self._choices.labels.items() if label != request.label}
        self._choose(replace(self._choices, labels=others))

    def _overtake(self, label: str, what: str, status: Status) -> None:
        before = self._labelling.pop(label, None)
        if before is not None:
            before.failure = SyncError(f"model {status.model!r}: {what} before version {before.number} had it")

    def settle(self, status: Callable[[], Status], published: Collection[int] | None, *, whole: bool) -> None:
        """Answer each request whose `outcome` is known: it is fulfilled, or can never be fulfilled."""
        with self._lock:
            waiting = [request for request in self._open if request.admitted]
        if not waiting:
            return
        now = status()
        outcomes = [(request, request.outcome(now, published, whole=whole)) for request in waiting]
        for request, outcome in outcomes:
            if outcome is None or not self._remove(request) or not request.answer.set_running_or_notify_cancel():
                continue
            if isinstance(outcome, ParamsyncError):
                request.answer.set_exception(outcome)
            else:
                self._keep_fulfilled(request)
                request.answer.set_result(outcome)

    def _keep_fulfilled(self, request: OperatorRequest) -> None:
        if request.action in _PINNING:
            self._choose(replace(self._choices, pinned=request.number))
        elif request.action is Action.LABEL and request.number is not None:
            self._choose(replace(self._choices, labels={**self._choices.labels, request.label: request.number}))

    def _choose(self, choices: Choices) -> None:
        if choices != self._choices:
            self._choices = choices
            self._keep(choices)

    def refuse(self, error: ParamsyncError) -> None:
        """Answer all requests, open and future, with this error."""
        with self._lock:
            self._refusal = error
            refused, self._open = self._open, []
        for request in refused:
            if request.answer.set_running_or_notify_cancel():
                request.answer.set_exception(error)

    def _remove(self, request: OperatorRequest) -> bool:
        """Take the request off the list. Returns whether it was still open."""
        with self._lock:
            there = request in self._open
            if there:
                self._open.remove(request)
        return there


def _in_memory(request: OperatorRequest, status: Status) -> bool:
    """Return whether the request needs only versions that are already in memory."""
    if request.action is Action.ROLLBACK and request.number is None:
        return bool(status.before) and status.before[0] in status.resident
    if request.action in (*_PINNING, Action.LABEL):
        return request.number in status.resident
    if request.action is Action.CHANGE:
        return not request.change.unpin  # an unpin needs a look at the store
    if request.action is Action.UNPIN:
        return request.serve_at is not None  # the next version was restored before the moment of the unpin
    return request.action is Action.UNLABEL


def _too_many(status: Status) -> SyncError:
    return SyncError(
        f"model {status.model!r}: expected at most {MOST_LABELS} labels, found one more: take one away first"
        " (paramsync unlabel)"
    )


def _nothing_before(status: Status) -> SyncError:
    serving = "none" if status.serving is None else f"version {status.serving.number}"
    gone = f"; gone are: {', '.join(map(str, status.before))}" if status.before else ""
    return SyncError(
        f"model {status.model!r} has no version to go back to: {serving} serves, and neither in memory nor in store"
        f" {status.store} is one that served before it, or a lower one that can be used{gone}: publish what is wanted,"
        " or pin a newer version"
    )
