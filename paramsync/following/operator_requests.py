"""OperatorRequests: open requests, and what operators chose before. Knows no store and no replica."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from itertools import takewhile

from paramsync.errors import ParamsyncError, SyncError, UnknownLabelError
from paramsync.following.operator_request import PINNING, PREPARING, Action, Change, OperatorRequest
from paramsync.following.pins_file import MOST_LABELS, Choices, check_label
from paramsync.status import Status, back_to

__all__ = ["Action", "Known", "OperatorRequests"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """Versions that requests are judged by."""

    published: Collection[int] | None = None  # None where nobody knows
    latest: int | None = None  # None where the store does not say
    before: Sequence[int] = ()  # those that served before, the last one first


class OperatorRequests:
    """The open requests, the pinned version and the labels. A lock guards the list; the worker does the rest.

    A pin or label is chosen once it is fulfilled. Until then it is tried: the choice before it stands where it fails,
    its caller leaves, or another request takes its place.
    """

    def __init__(self, choices: Choices, keep: Callable[[Choices], None], *, latest: int | None = None) -> None:
        """`keep` is called with each change of the choices, before anybody is told of it.

        `latest` is how many of the newest versions are to be in memory; without it those that served last are.
        """
        self._choices = choices
        self._keep = keep
        self._latest = latest
        self._held: Change | None = None
        self._tried: OperatorRequest | None = None
        self._labelling: dict[str, OperatorRequest] = {}
        self._lock = threading.Lock()
        self._open: list[OperatorRequest] = []
        self._refusal: ParamsyncError | None = None

    def ask(
        self, action: Action, number: int | None = None, label: str = "", change: Change | None = None
    ) -> Future[Status]:
        """Raises InputError for a label that could not be kept."""
        if action is Action.LABEL:
            check_label("label", label)
        request = OperatorRequest(action, number, label, change or Change())
        with self._lock:
            if self._refusal is None:
                self._open.append(request)
            else:
                request.answer.set_exception(self._refusal)
        request.answer.add_done_callback(lambda _: self._take(request))  # also where the caller left
        return request.answer

    def hold(self, change: Change | None) -> None:
        """Have in memory what this change needs, from now on; None: no longer."""
        self._held = change

    @property
    def held(self) -> list[int]:
        """The versions that a change will need, and those that a change before it named. For the worker."""
        return sorted({*self._choices.beside, *(() if self._held is None else self._held.versions)})

    @property
    def beside(self) -> tuple[int, ...]:
        """Those that a change before it named."""
        return self._choices.beside

    @property
    def latest(self) -> int | None:
        """How many of the newest versions are to be in memory; None: those that served last are. For the worker."""
        held = self._held
        return self._latest if held is None or held.latest is None else max(held.latest, self._latest or 0)

    @property
    def preparing(self) -> bool:
        """Whether somebody waits for what a change needs. For the worker."""
        with self._lock:
            return any(request.action in PREPARING for request in self._open)

    @property
    def pinned(self) -> int | None:
        """The version to serve and to stay at. For the worker."""
        tried = self._tried
        return self._choices.pinned if tried is None or tried.answer.done() else tried.number

    @property
    def going_back(self) -> bool:
        """Whether `pinned` is what a rollback asks for which is not done yet."""
        return self._tried is not None and not self._tried.answer.done() and self._tried.action is Action.ROLLBACK

    @property
    def labels(self) -> Mapping[str, int]:
        """The version that each label should lead to. For the worker."""
        return {**self._choices.labels, **self.labelling}

    @property
    def labelling(self) -> Mapping[str, int]:
        """Those labels that somebody waits for."""
        return {
            label: request.number
            for label, request in self._labelling.items()
            if request.number is not None and not request.answer.done()
        }

    def fresh(self) -> list[OperatorRequest]:
        """New requests: to be taken before a look at the store, and admitted after it."""
        with self._lock:
            return [request for request in self._open if not request.admitted]

    def urgent(self, resident: Collection[int], before: Sequence[int]) -> list[OperatorRequest]:
        """New requests about versions in memory, which need no look at the store; in the order of asking."""
        changes = (request for request in self.fresh() if request.action not in (Action.SYNC, *PREPARING))
        return list(takewhile(lambda request: _in_memory(request, resident, before), changes))

    def overtaking(self, resident: Collection[int], before: Sequence[int]) -> bool:
        """Whether one of the urgent requests makes any restore needless."""
        urgent = self.urgent(resident, before)
        return any(request.action in PINNING or request.change.pinned is not None for request in urgent)

    def admit(self, fresh: Iterable[OperatorRequest], status: Status, known: Known) -> set[int]:
        """Take up the requests that can be judged now. Returns the versions to try once more, even from quarantine."""
        for request in fresh:
            if request.action is Action.SYNC:
                request.admitted = _sync_admitted(request, status, known)
            elif request.action is Action.UNPIN:
                self._tried = None
                request.admitted = True
                self._choose(replace(self._choices, pinned=None, beside=()))
            elif request.action is Action.UNLABEL:
                self._unlabel(request, status)
            elif request.action in PREPARING:
                request.admitted = known.published is not None or {*request.change.versions} <= {*status.resident}
                if len(request.change.of(self._choices).labels) > MOST_LABELS:
                    request.failure = _too_many(status)
            elif request.action is Action.CHANGE:
                self._change(request, status)
            else:
                self._try(request, status, known)
        admitted = [request for request in fresh if request.admitted]
        numbers = {request.number for request in admitted if request.number is not None}
        return numbers.union(*(request.change.versions for request in admitted if request.action in PREPARING))

    def _change(self, request: OperatorRequest, status: Status) -> None:
        """Choose what was prepared: what it needs is in memory."""
        request.admitted = True
        change = request.change
        self._latest = change.latest
        if change.unpin or change.pinned is not None:
            self._tried = None
        for label in {*change.labels, *change.without} & self._labelling.keys():
            self._overtake(label, f"a configuration spoke of the label {label!r}", status)
        self._choices = change.of(self._choices)
        self._keep(self._choices)

    def _try(self, request: OperatorRequest, status: Status, known: Known) -> None:
        there = {*status.resident, *(known.published or ())}
        if request.action is Action.ROLLBACK and request.number is None:
            back = back_to(
                None if status.serving is None else status.serving.number,
                known.before,
                resident=status.resident,
                published=known.published,
                quarantined=[case.number for case in status.quarantined],
            )
            request.number = None if back is None else back.number
            if request.number is None and known.published is not None:
                request.failure = _nothing_before(status, known.before)
        is_there = request.number is not None and request.number in there
        request.admitted = is_there or known.published is not None
        if request.action is Action.LABEL and request.label not in self.labels and len(self.labels) >= MOST_LABELS:
            request.admitted, request.failure = True, _too_many(status)
        elif is_there and request.action is Action.LABEL:
            self._overtake(request.label, f"version {request.number} was given the label {request.label!r}", status)
            self._labelling[request.label] = request
        elif is_there:
            self._tried = request

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
        """Answer each request that is fulfilled now, or never will be; see OperatorRequest.outcome."""
        with self._lock:
            waiting = [request for request in self._open if request.admitted]
        if not waiting:
            return
        now = status()
        outcomes = [(request, request.outcome(now, published, whole=whole)) for request in waiting]
        for request, outcome in outcomes:
            if outcome is None or not self._take(request) or not request.answer.set_running_or_notify_cancel():
                continue
            if isinstance(outcome, Status):
                self._chosen(request)
            request.answered(outcome)

    def _chosen(self, request: OperatorRequest) -> None:
        if request.action in PINNING:
            self._choose(replace(self._choices, pinned=request.number))
        elif request.action is Action.LABEL and request.number is not None:
            self._choose(replace(self._choices, labels={**self._choices.labels, request.label: request.number}))

    def _choose(self, choices: Choices) -> None:
        if choices != self._choices:
            self._choices = choices
            self._keep(choices)

    def refuse(self, error: ParamsyncError) -> None:
        """Answer everything, now and from now on, with this error."""
        with self._lock:
            self._refusal = error
            refused, self._open = self._open, []
        for request in refused:
            if request.answer.set_running_or_notify_cancel():
                request.answered(error)

    def _take(self, request: OperatorRequest) -> bool:
        """Take it off the list. Returns whether it was still open."""
        with self._lock:
            there = request in self._open
            if there:
                self._open.remove(request)
        return there


def _in_memory(request: OperatorRequest, resident: Collection[int], before: Sequence[int]) -> bool:
    """Whether it is about versions in memory alone."""
    if request.action is Action.ROLLBACK and request.number is None:
        return bool(before) and before[0] in resident
    if request.action in (*PINNING, Action.LABEL):
        return request.number in resident
    if request.action is Action.CHANGE:
        return not request.change.unpin  # which is answered when the store was looked at
    return request.action is Action.UNLABEL


def _sync_admitted(request: OperatorRequest, status: Status, known: Known) -> bool:
    if request.number is not None:
        request.backward = status.serving is not None and request.number < status.serving.number
        return True
    request.number = known.latest
    return request.number is not None


def _too_many(status: Status) -> SyncError:
    return SyncError(
        f"model {status.model!r}: expected at most {MOST_LABELS} labels, found one more: take one away first"
        " (paramsync unlabel)"
    )


def _nothing_before(status: Status, before: Sequence[int]) -> SyncError:
    serving = "none" if status.serving is None else f"version {status.serving.number}"
    gone = f"; gone are: {', '.join(map(str, before))}" if before else ""
    return SyncError(
        f"model {status.model!r} has no version to go back to: {serving} serves, and neither in memory nor in store"
        f" {status.store} is one that served before it, or a lower one that can be used{gone}: publish what is wanted,"
        " or pin a newer version"
    )
